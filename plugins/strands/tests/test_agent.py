import asyncio
import copy
import importlib.util
import json
import threading

import pytest
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.models import Model

import osmosis_strands
from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    LocalBackend,
    NoActiveRolloutError,
    PolicyNotBoundError,
    RetryPolicy,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.testing import Say, ScriptedPolicy, Status, Tool, Turn
from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def quiet(**options):
    return OsmosisStrandsAgent(callback_handler=None, **options)


async def test_documented_constructor_is_that_of_strands_agent():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        model = OsmosisRolloutModel(params={"temperature": 0.5})
        agent = OsmosisStrandsAgent(
            model, [{"role": "user", "content": "q"}], [add], "be brief", None, None
        )
        await agent.invoke_async()
    body = policy.requests[0].body
    assert body["temperature"] == 0.5
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["name"] == "add"


async def test_sample_id_is_name_then_agent_id_then_fresh():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        quiet(name="named", agent_id="ident")
        quiet(agent_id="ident")
        quiet()
        ids = list(await rollout.get_samples())
    assert ids[:2] == ["named", "ident"]
    assert len(ids[2]) == 32


def test_agent_outside_a_rollout_shows_the_two_lines_that_help():
    with pytest.raises(NoActiveRolloutError, match=r"with RolloutContext\(") as caught:
        quiet(name="a", model=OsmosisRolloutModel())
    assert isinstance(caught.value, RuntimeError)


async def test_model_outside_a_rollout_is_not_implemented():
    with pytest.raises(PolicyNotBoundError) as caught:
        async for _ in OsmosisRolloutModel().stream([]):
            pass
    assert isinstance(caught.value, NotImplementedError)


async def test_other_models_are_left_alone():
    class Fixed(Model):
        def update_config(self, **config): ...
        def get_config(self):
            return {}

        async def structured_output(self, *args, **kwargs):
            yield {}

        async def stream(self, *args, **kwargs):
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": "fixed"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        assert "fixed" in str(await quiet(model=Fixed()).invoke_async("q"))
        assert await rollout.get_samples() == {}
    assert policy.requests == []


async def test_failing_constructor_registers_nothing():
    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        with pytest.raises(ValueError, match="agent"):
            quiet(name="a", agent_id="bad/id")
        assert await rollout.get_samples() == {}


def test_litellm_model_without_litellm_says_what_to_install():
    if importlib.util.find_spec("litellm"):
        pytest.skip("LiteLLM is installed here; test_litellm_install.py covers it")
    with pytest.raises(ImportError, match=r"pip install 'osmosis-strands\[litellm\]'"):
        osmosis_strands.LiteLLMRolloutModel  # noqa: B018 - the import is the test


def test_options_that_the_rollout_decides_are_refused():
    for option in ("model_id", "client_args", "api_key", "base_url"):
        with pytest.raises(TypeError, match=f"takes no {option}"):
            OsmosisRolloutModel(**{option: "x"})


async def test_sampling_keywords_are_sampling_parameters():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        model = OsmosisRolloutModel(temperature=0.25, max_tokens=7)
        await quiet(model=model).invoke_async("q")
    assert policy.requests[0].body["temperature"] == 0.25
    assert policy.requests[0].body["max_tokens"] == 7


async def test_parameters_of_the_engine_reach_the_wire():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        await quiet(model=OsmosisRolloutModel(params={"top_k": 20, "min_p": 0.1})).invoke_async("q")
    assert policy.requests[0].body["top_k"] == 20
    assert policy.requests[0].body["min_p"] == 0.1


async def test_callback_handler_gets_real_deltas():
    deltas = []

    def watch(**event):
        if "data" in event:
            deltas.append(event["data"])

    with ScriptedPolicy("0123456789abcdef" * 4) as policy, policy.rollout():
        await OsmosisStrandsAgent(callback_handler=watch).invoke_async("q")
        watched, deltas = deltas, []
        await quiet().invoke_async("q")
    assert len(watched) == 4
    assert "".join(watched) == "0123456789abcdef" * 4


async def test_same_words_put_in_by_hand_are_each_kept():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agent = quiet(name="a", messages=[{"role": "user", "content": "start"}])
        await agent.invoke_async()
        for _ in range(3):
            agent.messages.append({"role": "user", "content": [{"text": "continue"}]})
            await agent.invoke_async()
        messages = (await rollout.get_samples())["a"].messages
    texts = [m["content"][0]["text"] for m in messages]
    assert texts == ["start", "hi", *["continue", "hi"] * 3]


async def test_for_sample_reaches_its_rollout_from_anywhere():
    model = OsmosisRolloutModel()
    with ScriptedPolicy("hi") as policy:
        rollout = policy.rollout("there")
        bound = model.for_sample("helper", rollout)
        async for _ in bound.stream([{"role": "user", "content": [{"text": "q"}]}]):
            pass
        with pytest.raises(PolicyNotBoundError):
            async for _ in model.stream([]):
                pass
    assert [(r.rollout_id, r.sample_id) for r in policy.requests] == [("there", "helper")]
    assert [call.sample_id for call in rollout.calls] == ["helper"]


def test_model_copies_deeply_without_its_client():
    model = OsmosisRolloutModel(params={"stop": ["x"]})
    copied = copy.deepcopy(model)
    copied.config["params"]["stop"].append("y")
    assert model.config["params"] == {"stop": ["x"]}


async def test_plain_agent_with_the_model_is_a_sample_with_history():
    shared = OsmosisRolloutModel()
    with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "three", "bye") as policy:
        with policy.rollout() as rollout:
            agent = Agent(model=shared, name="plain", tools=[add], callback_handler=None)
            await agent.invoke_async("1+2?")
            await agent.invoke_async("thanks")
            sample = (await rollout.get_samples())["plain"]
    assert [m["role"] for m in sample.messages] == ["user", "assistant"] * 3
    assert len(sample.calls) == 3
    assert {r.sample_id for r in policy.requests} == {"plain"}


async def test_plain_agents_in_parallel_are_told_apart():
    shared = OsmosisRolloutModel()
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agents = [Agent(model=shared, name=f"a{i}", callback_handler=None) for i in range(6)]
        await asyncio.gather(*(a.invoke_async(f"I am {a.name}") for a in agents))
        samples = await rollout.get_samples()
    for name, sample in samples.items():
        assert f"I am {name}" in json.dumps(sample.messages)
        assert f"I am {name}" in json.dumps(sample.calls[0].messages)
    assert len(samples) == 6


async def test_history_survives_the_sliding_window():
    turns = [Tool("add", {"a": i, "b": 1}) for i in range(25)]
    with ScriptedPolicy(*turns, "done") as policy, policy.rollout() as rollout:
        manager = SlidingWindowConversationManager(window_size=6)
        agent = quiet(name="a", tools=[add], conversation_manager=manager)
        await agent.invoke_async("the question")
        sample = (await rollout.get_samples())["a"]
    assert len(agent.messages) < 10
    assert len(sample.messages) == 52
    assert sample.messages[0]["content"] == [{"text": "the question"}]


async def test_history_survives_resets_of_an_agent_used_as_a_tool():
    with ScriptedPolicy(
        Tool("helper", {"input": "first"}),
        "one",
        Tool("helper", {"input": "second"}),
        "two",
        "done",
    ) as policy:
        with policy.rollout() as rollout:
            helper = quiet(name="helper", description="helps")
            await quiet(name="boss", tools=[helper.as_tool()]).invoke_async("go")
            samples = await rollout.get_samples()
    native = json.dumps(samples["helper"].messages)
    assert all(text in native for text in ("first", "one", "second", "two"))
    assert [len(samples[name].calls) for name in ("boss", "helper")] == [3, 2]


async def test_messages_put_in_by_hand_are_kept():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agent = quiet(name="a", messages=[{"role": "user", "content": "same"}])
        await agent.invoke_async()
        agent.messages.append({"role": "user", "content": [{"text": "by hand"}]})
        await agent.invoke_async()
        await agent.invoke_async("same")
        messages = (await rollout.get_samples())["a"].messages
    texts = [m["content"][0]["text"] for m in messages]
    assert texts == ["same", "hi", "by hand", "hi", "same", "hi"]


async def test_sample_has_no_internal_keys_and_is_a_copy():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agent = quiet(name="a")
        await agent.invoke_async("q")
        sample = (await rollout.get_samples())["a"]
        sample.messages[0]["content"][0]["text"] = "changed"
        again = (await rollout.get_samples())["a"]
    assert all(set(m) == {"role", "content"} for m in again.messages)
    assert again.messages[0]["content"] == [{"text": "q"}]


async def test_synchronous_call_works_and_warns():
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        agent = quiet(name="a")
        with pytest.warns(RuntimeWarning, match="await agent.invoke_async"):
            result = agent("q")
        assert "hi" in str(result)
        assert len((await rollout.get_samples())["a"].calls) == 1


async def test_synchronous_call_in_a_tool_thread_does_not_warn():
    threads = []
    with ScriptedPolicy(Tool("ask", {"q": "x"}), "from helper", "done") as policy:
        with policy.rollout() as rollout:
            helper = quiet(name="helper")

            @tool
            def ask(q: str) -> str:
                """Ask the helper."""
                threads.append(threading.current_thread())
                return str(helper(q))

            await quiet(name="boss", tools=[ask]).invoke_async("go")
            samples = await rollout.get_samples()
    assert threads[0] is not threading.main_thread()
    assert [call.sample_id for call in rollout.calls] == ["boss", "helper", "boss"]
    assert "from helper" in json.dumps(samples["boss"].messages)


async def test_several_tools_in_one_turn_are_all_in_the_sample():
    turn = Turn(tuple(Tool("add", {"a": i, "b": i}) for i in range(5)), text="adding")
    with ScriptedPolicy(turn, "done") as policy, policy.rollout() as rollout:
        await quiet(name="a", tools=[add]).invoke_async("go")
        sample = (await rollout.get_samples())["a"]
    results = [b for m in sample.messages for b in m["content"] if "toolResult" in b]
    assert len(results) == 5
    assert [m["role"] for m in policy.requests[1].body["messages"]][-5:] == ["tool"] * 5


async def test_structured_output_is_the_agents_call():
    class Answer(BaseModel):
        number: int

    with ScriptedPolicy(Say('{"number": 4}')) as policy, policy.rollout() as rollout:
        agent = quiet(name="a")
        events = agent.model.structured_output(
            Answer, [{"role": "user", "content": [{"text": "2+2"}]}]
        )
        outputs = [event["output"] async for event in events if "output" in event]
    assert outputs == [Answer(number=4)]
    assert [call.sample_id for call in rollout.calls] == ["a"]


async def test_refused_call_is_one_policy_error_with_its_text():
    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await quiet(name="a", messages=ctx.prompt).invoke_async()

    results = []

    async def keep(result):
        results.append(result)

    with ScriptedPolicy(Status(401, "no such key sk-1"), api_key=None) as policy:
        with policy.rollout(retry=RetryPolicy(max_attempts=1)):
            request = ExecutionRequest("r", [{"role": "user", "content": "q"}])
            await LocalBackend(workflow=Workflow).execute(request, keep)
    assert results[0].status is RolloutStatus.FAILURE
    assert results[0].err_category is RolloutErrorCategory.HTTP_ERROR
    assert "answered 401" in results[0].err_message
    assert "check the API key" in results[0].err_message
    assert results[0].samples["a"].messages[0]["content"] == [{"text": "q"}]
