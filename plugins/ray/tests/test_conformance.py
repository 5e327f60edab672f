"""The contract of every backend."""

import time

import pytest

from osmosis_core.testing import BackendConformance
from osmosis_ray import RayBackend


@pytest.fixture(autouse=True)
def warm(cluster):
    """Ray starts processes for these while a test runs; the next test's worker is one of them."""
    nap = cluster.remote(num_cpus=0.01)(time.sleep)
    naps = [nap.remote(0.1) for _ in range(3)]
    yield
    del naps


class TestConformance(BackendConformance):
    def create_backend(self, **arguments):
        return RayBackend(num_workers=1, resources={"CPU": 0.01}, **arguments)
