"""A thousand mixed rollouts at once, agents and models shared by all: nothing is mixed up."""

from mixed import crowd


async def test_thousand_mixed_rollouts_at_once_keep_apart():
    """Words, keys, labels, samples, who started whom, rewards; see benchmarks/mixed.py."""
    figures = await crowd(1_000)
    assert figures.wrong == []
    assert figures.rollouts == 1_000
    assert figures.calls == 7_000
