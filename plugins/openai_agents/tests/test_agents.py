import asyncio
import copy
import gc
import json
import weakref

import pytest
from agents import (
    Agent,
    AgentHooks,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunHooks,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    LocalBackend,
    NoActiveRolloutError,
    PolicyError,
    PolicyNotBoundError,
    RolloutContext,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.policy import agent_scope
from osmosis_core.testing import Malformed, Say, ScriptedPolicy, Status, Tool, Turn
from osmosis_openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisModelProvider,
    OsmosisRolloutModel,
)

MODEL = OsmosisRolloutModel(temperature=0.5)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def streamed(agent, given, **options):
    result = Runner.run_streamed(agent, given, **options)
    events = [event async for event in result.stream_events()]
    return result, events


async def test_agent_outside_a_rollout_shows_the_two_lines_that_help():
    for build in (lambda: OsmosisAgent(name="a"), OsmosisMemorySession):
        with pytest.raises(NoActiveRolloutError, match=r"with RolloutContext\(") as caught:
            build()
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_model_outside_a_rollout_is_not_implemented(run):
    with pytest.raises(PolicyNotBoundError) as caught:
        await run(Agent(name="a", model=MODEL), "hello")
    assert isinstance(caught.value, NotImplementedError)


async def test_agent_with_another_model_is_left_alone():
    client = AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="-")
    other = OpenAIChatCompletionsModel("other", client)
    assert OsmosisAgent(name="a", model=other).model is other


async def test_agents_name_is_the_sample_id_and_the_sessions_is_not():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        session = OsmosisMemorySession(name="memory")
        await Runner.run(OsmosisAgent("solver"), "q", session=session)
        assert session.session_id == "memory"
        assert list(await rollout.get_samples()) == ["solver"]


async def test_agent_that_never_calls_is_no_sample():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        await Runner.run(OsmosisAgent("a", handoffs=[OsmosisAgent("unused")]), "q")
        assert list(await rollout.get_samples()) == ["a"]


async def test_agent_that_was_registered_by_hand_keeps_its_id():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agent = Agent(name="a", model=MODEL)
        rollout.register_agent("chosen", agent)
        await Runner.run(agent, "q")
        samples = await rollout.get_samples()
    assert list(samples) == ["chosen"]
    assert len(samples["chosen"].messages) == 2


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_parameters_of_model_agent_and_run_meet_in_the_request(run):
    model = OsmosisRolloutModel(temperature=0.1, max_tokens=7, top_k=20, seed=3, stop=["x"])
    settings = ModelSettings(temperature=0.2, top_p=0.9)
    config = RunConfig(model_settings=ModelSettings(top_p=0.8, extra_body={"min_p": 0.1}))
    with ScriptedPolicy("hi") as policy, policy.rollout():
        agent = OsmosisAgent("a", model=model, model_settings=settings)
        await run(agent, "q", run_config=config)
    body = policy.requests[0].body
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.2, 0.8, 7)
    assert (body["top_k"], body["min_p"], body["seed"], body["stop"]) == (20, 0.1, 3, ["x"])


def test_options_that_the_rollout_decides_are_refused():
    for option in ("model", "api_key", "base_url"):
        with pytest.raises(TypeError, match=f"takes no {option}"):
            OsmosisRolloutModel(**{option: "x"})


async def test_copied_model_works():
    model = OsmosisRolloutModel(top_k=1)
    with ScriptedPolicy("hi") as policy, policy.rollout():
        await Runner.run(Agent(name="a", model=copy.deepcopy(model)), "q")
    assert policy.requests[0].body["top_k"] == 1


@pytest.mark.parametrize("named", [None, "gpt-5", "gpt-4.1"])
@pytest.mark.parametrize(
    "config",
    [
        RunConfig(model_provider=OsmosisModelProvider(temperature=0.3)),
        RunConfig(model=OsmosisRolloutModel(temperature=0.3)),
    ],
    ids=["model_provider", "model"],
)
async def test_run_config_serves_any_model_without_what_the_sdk_assumes_of_it(named, config):
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        await Runner.run(Agent(name="a", model=named), "q", run_config=config)
        assert list(await rollout.get_samples()) == ["a"]
    body = policy.requests[0].body
    assert body["temperature"] == 0.3
    assert body["model"] == "osmosis-rollout"
    assert not {"reasoning_effort", "verbosity"} & body.keys()


async def test_settings_that_the_user_chose_for_a_named_model_are_kept():
    config = RunConfig(model_provider=OsmosisModelProvider())
    agent = Agent(name="a", model="gpt-5", model_settings=ModelSettings(verbosity="high"))
    with ScriptedPolicy("hi") as policy, policy.rollout():
        await Runner.run(agent, "q", run_config=config)
    assert policy.requests[0].body["verbosity"] == "high"


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_usage_is_that_of_the_policy(run):
    with ScriptedPolicy("one two three") as policy, policy.rollout() as rollout:
        result = await run(Agent(name="a", model=MODEL), "q")
    result = result[0] if isinstance(result, tuple) else result
    usage = result.context_wrapper.usage
    assert usage.requests == 1
    assert usage.output_tokens == rollout.calls[0].usage["completion_tokens"] > 0
    assert usage.input_tokens == rollout.calls[0].usage["prompt_tokens"] > 0


async def test_run_sync_works_in_a_thread():
    agent = Agent(name="a", model=MODEL, tools=[add])
    with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "3") as policy, policy.rollout() as rollout:
        result = await asyncio.to_thread(in_its_own_loop, agent)
        samples = await rollout.get_samples()
    assert result.final_output == "3"
    assert len(samples["a"].messages) == 4


def in_its_own_loop(agent):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return Runner.run_sync(agent, "1 + 2?")
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Answer(BaseModel):
    value: int


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_structured_output_is_asked_for_and_parsed(run):
    agent = Agent(name="a", model=MODEL, output_type=Answer)
    with ScriptedPolicy('{"value": 42}') as policy, policy.rollout():
        result = await run(agent, "q")
    result = result[0] if isinstance(result, tuple) else result
    assert result.final_output == Answer(value=42)
    schema = policy.requests[0].body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["value"]


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_failing_policy_is_a_policy_error_with_its_reason(run):
    with ScriptedPolicy(Status(400, "context is too long")) as policy, policy.rollout() as rollout:
        with pytest.raises(PolicyError, match="answered 400: context is too long"):
            await run(Agent(name="a", model=MODEL), "the question")
        samples = await rollout.get_samples()
    assert len(policy.requests) == 1
    assert "the question" in json.dumps(samples["a"].messages)
    assert samples["a"].calls[0].error


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_answer_at_its_token_limit_is_an_answer_and_marks_the_sample(run):
    with ScriptedPolicy(Say("and then", finish_reason="length")) as policy:
        with policy.rollout() as rollout:
            result = await run(Agent(name="a", model=MODEL), "q")
            sample = (await rollout.get_samples())["a"]
    result = result[0] if isinstance(result, tuple) else result
    assert result.final_output == "and then"
    assert sample.truncated


@pytest.mark.parametrize("run", [Runner.run, streamed])
async def test_refusal_is_kept(run):
    with ScriptedPolicy(refusal("I will not.")) as policy, policy.rollout() as rollout:
        try:
            await run(Agent(name="a", model=MODEL), "q")
        except Exception as error:  # 0.24 makes it one, 0.20 an output
            assert "refus" in str(error).lower()
        sample = (await rollout.get_samples())["a"]
    assert sample.messages[-1]["content"][0]["refusal"] == "I will not."
    assert sample.calls[0].answer["refusal"] == "I will not."


def refusal(text):
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": None, "refusal": text},
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return Malformed(json.dumps({**body, "choices": [choice], "usage": usage}), "application/json")


async def test_streamed_run_tells_text_and_items():
    with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "it is 3") as policy, policy.rollout():
        _, events = await streamed(Agent(name="a", model=MODEL, tools=[add]), "q")
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    deltas = [e.data.delta for e in events if getattr(e, "data", None) and hasattr(e.data, "delta")]
    assert "it is 3" in "".join(deltas)


async def test_users_run_hooks_hear_everything():
    names = []

    class Heard(RunHooks):
        async def on_llm_start(self, *args):
            names.append("llm")

        async def on_tool_end(self, context, agent, tool, result):
            names.append(tool.name)

        async def on_agent_end(self, *args):
            names.append("end")

    with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "3") as policy, policy.rollout():
        await Runner.run(Agent(name="a", model=MODEL, tools=[add]), "q", hooks=Heard())
    assert names == ["llm", "add", "llm", "end"]


async def test_call_past_the_runner_belongs_to_the_agent_scope():
    from agents import ModelTracing

    with ScriptedPolicy("hi") as policy, policy.rollout(), agent_scope("judge"):
        response = await MODEL.get_response(
            "be brief",
            "q",
            ModelSettings(),
            [],
            None,
            [],
            ModelTracing.DISABLED,
            previous_response_id=None,
            conversation_id=None,
            prompt=None,
        )
    assert response.output[0].content[0].text == "hi"
    assert [m["role"] for m in policy.requests[0].body["messages"]] == ["system", "user"]
    assert policy.requests[0].sample_id == "judge"


async def test_agents_of_a_context_type_work():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        agent = OsmosisAgent[dict[str, int]](
            "a", instructions=lambda run, agent: f"budget {run.context['budget']}"
        )
        await Runner.run(agent, "q", context={"budget": 3})
    assert policy.requests[0].body["messages"][0]["content"] == "budget 3"


async def test_rollout_is_forgotten_when_it_is_over():
    agent = Agent(name="a", model=MODEL)

    async def one(policy):
        with policy.rollout() as rollout:
            await Runner.run(agent, "q")
            await streamed(agent, "q")
            assert len((await rollout.get_samples())["a"].messages) == 4
        return weakref.ref(rollout)

    with ScriptedPolicy("hi") as policy:
        gone = await asyncio.to_thread(lambda: asyncio.run(one(policy)))
    gc.collect()
    assert gone() is None


async def test_helpers_are_kept_out_of_training():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        with agent_scope("helper", trainable=False):
            await Runner.run(Agent(name="helper", model=MODEL), "q")
        await Runner.run(Agent(name="main", model=MODEL), "q")
        samples = await rollout.get_samples()
    assert {name: sample.trainable for name, sample in samples.items()} == {
        "helper": False,
        "main": True,
    }


@pytest.mark.parametrize("make", [OsmosisMemorySession, lambda: SQLiteSession("s", ":memory:")])
async def test_any_session_carries_the_conversation_and_nothing_is_told_twice(make):
    with ScriptedPolicy("one", "two", "one") as policy, policy.rollout() as rollout:
        agent, session = Agent(name="a", model=MODEL), make()
        for question in ("first", "second", "first"):
            await Runner.run(agent, question, session=session)
        sample = (await rollout.get_samples())["a"]
        if hasattr(session, "close"):
            session.close()
    assert len(policy.requests[2].body["messages"]) == 5
    assert [text(m) for m in sample.messages] == ["first", "one", "second", "two", "first", "one"]


async def test_runs_without_a_session_are_all_in_the_sample():
    with ScriptedPolicy("same") as policy, policy.rollout() as rollout:
        agent = Agent(name="a", model=MODEL)
        for _ in range(2):
            await Runner.run(agent, "question")
        sample = (await rollout.get_samples())["a"]
    assert [text(m) for m in sample.messages] == ["question", "same"] * 2


def text(message):
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


async def test_memory_session_is_a_session():
    with RolloutContext("http://127.0.0.1:1"):
        session = OsmosisMemorySession()
    items = [{"role": "user", "content": str(number)} for number in range(3)]
    await session.add_items(items)
    items[0]["content"] = "changed"
    assert [i["content"] for i in await session.get_items()] == ["0", "1", "2"]
    assert await session.get_items(limit=0) == []
    assert [i["content"] for i in await session.get_items(limit=2)] == ["1", "2"]
    assert (await session.pop_item())["content"] == "2"
    await session.clear_session()
    assert await session.pop_item() is None
    assert len(session.session_id) == 32


async def test_policy_that_fails_fails_the_rollout_as_http_error():
    class Asking(AgentWorkflow):
        async def run(self, ctx):
            await Runner.run(OsmosisAgent("a"), ctx.prompt)

    results = []

    async def keep(result):
        results.append(result)

    request = ExecutionRequest(id="r", prompt=[{"role": "user", "content": "q"}])
    with ScriptedPolicy(Status(401)) as policy, policy.rollout():
        await LocalBackend(workflow=Asking).execute(request, keep)
    assert results[0].status is RolloutStatus.FAILURE
    assert results[0].err_category is RolloutErrorCategory.HTTP_ERROR
    assert list(results[0].samples) == ["a"]


async def test_parallel_tools_of_one_answer_all_run():
    both = Turn((Tool("add", {"a": 1, "b": 2}), Tool("add", {"a": 3, "b": 4})))
    with ScriptedPolicy(both, "3 and 7") as policy, policy.rollout() as rollout:
        await Runner.run(Agent(name="a", model=MODEL, tools=[add]), "q")
        sample = (await rollout.get_samples())["a"]
    assert [m["output"] for m in sample.messages if "output" in m] == ["3", "7"]
    assert [m["role"] for m in sample.calls[1].messages] == ["user", "assistant", "tool", "tool"]


async def test_hooks_of_an_agent_are_refused_as_hooks_of_a_run():
    with ScriptedPolicy() as policy, policy.rollout():
        with pytest.raises(TypeError, match="agent-scoped hooks"):
            await Runner.run(Agent(name="a", model=MODEL), "go", hooks=AgentHooks())
