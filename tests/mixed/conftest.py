import pytest
from mixed_team import play

from osmosis_core.testing import ScriptedPolicy


@pytest.fixture
def policy():
    with ScriptedPolicy(lambda received: play(received.body)) as policy:
        yield policy
