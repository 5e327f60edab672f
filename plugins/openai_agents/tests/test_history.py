import asyncio
import json

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from agents.run import ModelInputData

from osmosis_core.testing import Delay, ScriptedPolicy, Tool
from osmosis_openai_agents import OsmosisMemorySession, OsmosisRolloutModel
from osmosis_openai_agents.history import history_of
from osmosis_openai_agents.runs import Run

MODEL = OsmosisRolloutModel()


async def streamed(agent, given, **options):
    result = Runner.run_streamed(agent, given, **options)
    async for _ in result.stream_events():
        pass
    return result


both_ways = pytest.mark.parametrize("run", [Runner.run, streamed])


def kinds(sample):
    return [message.get("type", message.get("role")) for message in sample.messages]


@function_tool
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


@both_ways
async def test_unknown_tool_keeps_the_turn_that_named_it(run):
    agent = Agent(name="a", model=MODEL, tools=[look])
    with ScriptedPolicy(Tool("look", {"at": "x"}), Tool("fly", {})) as policy:
        with policy.rollout() as rollout:
            with pytest.raises(ModelBehaviorError, match="fly"):
                await run(agent, "go", session=OsmosisMemorySession())
            sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", "function_call", "function_call_output", "function_call"]
    assert sample.messages[-1]["name"] == "fly"


@both_ways
async def test_tool_that_raises_keeps_the_turn_that_called_it(run):
    @function_tool(failure_error_function=None)
    def explode() -> str:
        """Explode."""
        raise OSError("boom")

    agent = Agent(name="a", model=MODEL, tools=[explode])
    with ScriptedPolicy(Tool("explode")) as policy, policy.rollout() as rollout:
        with pytest.raises(Exception, match="boom"):
            await run(agent, "go")
        sample = (await rollout.get_samples())["a"]
    assert kinds(sample)[:2] == ["user", "function_call"]


@both_ways
async def test_arguments_that_are_not_json_are_kept_as_they_were(run):
    with ScriptedPolicy(Tool("look", '{"at": oops'), "sorry") as policy:
        with policy.rollout() as rollout:
            await run(Agent(name="a", model=MODEL, tools=[look]), "go")
            sample = (await rollout.get_samples())["a"]
    assert sample.messages[1]["arguments"] == '{"at": oops'
    sent = policy.requests[1].body["messages"][1]["tool_calls"][0]
    assert sent["function"]["arguments"] == '{"at": oops'


@both_ways
async def test_result_of_a_tool_that_ends_the_run_is_in_the_sample(run):
    agent = Agent(name="a", model=MODEL, tools=[look], tool_use_behavior="stop_on_first_tool")
    with ScriptedPolicy(Tool("look", {"at": "x"})) as policy, policy.rollout() as rollout:
        await run(agent, "go")
        for _ in range(2):
            sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", "function_call", "function_call_output"]
    assert sample.messages[-1]["output"] == "saw x"


@both_ways
async def test_run_out_of_turns_keeps_all_of_them(run):
    with ScriptedPolicy(Tool("look", {"at": "x"})) as policy, policy.rollout() as rollout:
        with pytest.raises(MaxTurnsExceeded):
            await run(Agent(name="a", model=MODEL, tools=[look]), "go", max_turns=2)
        sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", *["function_call", "function_call_output"] * 2]


@input_guardrail
async def no_entry(context, agent, given):
    await asyncio.sleep(0.2)
    return GuardrailFunctionOutput(None, tripwire_triggered=True)


@output_guardrail
async def no_exit(context, agent, output):
    return GuardrailFunctionOutput(None, tripwire_triggered=True)


@both_ways
async def test_input_tripwire_leaves_the_call_recorded(run):
    agent = Agent(name="a", model=MODEL, input_guardrails=[no_entry])
    with ScriptedPolicy("an answer") as policy, policy.rollout() as rollout:
        with pytest.raises(InputGuardrailTripwireTriggered):
            await run(agent, "go")
        await asyncio.sleep(0.05)
        sample = (await rollout.get_samples())["a"]
    assert [call.answer["content"] for call in sample.calls] == ["an answer"]
    assert "an answer" in json.dumps(sample.messages)


@both_ways
async def test_output_tripwire_leaves_the_answer_in_the_sample(run):
    agent = Agent(name="a", model=MODEL, output_guardrails=[no_exit])
    with ScriptedPolicy("an answer") as policy, policy.rollout() as rollout:
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await run(agent, "go")
        sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", "message"]


@both_ways
async def test_guarded_first_turn_is_still_the_starter_of_agents_in_it(run):
    @input_guardrail
    async def fine(context, agent, given):
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    target = Agent(name="target", model=MODEL)
    helper = Agent(name="helper", model=MODEL)
    agent = Agent(
        name="a",
        model=MODEL,
        input_guardrails=[fine],
        handoffs=[target],
        tools=[helper.as_tool("ask", "")],
    )
    script = Tool("ask", {"input": "?"}), "help", Tool("transfer_to_target"), "done"
    with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
        await run(agent, "go")
    assert [(c.sample_id, c.started_by) for c in rollout.calls] == [
        ("a", None),
        ("helper", 0),
        ("a", None),
        ("target", 2),
    ]


@both_ways
async def test_handoff_out_of_a_guarded_first_turn_is_started_by_it(run):
    @input_guardrail
    async def fine(context, agent, given):
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    target = Agent(name="target", model=MODEL)
    agent = Agent(name="a", model=MODEL, input_guardrails=[fine], handoffs=[target])
    with ScriptedPolicy(Tool("transfer_to_target"), "done") as policy:
        with policy.rollout() as rollout:
            await run(agent, "go")
    assert [(c.sample_id, c.started_by) for c in rollout.calls] == [("a", None), ("target", 0)]


async def test_filtered_input_is_sent_and_nothing_is_lost_or_doubled():
    def last_two(data):
        return ModelInputData(data.model_data.input[-2:], data.model_data.instructions)

    agent = Agent(name="a", model=MODEL, tools=[look])
    script = [Tool("look", {"at": str(n)}) for n in range(4)]
    with ScriptedPolicy(*script, "done") as policy, policy.rollout() as rollout:
        await Runner.run(agent, "go", run_config=RunConfig(call_model_input_filter=last_two))
        sample = (await rollout.get_samples())["a"]
    assert [len(r.body["messages"]) for r in policy.requests] == [1, 2, 2, 2, 2]
    assert kinds(sample) == ["user", *["function_call", "function_call_output"] * 4, "message"]


async def test_session_that_remembers_a_window_doubles_nothing():
    def latest(history, new):
        return history[-2:] + new

    agent, config = Agent(name="a", model=MODEL), RunConfig(session_input_callback=latest)
    with ScriptedPolicy("yes") as policy, policy.rollout() as rollout:
        session = OsmosisMemorySession()
        for number in range(4):
            await Runner.run(agent, f"q{number}", session=session, run_config=config)
        sample = (await rollout.get_samples())["a"]
    assert [len(r.body["messages"]) for r in policy.requests] == [1, 3, 3, 3]
    asked = [m["content"] for m in sample.messages if m.get("role") == "user"]
    assert asked == ["q0", "q1", "q2", "q3"]
    assert len(sample.messages) == 8


async def test_result_handed_on_by_hand_doubles_nothing():
    agent = Agent(name="a", model=MODEL, tools=[look])
    with ScriptedPolicy(Tool("look", {"at": "x"}), "one", "two") as policy:
        with policy.rollout() as rollout:
            result = await Runner.run(agent, "go")
            await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "more"}])
            sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == [
        "user",
        "function_call",
        "function_call_output",
        "message",
        "user",
        "message",
    ]


@both_ways
async def test_cancelled_run_keeps_what_was_said_and_leaves_no_task(run):
    before = asyncio.all_tasks()
    agent = Agent(name="a", model=MODEL, tools=[look])
    script = Tool("look", {"at": "x"}), Delay("late", before_sec=30)
    with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
        task = asyncio.ensure_future(run(agent, "go"))
        await asyncio.to_thread(policy.wait_for_requests, 2)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.05)
        sample = (await rollout.get_samples())["a"]
    assert task.cancelled()
    assert kinds(sample) == ["user", "function_call", "function_call_output"]
    assert sample.calls[1].error
    assert asyncio.all_tasks() <= before


async def test_samples_are_copies():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        await Runner.run(Agent(name="a", model=MODEL), [{"role": "user", "content": "q"}])
        (await rollout.get_samples())["a"].messages[0]["content"] = "changed"
        assert (await rollout.get_samples())["a"].messages[0]["content"] == "q"


async def test_system_prompt_is_in_the_calls_and_not_in_the_items():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        await Runner.run(Agent(name="a", instructions="be brief", model=MODEL), "q")
        sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", "message"]
    assert sample.calls[0].messages[0] == {"role": "system", "content": "be brief"}


async def test_reasoning_is_in_the_sample():
    from osmosis_core.testing import Say

    with ScriptedPolicy(Say("42", reasoning="six times seven")) as policy:
        with policy.rollout() as rollout:
            await Runner.run(Agent(name="a", model=MODEL), "q")
            sample = (await rollout.get_samples())["a"]
    assert kinds(sample) == ["user", "reasoning", "message"]
    assert "six times seven" in json.dumps(sample.messages)


async def test_sample_can_be_read_while_another_run_begins():
    class Outcome:
        @property
        def new_items(self):
            history.asked(Run(None), [])
            return ()

    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        history = history_of(Agent(name="a"), rollout)
        history.asked(Run(None, outcome=Outcome()), [{"role": "user", "content": "go"}])
        assert len((await history.get_sample("a")).messages) == 1
