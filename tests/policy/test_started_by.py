"""Who started whom: each call names the tool call that started its agent."""

import asyncio

import httpx

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_core.policy import BASE_URL, agent_scope, async_client, bound_headers, in_tool_of
from osmosis_core.testing import ScriptedPolicy, Tool


async def agent(ask, name, tool=None):
    """Ask; when the policy asks for a tool, run it in a task and ask again."""
    with agent_scope(name):
        answer = (await ask()).json()["choices"][0]["message"]
        if answer.get("tool_calls"):
            await asyncio.create_task(tool())
            await ask()


def starters(rollout):
    return [(call.sample_id, call.started_by) for call in rollout.calls]


async def test_agents_inside_tools_name_the_call_that_asked_for_the_tool(ask):
    async def level(n):
        deeper = (lambda: level(n + 1)) if n < 4 else None
        await agent(ask, f"level-{n}", deeper)

    answers = [Tool("go"), Tool("go"), Tool("go"), "leaf", "3", "2", "1"]
    with ScriptedPolicy(*answers) as policy, policy.rollout() as rollout:
        await level(1)
    down = [("level-1", None), ("level-2", 0), ("level-3", 1), ("level-4", 2)]
    assert starters(rollout) == [*down, ("level-3", 1), ("level-2", 0), ("level-1", None)]


async def test_parallel_tools_start_children_of_one_call(ask):
    async def both():
        await asyncio.gather(agent(ask, "left"), agent(ask, "right"))

    with ScriptedPolicy(Tool("go"), "x", "y", "done") as policy, policy.rollout() as rollout:
        await agent(ask, "top", both)
    assert sorted(starters(rollout)[1:3]) == [("left", 0), ("right", 0)]


async def test_agents_one_after_the_other_start_nobody(ask):
    with ScriptedPolicy(Tool("answer"), "second") as policy, policy.rollout() as rollout:
        with agent_scope("first"):
            await ask()  # a forced tool as structured output: its answer opens nothing
        await agent(ask, "second")
    assert starters(rollout) == [("first", None), ("second", None)]


async def test_other_requests_of_a_tool_leave_the_starter_as_it_is(ask):
    async def looks_up():
        await async_client(httpx).get(f"{BASE_URL}/models")
        await agent(ask, "sub")

    with ScriptedPolicy(Tool("go"), "x", "y") as policy, policy.rollout() as rollout:
        await agent(ask, "top", looks_up)
    assert starters(rollout)[1] == ("sub", 0)


async def test_a_call_of_another_rollout_starts_nobody(ask):
    with ScriptedPolicy(Tool("go"), "x") as policy, policy.rollout("outer"):
        await ask()
        with policy.rollout("inner") as inner, agent_scope("sub"):
            await ask()
    assert starters(inner) == [("sub", None)]


async def test_adapter_names_the_parent_where_tasks_inherit_nothing(ask):
    with ScriptedPolicy(Tool("go"), "x", "y") as policy, policy.rollout() as rollout:
        with agent_scope("top"):
            await ask()
        await ask(headers=bound_headers(rollout, "sub", parent="top"))
        in_tool_of("top")
        await agent(ask, "tool")
    assert starters(rollout) == [("top", None), ("sub", 0), ("tool", 0)]


async def test_tool_that_is_over_starts_nobody_more(ask):
    with ScriptedPolicy(Tool("go"), "x", "y") as policy, policy.rollout() as rollout:
        with agent_scope("top"):
            await ask()
        end = in_tool_of("top")
        await agent(ask, "in-the-tool")
        in_tool_of("top")()
        await asyncio.create_task(asyncio.to_thread(end))  # elsewhere: its context is a copy
        await agent(ask, "after")
    assert starters(rollout) == [("top", None), ("in-the-tool", 0), ("after", None)]


async def test_tree_shows_each_agent_below_the_one_that_started_it(ask):
    with ScriptedPolicy(Tool("go"), "x", "y") as policy, policy.rollout() as rollout:
        await agent(ask, "top", lambda: agent(ask, "sub"))
        samples = await rollout.get_samples()
    (top,) = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
    assert str(top) == "top: 2 calls\n  sub: 1 call"
