"""What Strands does to histories, as seen on the wire: findings, chains and verbatim answers."""

import itertools

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import (
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_core.testing import Say, ScriptedPolicy, Tool
from osmosis_strands import OsmosisRolloutModel

MODEL = OsmosisRolloutModel()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(name="a", **options):
    return Agent(model=MODEL, name=name, callback_handler=None, **options)


def looping(turns):
    """A script of so many tool calls, each with other numbers, and a last word."""
    return [*(Tool("add", {"a": n, "b": 1}) for n in range(turns)), "done"]


async def collected(rollout):
    return (await rollout.get_samples())["a"]


async def test_tool_loop_is_one_chain_without_findings():
    with ScriptedPolicy(*looping(25)) as policy, policy.rollout() as rollout:
        await agent(tools=[add], system_prompt="Add.").invoke_async("go")
        sample = await collected(rollout)
    assert {call.chain for call in sample.calls} == {0} and not sample.findings
    assert [call.continues for call in sample.calls] == [None, *range(25)]


async def test_arguments_and_reasoning_are_sent_again_as_they_were_generated():
    spaced = Tool("add", '{"b":2,   "a": 1}')
    with ScriptedPolicy(spaced, Say("3", reasoning="one and two"), "bye") as policy:
        with policy.rollout():
            adder = agent(tools=[add])
            await adder.invoke_async("1 + 2?")
            await adder.invoke_async("thanks")
    told = [m for m in policy.requests[-1].body["messages"] if m["role"] == "assistant"]
    assert told[0]["tool_calls"][0]["function"]["arguments"] == '{"b":2,   "a": 1}'
    assert told[1]["reasoning_content"] == "one and two"


async def test_sliding_window_is_a_finding_that_names_the_call():
    manager = SlidingWindowConversationManager(window_size=6, per_turn=True)
    with ScriptedPolicy(*looping(6)) as policy, policy.rollout() as rollout:
        await agent(tools=[add], system_prompt="Add.", conversation_manager=manager).invoke_async(
            "go"
        )
        sample = await collected(rollout)
    assert {finding.kind for finding in sample.findings} == {"window"}
    assert all(finding.of == finding.call - 1 for finding in sample.findings)


async def test_summary_is_a_finding_of_the_first_call_that_has_it():
    manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=1)
    numbers = itertools.count()
    with ScriptedPolicy(lambda _: f"answer {next(numbers)}") as policy:
        with policy.rollout() as rollout:
            talker = agent(system_prompt="Talk.", conversation_manager=manager)
            for number in range(4):
                await talker.invoke_async(f"question {number}")
            manager.reduce_context(talker)
            await talker.invoke_async("last question")
        sample = await collected(rollout)
    (finding,) = sample.findings
    assert (finding.kind, finding.call, finding.of) == ("summary", 5, 3)


@pytest.mark.parametrize("preserve", [True, False])
async def test_agent_as_tool_names_its_starter_and_its_conversations(preserve):
    def answer(received):
        messages = received.body["messages"]
        if received.sample_id == "boss":
            asked = sum(m["role"] == "tool" for m in messages)
            return Tool("aide", {"input": f"part {asked}"}) if asked < 2 else "done"
        return f"answer to {len(messages)}"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        aide = agent("aide").as_tool(preserve_context=preserve)
        await agent("boss", tools=[aide]).invoke_async("go")
        samples = await rollout.get_samples()
    aides = samples["aide"].calls
    assert [call.started_by for call in aides] == [0, 2]
    assert [call.continues for call in aides] == [None, 1 if preserve else None]
    (root,) = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
    assert (root.sample_id, [child.sample_id for child in root.children]) == (
        "boss",
        ["aide", "aide"],
    )


async def test_arguments_that_are_not_json_are_an_edit():
    with ScriptedPolicy(Tool("add", '{"a": '), "done") as policy, policy.rollout() as rollout:
        await agent(tools=[add]).invoke_async("go")
        sample = await collected(rollout)
    assert [(finding.kind, finding.of) for finding in sample.findings] == [("edited", 0)]
