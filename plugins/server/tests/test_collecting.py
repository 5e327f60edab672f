"""Full collections leave alone what an earlier one has seen, and forget no garbage for good."""

import gc
import weakref

import pytest

from osmosis_server.collecting import ShortCollections


class Ring:
    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def _thawed():
    yield
    gc.unfreeze()


def test_garbage_that_was_frozen_is_collected_when_nothing_runs():
    is_idle = False
    with ShortCollections(lambda: is_idle, long_sec=0.0) as collections:
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        del ring
        gc.collect()
        collections.thaw_when_due()
        assert gone() is not None
        is_idle = True
        collections.thaw_when_due()
        assert gone() is None


def test_garbage_that_was_frozen_is_collected_in_time_under_load():
    with ShortCollections(lambda: False, long_sec=0.0, thaw_sec=0.0) as collections:
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        del ring
        collections.thaw_when_due()
        assert gone() is None


def test_short_collections_freeze_nothing():
    with ShortCollections(lambda: True, long_sec=60.0):
        before = gc.get_freeze_count()
        gc.collect()
        assert gc.get_freeze_count() == before
