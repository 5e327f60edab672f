"""A crowd of mixed rollouts at once, agents and models shared by all: nothing is mixed up."""

import pytest
from mixed import crowd


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_mixed_rollouts_at_once_keep_apart(count):
    """Words, keys, labels, samples, who started whom, rewards; see benchmarks/mixed.py."""
    figures = await crowd(count)
    assert figures.wrong == []
    assert figures.rollouts == count
    assert figures.calls == 7 * count
