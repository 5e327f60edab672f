"""Whatever Strands does with its agents: every wire call is theirs, and no message is lost."""

import asyncio
import itertools
import json
import threading
import warnings

import pytest
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import (
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent
from strands.models import ModelRouter
from strands.multiagent import GraphBuilder, Swarm
from strands.session import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    LocalBackend,
    RolloutContext,
    RolloutStatus,
)
from osmosis_core.policy import agent_scope
from osmosis_core.testing import Delay, Say, ScriptedPolicy, Tool, Turn
from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent

MODEL = OsmosisRolloutModel()
"""Shared by every plain agent of this module, and by every rollout."""


class Answer(BaseModel):
    number: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def pause(event: BeforeModelCallEvent) -> None:
    """Give way to other agents between the begin of a turn and its model call."""
    await asyncio.sleep(0.01)


@pytest.fixture(params=["osmosis", "plain"])
def build(request):
    """Builds agents that say their name in every request."""

    def build(name, **options):
        options = {"callback_handler": None, "name": name} | options
        options = {"model": MODEL, "system_prompt": f"You are {name}."} | options
        return (OsmosisStrandsAgent if request.param == "osmosis" else Agent)(**options)

    return build


def speaker(body):
    """Whose request this is, by its system prompt."""
    first = body["messages"][0]
    if first["role"] != "system":
        return None
    text = first["content"] if isinstance(first["content"], str) else first["content"][0]["text"]
    return text.removeprefix("You are ").removesuffix(".")


def plays(**scripts):
    """A policy in which every agent has its own script, whatever the order of the calls."""
    lock, played = threading.Lock(), dict.fromkeys(scripts, 0)

    def answer(received):
        name = speaker(received.body)
        with lock:
            position, played[name] = played[name], played[name] + 1
        return scripts[name][min(position, len(scripts[name]) - 1)]

    return answer


async def collected(policy, rollout, *, dropped=()):
    """The samples, once every call is seen to be its agent's and every answer to be kept.

    `dropped` are answers that Strands threw away on purpose.
    """
    samples = await rollout.get_samples()
    assert len(rollout.calls) == len(policy.requests)
    assert sum(len(sample.calls) for sample in samples.values()) == len(rollout.calls)
    for received in policy.requests:
        sample = samples[received.sample_id]
        name = speaker(received.body)
        assert sample.extra_fields["agent_name"] == name or name not in {
            other.extra_fields.get("agent_name") for other in samples.values()
        }
    for sample in samples.values():
        native = json.dumps(sample.messages, ensure_ascii=False)
        for call in sample.calls:
            if call.received and call.answer["content"] not in (None, "", *dropped):
                assert json.dumps(call.answer["content"], ensure_ascii=False)[1:-1] in native
            for made in (call.received and call.answer.get("tool_calls")) or []:
                assert made["id"] in native
        known = [m for call in sample.calls for m in call.messages if m["role"] == "user"]
        for message in known:
            for text in texts(message):
                assert json.dumps(text, ensure_ascii=False)[1:-1] in native or text in dropped
    return samples


def texts(message):
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part.get("type") == "text"]


def calls(samples):
    return {name: len(sample.calls) for name, sample in samples.items()}


@pytest.mark.parametrize("preserve", [False, True])
async def test_agent_as_tool_keeps_every_visit(build, preserve):
    script = plays(
        boss=[Tool("aide", {"input": "first"}), Tool("aide", {"input": "second"}), "done"],
        aide=["one", "two"],
    )
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        aide = build("aide").as_tool(preserve_context=preserve)
        await build("boss", tools=[aide]).invoke_async("go")
        samples = await collected(policy, rollout)
    assert calls(samples) == {"boss": 3, "aide": 2}
    assert [m["role"] for m in samples["aide"].messages] == ["user", "assistant"] * 2
    assert len(samples["aide"].calls[1].messages) == (4 if preserve else 2)


async def test_same_sub_agent_called_twice_in_one_turn(build):
    both = Turn((Tool("aide", {"input": "a"}), Tool("aide", {"input": "b"})))
    script = plays(boss=[both, "done"], aide=[Delay("served", before_sec=0.1)])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        await build("boss", tools=[build("aide").as_tool()]).invoke_async("go")
        samples = await collected(policy, rollout)
    assert calls(samples) == {"boss": 2, "aide": 1}
    assert "already processing" in json.dumps(samples["boss"].messages)


async def test_delegated_sub_agent_ends_the_run(build):
    script = plays(boss=[Tool("aide", {"input": "x"})], aide=["final word"])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        boss = build("boss", tools=[build("aide").as_tool(delegate=True)])
        assert "final word" in str(await boss.invoke_async("go"))
        samples = await collected(policy, rollout)
    assert calls(samples) == {"boss": 1, "aide": 1}


async def test_parallel_graph_nodes_with_one_prompt(build):
    """Nodes of a graph share one invocation state and, here, one last message."""
    names = [f"node{number}" for number in range(6)]
    scripts = {
        name: [Tool("add", {"a": 1, "b": 1}), Delay(f"{name} says", before_sec=0.02)]
        for name in names
    }
    with ScriptedPolicy(plays(**scripts, join=["joined"])) as policy:
        with policy.rollout() as rollout:
            graph = GraphBuilder()
            graph.add_node(build("join"), "join")
            for name in names:
                graph.add_node(build(name, tools=[add], hooks=[pause]), name)
                graph.add_edge(name, "join")
            graph.set_max_node_executions(10)
            await graph.build().invoke_async("the same prompt for all")
            samples = await collected(policy, rollout)
    assert all(calls(samples)[name] == 2 for name in names)
    assert all(f"{name} says" in json.dumps(samples[name].messages) for name in names)


async def test_model_given_to_agents_late_is_told_apart_in_a_graph():
    """No constructor told the model about these agents."""
    names = [f"late{number}" for number in range(6)]
    script = plays(**{name: [Delay(f"{name} says", before_sec=0.02)] for name in names})
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        graph = GraphBuilder()
        for name in names:
            options = {"system_prompt": f"You are {name}.", "hooks": [pause]}
            agent = Agent(name=name, callback_handler=None, **options)
            agent.model = MODEL
            graph.add_node(agent, name)
        graph.set_max_node_executions(10)
        await graph.build().invoke_async("the same prompt for all")
        samples = await rollout.get_samples()
    told = {r.sample_id: speaker(r.body) for r in policy.requests if r.sample_id != "main"}
    assert told and all(sample_id == name for sample_id, name in told.items())
    assert len(rollout.calls) == len(policy.requests) == len(names)
    assert sum(len(sample.calls) for sample in samples.values()) == len(names)


async def test_model_inside_a_router_of_the_user():
    def refuse(event: AfterModelCallEvent) -> None:
        if event.stop_response and "weak" in json.dumps(event.stop_response.message):
            raise RuntimeError("not good enough")

    with ScriptedPolicy(plays(a=["weak", "strong"])) as policy, policy.rollout() as rollout:
        router = ModelRouter([OsmosisRolloutModel(), OsmosisRolloutModel(temperature=0.5)])
        agent = Agent(name="a", model=router, system_prompt="You are a.", callback_handler=None)
        agent.add_hook(refuse, AfterModelCallEvent)
        await agent.invoke_async("go")
        samples = await collected(policy, rollout, dropped=["weak"])
    assert calls(samples) == {"a": 2}
    assert policy.requests[1].body["temperature"] == 0.5


async def test_helper_agent_in_a_scope_that_is_not_trained_on(build):
    with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
        helper, main = build("helper"), build("main-agent")
        with agent_scope("helper", trainable=False):
            await helper.invoke_async("go")
        await main.invoke_async("go")
        samples = await collected(policy, rollout)
    assert {name: s.trainable for name, s in samples.items()} == {
        "helper": False,
        "main-agent": True,
    }


@pytest.mark.parametrize("reset", [False, True])
async def test_graph_node_that_is_visited_twice(build, reset):
    visits = itertools.count(1)

    def goes_back(state):
        return next(visits) == 1

    script = plays(work=["draft one", "draft two"], check=["again", "fine"])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        graph = GraphBuilder()
        graph.add_node(build("work"), "work")
        graph.add_node(build("check"), "check")
        graph.add_edge("work", "check")
        graph.add_edge("check", "work", condition=goes_back)
        graph.set_entry_point("work")
        graph.reset_on_revisit(reset)
        graph.set_max_node_executions(10)
        await graph.build().invoke_async("write")
        samples = await collected(policy, rollout)
    assert calls(samples) == {"work": 2, "check": 2}


async def test_swarm_with_handoffs(build):
    script = plays(
        first=[Tool("handoff_to_agent", {"agent_name": "second", "message": "yours"}), "x"],
        second=[Tool("handoff_to_agent", {"agent_name": "first", "message": "back"}), "y"],
    )

    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        agents = [build("first"), build("second")]
        await Swarm(agents, max_handoffs=3).invoke_async("go")
        samples = await collected(policy, rollout)
    assert set(calls(samples)) == {"first", "second"}
    assert all(count >= 2 for count in calls(samples).values())


async def test_swarm_agent_is_started_by_the_handoff_to_it(build):
    def handoff(name):
        return Tool("handoff_to_agent", {"agent_name": name, "message": "yours"})

    script = plays(
        triage=[handoff("nobody"), handoff("maths"), "over", "done"],
        maths=[Tool("add", {"a": 1, "b": 2}), handoff("triage"), "over"],
    )
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        agents = [build("triage"), build("maths", tools=[add])]
        await Swarm(agents, max_handoffs=3).invoke_async("go")
        samples = await rollout.get_samples()
    triage, maths = samples["triage"].calls, samples["maths"].calls
    assert {call.started_by for call in maths} == {triage[1].index}
    assert {call.started_by for call in triage} == {None}, "back is not down"


async def test_graph_edges_start_nobody(build):
    with ScriptedPolicy(plays(a=[Tool("add", {"a": 1, "b": 2}), "x"], b=["y"])) as policy:
        with policy.rollout() as rollout:
            graph = GraphBuilder()
            graph.add_node(build("a", tools=[add]), "a")
            graph.add_node(build("b"), "b")
            graph.add_edge("a", "b")
            graph.set_max_node_executions(3)
            await graph.build().invoke_async("go")
    assert [(call.sample_id, call.started_by) for call in rollout.calls] == [
        ("a", None),
        ("a", None),
        ("b", None),
    ]


async def test_parallel_agents_of_one_name_are_separate_samples(build):
    with ScriptedPolicy(plays(twin=[Delay("hi", before_sec=0.02)])) as policy:
        with policy.rollout() as rollout:
            twins = [build("twin") for _ in range(8)]
            await asyncio.gather(*(t.invoke_async(f"prompt {i}.") for i, t in enumerate(twins)))
            samples = await collected(policy, rollout)
    assert sorted(samples) == ["twin", *(f"twin-{i}" for i in range(2, 9))]
    assert all(count == 1 for count in calls(samples).values())


async def test_names_beyond_ascii(build):
    name = "ünï ☃\n名"
    with ScriptedPolicy("ja") as policy, policy.rollout() as rollout:
        await build(name, system_prompt=None).invoke_async("grüße")
        (sample,) = (await collected(policy, rollout)).values()
    assert sample.extra_fields["agent_name"] == name
    assert policy.requests[0].sample_id == sample.id
    assert sample.id.isascii()


async def test_structured_output_is_forced_in_a_second_call(build):
    with ScriptedPolicy(plays(a=["four", Tool("Answer", {"number": 4})])) as policy:
        with policy.rollout() as rollout:
            result = await build("a").invoke_async("2+2", structured_output_model=Answer)
            samples = await collected(policy, rollout)
    assert result.structured_output == Answer(number=4)
    assert calls(samples) == {"a": 2}


async def test_older_structured_output_is_in_the_sample(build):
    with ScriptedPolicy(plays(a=["hello", '{"number":4}', "bye"])) as policy:
        with policy.rollout() as rollout:
            agent = build("a")
            await agent.invoke_async("hi")
            with pytest.warns(DeprecationWarning):
                assert await agent.structured_output_async(Answer, "2+2") == Answer(number=4)
            await agent.invoke_async("thanks")
            samples = await collected(policy, rollout)
    assert calls(samples) == {"a": 3}
    said = [m["content"][0]["text"] for m in samples["a"].messages]
    assert said == ["hi", "hello", "2+2", '{"number":4}', "thanks", "bye"]


async def test_older_structured_output_as_the_only_call(build):
    with ScriptedPolicy('{"number":4}') as policy, policy.rollout() as rollout:
        with pytest.warns(DeprecationWarning):
            await build("a").structured_output_async(Answer, "2+2")
        samples = await collected(policy, rollout)
    assert calls(samples) == {"a": 1}
    assert len(samples["a"].messages) == 2


async def test_sliding_window_forgets_nothing_in_the_sample(build):
    script = plays(a=[*(Tool("add", {"a": i, "b": 1}) for i in range(25)), "done"])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        manager = SlidingWindowConversationManager(window_size=6, per_turn=True)
        agent = build("a", tools=[add], conversation_manager=manager)
        await agent.invoke_async("the question")
        samples = await collected(policy, rollout)
    assert len(agent.messages) < 10
    assert len(samples["a"].messages) == 52
    assert calls(samples) == {"a": 26}


def overflowing(after):
    """A hook that makes Strands believe, once, that the context is too long."""
    seen = itertools.count(1)

    def overflow(event: AfterModelCallEvent) -> None:
        if next(seen) == after:
            raise ContextWindowOverflowException("too long")

    return overflow


async def test_summary_is_the_agents_call_and_in_its_history(build):
    def answer(received):
        if speaker(received.body) != "a":
            return "what was said before"
        return f"answer {len(received.body['messages'])}"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=1)
        agent = build("a", conversation_manager=manager)
        for number in range(4):
            await agent.invoke_async(f"question {number}")
        manager.reduce_context(agent)
        await agent.invoke_async("last question")
        samples = await rollout.get_samples()
    assert {r.sample_id for r in policy.requests} <= {"a", "main"}
    native = json.dumps(samples["a"].messages)
    assert "what was said before" in native
    assert all(f"question {number}" in native for number in range(4))


async def test_summary_during_a_run_is_the_agents_call(build):
    def answer(received):
        return "short" if speaker(received.body) != "a" else "long answer"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=1)
        agent = build("a", conversation_manager=manager)
        for number in range(3):
            await agent.invoke_async(f"question {number}")
        agent.add_hook(overflowing(1), AfterModelCallEvent)
        await agent.invoke_async("last question")
        samples = await rollout.get_samples()
    assert [speaker(r.body) == "a" for r in policy.requests].count(False) == 1
    assert calls(samples) == {"a": len(policy.requests)}
    native = json.dumps(samples["a"].messages)
    assert all(text in native for text in ("short", "question 0", "last question"))


async def test_summarising_agent_is_a_sample_of_its_own(build):
    def answer(received):
        return f"from {speaker(received.body)}"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        manager = SummarizingConversationManager(
            summary_ratio=0.5, preserve_recent_messages=1, summarization_agent=build("scribe")
        )
        agent = build("a", conversation_manager=manager)
        for number in range(3):
            await agent.invoke_async(f"question {number}")
        agent.add_hook(overflowing(1), AfterModelCallEvent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            await agent.invoke_async("last question")
        samples = await rollout.get_samples()
    assert calls(samples) == {"a": len(policy.requests) - 1, "scribe": 1}
    assert "from scribe" in json.dumps(samples["a"].messages)


async def test_automatic_context_manager(build):
    """`auto` offloads long tool results and summarises; both are the agent's."""

    @tool
    def read() -> str:
        """Read a long page."""
        return "lorem ipsum " * 20_000

    def answer(received):
        if speaker(received.body) != "a":
            return "a summary"
        used = sum(m["role"] == "tool" for m in received.body["messages"])
        return Tool("read") if used < 3 and len(policy.requests) < 8 else "done"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        model = OsmosisRolloutModel(context_window_limit=30_000)
        agent = build("a", model=model, tools=[read], context_manager="auto")
        await agent.invoke_async("read it all")
        samples = await rollout.get_samples()
    assert calls(samples) == {"a": len(policy.requests)}
    native = json.dumps(samples["a"].messages)
    assert "read it all" in native
    made = [c["id"] for call in samples["a"].calls for c in call.answer.get("tool_calls") or []]
    assert all(call_id in native for call_id in made)


async def test_auxiliary_model_may_be_a_sample_that_is_not_trained_on(build):
    def answer(received):
        return "short" if speaker(received.body) != "a" else "long answer"

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=1)
        aux = OsmosisRolloutModel().for_sample("summaries", rollout, trainable=False)
        agent = build("a", conversation_manager=manager, aux_model=aux)
        for number in range(3):
            await agent.invoke_async(f"question {number}")
        agent.add_hook(overflowing(1), AfterModelCallEvent)
        await agent.invoke_async("last question")
        samples = await rollout.get_samples()
    assert len(samples["summaries"].calls) == 1
    assert [samples[name].trainable for name in ("a", "summaries")] == [True, False]


async def test_25_tool_calls_in_one_turn(build):
    turn = Turn(tuple(Tool("add", {"a": i, "b": i}) for i in range(25)), text="adding")
    with ScriptedPolicy(plays(a=[turn, "done"])) as policy, policy.rollout() as rollout:
        await build("a", tools=[add]).invoke_async("go")
        samples = await collected(policy, rollout)
    results = [b for m in samples["a"].messages for b in m["content"] if "toolResult" in b]
    assert len(results) == 25
    assert [m["role"] for m in policy.requests[1].body["messages"]][-25:] == ["tool"] * 25


async def test_cancelled_agent_does_not_wait_for_the_policy(build):
    script = plays(a=[Tool("add", {"a": 1, "b": 1}), Delay("late", before_sec=30), "again"])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        agent = build("a", tools=[add])
        run = asyncio.ensure_future(agent.invoke_async("go"))
        await asyncio.to_thread(policy.wait_for_requests, 2)
        agent.cancel()
        assert (await asyncio.wait_for(run, 5)).stop_reason == "cancelled"
        samples = await collected(policy, rollout)
        assert [call.received for call in samples["a"].calls] == [True, False]
        assert "toolResult" in json.dumps(samples["a"].messages)
        assert (await agent.invoke_async("again")).stop_reason == "end_turn"


async def test_cancelling_one_agent_leaves_the_others(build):
    script = plays(a=[Delay("late", before_sec=30)], b=[Delay("slow", before_sec=0.3)])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        agents = build("a"), build("b")
        runs = [asyncio.ensure_future(agent.invoke_async("go")) for agent in agents]
        await asyncio.to_thread(policy.wait_for_requests, 2)
        agents[0].cancel()
        results = await asyncio.gather(*runs)
        samples = await collected(policy, rollout)
    assert [result.stop_reason for result in results] == ["cancelled", "end_turn"]
    assert [samples[name].calls[0].received for name in "ab"] == [False, True]


async def test_cancelled_boss_cancels_its_waiting_aide(build):
    script = plays(boss=[Tool("aide", {"input": "x"})], aide=[Delay("late", before_sec=30)])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        boss = build("boss", tools=[build("aide").as_tool()])
        run = asyncio.ensure_future(boss.invoke_async("go"))
        await asyncio.to_thread(policy.wait_for_requests, 2)
        boss.cancel()
        assert (await asyncio.wait_for(run, 5)).stop_reason == "cancelled"
        samples = await collected(policy, rollout)
    assert calls(samples) == {"boss": 1, "aide": 1}


async def test_cancelled_task_keeps_what_was_said(build):
    script = plays(a=[Tool("add", {"a": 1, "b": 1}), Delay("late", before_sec=30)])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        run = asyncio.ensure_future(build("a", tools=[add]).invoke_async("go"))
        await asyncio.to_thread(policy.wait_for_requests, 2)
        run.cancel()
        await asyncio.wait([run])
        samples = await collected(policy, rollout)
    assert [call.received for call in samples["a"].calls] == [True, False]
    assert [m["role"] for m in samples["a"].messages] == ["user", "assistant", "user"]


class Cut(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisStrandsAgent(name="a", messages=ctx.prompt, callback_handler=None)
        result = await agent.invoke_async()
        assert result.stop_reason == "max_tokens"


async def test_answer_at_its_token_limit_is_a_truncated_sample_not_an_error():
    results = []

    async def report(result):
        results.append(result)

    with ScriptedPolicy(Say("and then", finish_reason="length")) as policy, policy.rollout():
        request = ExecutionRequest("r", [{"role": "user", "content": "tell"}])
        await LocalBackend(workflow=Cut).execute(request, report)
    assert results[0].status is RolloutStatus.SUCCESS
    assert results[0].sample.truncated
    assert "and then" in json.dumps(results[0].sample.messages)


async def test_truncated_tool_call_is_whole_in_the_calls():
    half = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}

    def answer(received):
        return Say(
            "",
            finish_reason="length",
            extra={"message": {"role": "assistant", "content": None, "tool_calls": [half]}},
        )

    seen = []
    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        agent = OsmosisStrandsAgent(
            name="a", tools=[add], callback_handler=lambda **e: seen.append(e)
        )
        result = await agent.invoke_async("go")
        sample = (await rollout.get_samples())["a"]
    assert result.stop_reason == "max_tokens"
    assert seen[-1] == {"result": result}
    assert sample.truncated
    assert sample.calls[0].answer["tool_calls"][0]["function"]["arguments"] == '{"a": 1'
    assert "incomplete due to maximum token limits" in json.dumps(sample.messages)


async def test_plain_agent_at_its_token_limit_raises_as_strands_does():
    with ScriptedPolicy(Say("and", finish_reason="length")) as policy:
        with policy.rollout() as rollout:
            agent = Agent(model=MODEL, name="a", callback_handler=None)
            with pytest.raises(MaxTokensReachedException):
                await agent.invoke_async("go")
            samples = await rollout.get_samples()
    assert samples["a"].truncated


async def test_tool_arguments_that_are_not_json(build):
    """Strands runs the tool with {}; the recorded call says what the policy wrote."""
    script = plays(a=[Tool("add", '{"a": 1, "b'), "done"])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
        await build("a", tools=[add]).invoke_async("go")
        samples = await collected(policy, rollout)
    first = samples["a"].calls[0].answer["tool_calls"][0]
    assert first["function"]["arguments"] == '{"a": 1, "b'
    assert calls(samples) == {"a": 2}


async def test_synchronous_tool_that_calls_an_agent(build):
    asked = Turn(tuple(Tool("ask", {"q": f"q{i}"}) for i in range(4)))
    script = plays(boss=[asked, "done"], aide=[Delay("aided", before_sec=0.02)])
    with ScriptedPolicy(script) as policy, policy.rollout() as rollout:

        @tool
        def ask(q: str) -> str:
            """Ask an aide."""
            return str(build("aide")(q))

        await build("boss", tools=[ask]).invoke_async("go")
        samples = await collected(policy, rollout)
    assert calls(samples) == {"boss": 2, "aide": 1, "aide-2": 1, "aide-3": 1, "aide-4": 1}


async def test_model_called_by_a_tool_is_the_scope_that_the_tool_opens(build):
    @tool
    async def judge() -> str:
        """Judge."""
        with agent_scope("judge", trainable=False):
            async for _ in MODEL.stream([{"role": "user", "content": [{"text": "fair?"}]}]):
                pass
        return "fair"

    with ScriptedPolicy(Tool("judge"), "yes", "done") as policy, policy.rollout() as rollout:
        await build("a", tools=[judge]).invoke_async("go")
        samples = await rollout.get_samples()
    assert calls(samples) == {"a": 2, "judge": 1}
    assert not samples["judge"].trainable and samples["a"].trainable


async def test_callback_handler_is_given_every_delta(build):
    heard = []

    def listen(**event):
        if "data" in event:
            heard.append(event["data"])

    with ScriptedPolicy(plays(a=["one two three"])) as policy, policy.rollout() as rollout:
        await build("a", callback_handler=listen).invoke_async("count")
        await collected(policy, rollout)
    assert "".join(heard) == "one two three"


async def test_stream_that_is_left_early_frees_its_agent(build):
    with ScriptedPolicy(plays(a=["one", "two"])) as policy, policy.rollout() as rollout:
        agent = build("a")
        stream = agent.stream_async("go")
        async for event in stream:
            if "data" in event:
                break
        await stream.aclose()
        await agent.invoke_async("again")
        samples = await collected(policy, rollout, dropped=["one"])
    assert calls(samples) == {"a": 2}


async def test_hook_that_retries_records_both_answers(build):
    def again(event: AfterModelCallEvent) -> None:
        text = json.dumps(event.stop_response.message) if event.stop_response else ""
        event.retry = "bad" in text

    with ScriptedPolicy(plays(a=["bad", "good"])) as policy, policy.rollout() as rollout:
        await build("a", hooks=[again]).invoke_async("go")
        samples = await collected(policy, rollout, dropped=["bad"])
    assert [call.answer["content"] for call in samples["a"].calls] == ["bad", "good"]
    assert "bad" not in json.dumps(samples["a"].messages)


async def test_session_manager_brings_its_messages_once(build, tmp_path):
    with ScriptedPolicy(plays(a=["one", "two"])) as policy:
        for prompt in ("first", "second"):
            with policy.rollout() as rollout:
                manager = FileSessionManager(session_id="s", storage_dir=str(tmp_path))
                agent = build("a", session_manager=manager)
                await agent.invoke_async(prompt)
                sample = (await rollout.get_samples())["a"]
                assert len(sample.calls) == 1
    said = [m["content"][0]["text"] for m in sample.messages]
    assert said == ["first", "one", "second", "two"]


async def test_agent_that_serves_two_rollouts_is_a_sample_of_each(build):
    with ScriptedPolicy(plays(a=["one", "two", "three"])) as policy:
        with policy.rollout("r1") as first:
            agent = build("a")
            await agent.invoke_async("in r1")
            with policy.rollout("r2") as second:
                await agent.invoke_async("in r2")
            await agent.invoke_async("in r1 again")
            samples = [(await r.get_samples())["a"] for r in (first, second)]
    assert [r.rollout_id for r in policy.requests] == ["r1", "r2", "r1"]
    assert [len(sample.calls) for sample in samples] == [2, 1]
    said = [[m["content"][0]["text"] for m in sample.messages] for sample in samples]
    assert said[0] == ["in r1", "one", "in r1 again", "three"]
    assert said[1] == ["in r1", "one", "in r2", "two"]


async def test_agent_called_after_its_rollout_is_gone(build):
    with ScriptedPolicy("one") as policy:
        with policy.rollout("r1"):
            agent = build("a")
        with policy.rollout("r2") as second:
            await agent.invoke_async("in r2")
            samples = await collected(policy, second)
    assert {r.rollout_id for r in policy.requests} == {"r2"}
    assert calls(samples) == {"a": 1}


async def test_agent_in_a_bare_thread_is_still_its_rollouts():
    """A bare thread inherits no context variables; OsmosisStrandsAgent was bound when built."""
    with ScriptedPolicy("hi") as policy, policy.rollout("r") as rollout:
        agent = OsmosisStrandsAgent(name="a", callback_handler=None)
        thread = threading.Thread(target=lambda: agent("go"))
        thread.start()
        await asyncio.to_thread(thread.join)
        samples = await collected(policy, rollout)
    assert [(r.rollout_id, r.sample_id) for r in policy.requests] == [("r", "a")]
    assert calls(samples) == {"a": 1}


async def test_rollout_that_a_tool_opens_is_not_the_agents(build):
    with ScriptedPolicy(Tool("other"), "inner", "done") as policy:

        @tool
        async def other() -> str:
            """Call the policy elsewhere."""
            with RolloutContext(policy.base_url, rollout_id="inner") as inner:
                async for _ in MODEL.stream([{"role": "user", "content": [{"text": "q"}]}]):
                    pass
            return str([call.sample_id for call in inner.calls])

        with policy.rollout("outer") as rollout:
            await build("a", tools=[other]).invoke_async("go")
            samples = await rollout.get_samples()
    assert [r.rollout_id for r in policy.requests] == ["outer", "inner", "outer"]
    assert policy.requests[1].sample_id == "main"
    assert calls(samples) == {"a": 2}
