"""Agents of every framework inside tools of every other: who called, whose tool started it."""

import asyncio

import pytest
from mixed_team import KINDS, ORDERS, asking, chain

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_core.policy import agent_scope

in_every_order = pytest.mark.parametrize("order", ORDERS, ids="-".join)


def check(order, rollout, samples, said):
    """One sample per agent, each of two calls around the next one's, but for the innermost."""
    *upper, leaf = order
    assert said == f"{'('.join(upper)}({leaf}:q{')' * len(upper)}"
    made = [(call.sample_id, call.started_by, call.continues) for call in rollout.calls]
    starters = [None, *range(len(order) - 1)]
    down = [*zip(order, starters, [None] * len(order), strict=True)]
    up = [(kind, starter, index) for index, (kind, starter, _) in enumerate(down[:-1])]
    assert made == [*down, *reversed(up)]
    (top,) = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
    lines = [f"{'  ' * depth}{kind}: 2 calls" for depth, kind in enumerate(upper)]
    assert str(top).splitlines() == [*lines, f"{'  ' * len(upper)}{leaf}: 1 call"]
    assert set(samples) == set(order)
    for kind in order[1:]:
        assert "q" in str(samples[kind].messages)


@in_every_order
@pytest.mark.parametrize("mode", ["run", "stream", "block"])
async def test_four_deep_each_agent_is_started_by_the_tool_call_above(policy, order, mode):
    top = chain(order, mode)
    with policy.rollout("r") as rollout:
        said = await asyncio.to_thread(top.block, "q") if mode == "block" else await top.run("q")
        check(order, rollout, await rollout.get_samples(), said)


@pytest.mark.parametrize("mode", ["run", "block"])
@pytest.mark.parametrize("boss", KINDS)
async def test_agents_of_all_kinds_asked_at_once_are_started_by_one_call(policy, boss, mode):
    asks = [asking(kind, KINDS[kind](kind, []), mode) for kind in KINDS if kind != boss]
    top = KINDS[boss](boss, asks)
    with policy.rollout() as rollout:
        await asyncio.to_thread(top.block, "q") if mode == "block" else await top.run("q")
        samples = await rollout.get_samples()
    first, *asked, last = rollout.calls
    assert [(call.sample_id, call.started_by) for call in (first, last)] == [(boss, None)] * 2
    assert {call.sample_id: call.started_by for call in asked} == dict.fromkeys(
        set(KINDS) - {boss}, first.index
    )
    assert len(asked) == 3
    (tree,) = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
    assert sorted(child.sample_id for child in tree.children) == sorted(set(KINDS) - {boss})


@pytest.mark.parametrize("mode", ["run", "stream", "block"])
@pytest.mark.parametrize("first", KINDS)
async def test_agents_one_after_the_other_start_nobody(policy, first, mode):
    def look(question: str) -> str:
        """Look it up."""
        return "found"

    async def search(question: str) -> str:
        """Look it up."""
        return "found"

    tool = look if mode == "block" else search
    agent, then = KINDS[first](first, [tool]), KINDS["bare"]("then", [])
    with policy.rollout() as rollout:
        if mode == "block":
            await asyncio.to_thread(lambda: [agent.block("q"), then.block("q")])
        else:
            await getattr(agent, mode)("q")
            await then.run("q")
    assert [(call.sample_id, call.started_by) for call in rollout.calls] == [
        (first, None),
        (first, None),
        ("then", None),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_helper_of_any_kind_in_an_untrained_scope_is_recorded_and_not_trained_on(
    policy, kind
):
    options = {"trainable": False} if kind == "bare" else {}
    inner = KINDS[kind]("helper", [], **options)

    async def ask(question: str) -> str:
        """Ask a helper."""
        with agent_scope("helper", trainable=False):
            return await inner.run(question)

    for boss in KINDS:
        with policy.rollout() as rollout:
            await KINDS[boss](boss, [ask]).run("q")
            samples = await rollout.get_samples()
        trainable = {name: sample.trainable for name, sample in samples.items()}
        assert trainable == {boss: True, "helper": False}
        assert [call.started_by for call in rollout.calls] == [None, 0, None]
