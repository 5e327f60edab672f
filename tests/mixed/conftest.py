import pytest
from mixed_team import play

from osmosis_core.testing import ScriptedPolicy


@pytest.fixture
def policy():
    with ScriptedPolicy(play) as policy:
        yield policy
