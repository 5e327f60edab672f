"""Whatever LangGraph does with its agents: every call is theirs, every message is kept once."""

import asyncio
import importlib
import operator
from typing import Annotated, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
)
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from openai import AsyncOpenAI

from osmosis_core import RetryPolicy as Patience
from osmosis_core import RolloutSample, SampleSource, get_rollout_context
from osmosis_core.policy import BASE_URL, agent_scope, async_client
from osmosis_core.testing import Say, ScriptedPolicy, Status, Tool, Turn
from osmosis_langgraph import ChatOsmosis

HTTP = importlib.import_module("httpx2" if openai.VERSION >= "3" else "httpx")
MODEL = ChatOsmosis()
"""Shared by every agent of this module, and by every rollout."""


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(name, *tools, **options):
    return create_agent(MODEL, list(tools), name=name, system_prompt=f"You are {name}.", **options)


def asking(name, inner):
    """A tool that asks an agent."""

    async def ask(question: str) -> str:
        state = await inner.ainvoke({"messages": question})
        return state["messages"][-1].text

    return tool(name, description=f"Ask {name}.")(ask)


def asking_in_a_thread(name, inner):
    """The same, synchronous: LangGraph runs it in a thread."""

    def ask(question: str) -> str:
        return inner.invoke({"messages": question})["messages"][-1].text

    return tool(name, description=f"Ask {name}.")(ask)


def plays(**scripts):
    """A policy in which every agent has its own script, known by its system prompt."""
    left = {name: list(answers) for name, answers in scripts.items()}

    def answer(received):
        name = received.body["messages"][0]["content"].removeprefix("You are ").removesuffix(".")
        return left[name].pop(0)

    return ScriptedPolicy(answer)


def said(sample):
    return [(m["role"], m["content"]) for m in sample.messages if m["content"]]


def kinds(sample):
    return {finding.kind for finding in sample.findings}


def starters(rollout):
    return [(call.sample_id, call.started_by) for call in rollout.calls]


async def run(policy, work):
    with policy, policy.rollout("r", retry=Patience(max_attempts=1)) as rollout:
        await work()
        return rollout, await rollout.get_samples()


@pytest.mark.parametrize("ask", [asking, asking_in_a_thread])
async def test_agents_in_tools_four_deep_know_who_started_them(ask):
    names, inner = ["a", "b", "c", "d"], None
    for name in reversed(names):
        inner = agent(name, *([ask("ask", inner)] if inner else []))
    up = {name: [Tool("ask", {"question": f"q{name}"}), f"from {name}"] for name in "abc"}
    rollout, samples = await run(plays(**up, d=["deep"]), lambda: inner.ainvoke({"messages": "q"}))
    assert list(samples) == names
    assert starters(rollout) == [
        *zip(names, [None, 0, 1, 2], strict=True),
        ("c", 1),
        ("b", 0),
        ("a", None),
    ]
    assert said(samples["b"]) == [
        ("system", "You are b."),
        ("user", "qa"),
        ("tool", "from c"),
        ("assistant", "from b"),
    ]


async def test_two_agents_started_in_parallel_name_the_same_call():
    boss = agent("boss", asking("x", agent("x")), asking("y", agent("y")))
    both = Turn((Tool("x", {"question": "1"}), Tool("y", {"question": "2"})))
    rollout, samples = await run(
        plays(boss=[both, "done"], x=["ex"], y=["why"]), lambda: boss.ainvoke({"messages": "q"})
    )
    assert sorted(starters(rollout)[1:3]) == [("x", 0), ("y", 0)]
    assert {text for _, text in said(samples["boss"])} >= {"ex", "why", "done"}


async def test_agent_asked_again_is_one_sample_whose_calls_name_their_own_starter():
    worker = agent("worker", add)
    boss = agent("boss", asking("ask", worker))
    script = {
        "boss": [Tool("ask", {"question": "1"}), Tool("ask", {"question": "2"}), "done"],
        "worker": [Tool("add", {"a": 1, "b": 2}), "three", "two"],
    }
    rollout, samples = await run(plays(**script), lambda: boss.ainvoke({"messages": "q"}))
    mine = [started_by for sample, started_by in starters(rollout) if sample == "worker"]
    assert mine == [0, 0, 3]
    assert [text for _, text in said(samples["worker"])] == [
        "You are worker.",
        "1",
        "3",
        "three",
        "2",
        "two",
    ]


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
async def test_supervisor_and_its_agents_are_samples_and_handoffs_are_starts():
    team = create_supervisor(
        [agent("res", add), agent("math")], model=MODEL, prompt="You are supervisor."
    ).compile()
    script = {
        "supervisor": [Tool("transfer_to_res"), Tool("transfer_to_math"), "all done"],
        "res": [Tool("add", {"a": 1, "b": 2}), "found"],
        "math": ["42"],
    }
    rollout, samples = await run(plays(**script), lambda: team.ainvoke({"messages": "q"}))
    assert starters(rollout) == [
        ("supervisor", None),
        ("res", 0),
        ("res", 0),
        ("supervisor", None),
        ("math", 3),
        ("supervisor", None),
    ]
    assert said(samples["supervisor"])[-1] == ("assistant", "all done")
    assert [text for _, text in said(samples["supervisor"])].count("q") == 1


async def test_swarm_hands_over_and_back():
    to = {name: create_handoff_tool(agent_name=name) for name in ("alice", "bob")}
    swarm = create_swarm(
        [agent("alice", to["bob"]), agent("bob", to["alice"])], default_active_agent="alice"
    ).compile()
    script = {"alice": [Tool("transfer_to_bob"), "bye"], "bob": [Tool("transfer_to_alice")]}
    rollout, samples = await run(plays(**script), lambda: swarm.ainvoke({"messages": "q"}))
    assert [s for s, _ in starters(rollout)] == ["alice", "bob", "alice"]
    assert starters(rollout)[1] == ("bob", 0)
    for name in ("alice", "bob"):
        assert any(m["role"] == "tool" for m in samples[name].messages)


async def test_nodes_of_a_graph_without_a_name_are_agents():
    async def planner(state):
        return {"messages": [await MODEL.ainvoke(state["messages"])]}

    def writer(state):
        return {"messages": [MODEL.invoke([SystemMessage("write"), *state["messages"]])]}

    graph = StateGraph(MessagesState).add_sequence([planner, writer]).add_edge(START, "planner")
    _, samples = await run(
        ScriptedPolicy("plan", "text"), lambda: graph.compile().ainvoke({"messages": "q"})
    )
    assert said(samples["planner"]) == [("user", "q"), ("assistant", "plan")]
    assert [text for _, text in said(samples["writer"])] == ["write", "q", "plan", "text"]


async def test_nodes_of_a_graph_with_a_name_are_the_graphs():
    async def node(state):
        return {"messages": [await MODEL.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile(name="solver")
    _, samples = await run(ScriptedPolicy("hi"), lambda: graph.ainvoke({"messages": "q"}))
    assert list(samples) == ["solver"]


async def test_branches_of_send_are_one_sample_told_one_after_the_other():
    class State(TypedDict):
        out: Annotated[list, operator.add]

    async def worker(state):
        first = await MODEL.ainvoke([HumanMessage(state["q"])])
        second = await MODEL.ainvoke([HumanMessage(state["q"]), first, HumanMessage("more")])
        return {"out": [second.text]}

    graph = StateGraph(State).add_node("worker", worker)
    graph.add_conditional_edges(START, lambda _: [Send("worker", {"q": q}) for q in "xy"])
    policy = ScriptedPolicy(
        lambda r: f"{len(r.body['messages'])}{r.body['messages'][0]['content']}"
    )
    _, samples = await run(policy, lambda: graph.compile().ainvoke({"out": []}))
    told = [text for _, text in said(samples["worker"])]
    assert told in (
        ["x", "1x", "more", "3x", "y", "1y", "more", "3y"],
        ["y", "1y", "more", "3y", "x", "1x", "more", "3x"],
    )


async def test_node_that_is_run_again_doubles_no_message():
    helper, runs = agent("helper", add), []

    async def node(state):
        answer = await MODEL.ainvoke([SystemMessage("You are node."), *state["messages"]])
        await helper.ainvoke({"messages": "help"})
        runs.append(answer)
        if len(runs) < 3:
            raise OSError("flaky")
        return {"messages": [answer]}

    patience = RetryPolicy(initial_interval=0.001, max_attempts=3, retry_on=OSError)
    graph = StateGraph(MessagesState).add_node("node", node, retry_policy=patience)
    script = {
        "node": ["n"] * 3,
        "helper": [Tool("add", {"a": 1, "b": 2}), "three"] * 3,
    }
    compiled = graph.add_edge(START, "node").compile()
    rollout, samples = await run(plays(**script), lambda: compiled.ainvoke({"messages": "q"}))
    assert len(rollout.calls) == 9
    assert kinds(samples["node"]) == {"duplicate"}
    assert [text for _, text in said(samples["node"])] == ["You are node.", "q", "n"]
    assert [text for _, text in said(samples["helper"])] == [
        "You are helper.",
        "help",
        "3",
        "three",
    ]


async def test_run_that_raises_keeps_what_was_said():
    solver = agent("solver", add)

    async def work():
        with pytest.raises(Exception, match="scripted"):
            await solver.ainvoke({"messages": "q"})

    _, samples = await run(ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), Status(400)), work)
    assert [m["role"] for m in samples["solver"].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]


@pytest.mark.parametrize("saver", [None, False], ids=["resumed", "run again"])
async def test_interrupt_and_resume_are_one_sample(saver):
    helper = agent("helper", checkpointer=saver)

    @tool
    async def approve(what: str) -> str:
        """Ask somebody."""
        await helper.ainvoke({"messages": what})
        return interrupt("ok?")

    boss = agent("boss", approve)
    outer = StateGraph(MessagesState).add_node("step", boss).add_edge(START, "step")
    compiled, config = (
        outer.compile(checkpointer=InMemorySaver()),
        {"configurable": {"thread_id": "t"}},
    )

    async def work():
        await compiled.ainvoke({"messages": "q"}, config)
        await compiled.ainvoke(Command(resume="yes"), config)

    script = {"boss": [Tool("approve", {"what": "w"}), "done"], "helper": ["hm", "hm"]}
    rollout, samples = await run(plays(**script), work)
    assert [text for _, text in said(samples["boss"])] == ["You are boss.", "q", "yes", "done"]
    assert [text for _, text in said(samples["helper"])] == ["You are helper.", "w", "hm"]
    assert {start for name, start in starters(rollout) if name == "helper"} == {0}
    assert len(rollout.calls) == (3 if saver is None else 4)


async def test_task_that_is_done_is_kept_when_its_entrypoint_resumes():
    @task
    async def call(question):
        return (await MODEL.ainvoke(question)).text

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(question):
        first = await call(question)
        return first + await call(interrupt("ok?"))

    config = {"configurable": {"thread_id": "t"}}

    async def work():
        await flow.ainvoke("one", config)
        await flow.ainvoke(Command(resume="two"), config)

    _, samples = await run(ScriptedPolicy("1", "2"), work)
    assert [text for _, text in said(samples["flow"])] == ["one", "1", "two", "2"]


async def test_conversation_that_goes_on_is_one_sample_and_a_new_one_is_another():
    talker, prompt = agent("talker"), [HumanMessage("hi")]

    async def work():
        state = await talker.ainvoke({"messages": prompt})
        await talker.ainvoke({"messages": [*state["messages"], HumanMessage("and?")]})
        await talker.ainvoke({"messages": prompt})

    _, samples = await run(ScriptedPolicy("one", "two", "three"), work)
    assert [text for _, text in said(samples["talker"])] == [
        "You are talker.",
        "hi",
        "one",
        "and?",
        "two",
    ]
    assert said(samples["talker-2"])[1:] == [("user", "hi"), ("assistant", "three")]


async def test_summary_is_the_agents_call_and_loses_no_message():
    middleware = SummarizationMiddleware(MODEL, trigger=("messages", 4), keep=("messages", 2))
    solver = create_agent(MODEL, [add], middleware=[middleware])
    calls = [Tool("add", {"a": n, "b": n}) for n in (1, 2)]
    _, samples = await run(
        ScriptedPolicy(*calls, "SUMMARY", "end"), lambda: solver.ainvoke({"messages": "q"})
    )
    (sample,) = samples.values()
    assert sample.id == "model"
    assert len(sample.calls) == 4
    texts = [text for _, text in said(sample)]
    assert [texts[0], *texts[-1:]] == ["q", "end"]
    assert {"2", "4"} <= set(texts)
    assert sum("SUMMARY" in text for text in texts) == 1
    assert "summary" in kinds(sample)


async def test_cleared_tool_results_stay_in_the_history():
    edit = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])
    solver = agent("solver", add, middleware=[edit])
    policy = ScriptedPolicy(*(Tool("add", {"a": n, "b": 1}) for n in (2, 3)), "end")
    rollout, samples = await run(policy, lambda: solver.ainvoke({"messages": "q"}))
    assert ("tool", "3") in said(samples["solver"])
    assert "cleared" in str(rollout.calls[2].messages)
    assert "tool_results" in kinds(samples["solver"])


async def test_scope_of_the_user_wins():
    async def work():
        with agent_scope("mine ü"):
            await agent("solver").ainvoke({"messages": "q"})

    _, samples = await run(ScriptedPolicy("hi"), work)
    assert list(samples) == ["mine%20%C3%BC"]
    assert said(samples["mine%20%C3%BC"])[-1] == ("assistant", "hi")


class Elsewhere(SampleSource):
    async def get_sample(self, sample_id):
        return RolloutSample(id=sample_id, messages=[{"role": "user", "content": "elsewhere"}])


async def test_graph_in_a_tool_of_another_frameworks_agent_is_no_part_of_that():
    """Adapters run their agents in an `agent_scope` of a sample that is theirs to tell."""

    async def work():
        name = get_rollout_context().register_agent("acme", Elsewhere())
        with agent_scope(name):
            await agent("solver").ainvoke({"messages": "q"})
            await create_agent(MODEL, []).ainvoke({"messages": "q"})
            await MODEL.ainvoke("in no graph")

    _, samples = await run(ScriptedPolicy("hi"), work)
    assert {name: len(sample.calls) for name, sample in samples.items()} == {
        "acme": 1,
        "solver": 1,
        "model": 1,
    }
    assert samples["acme"].messages == [{"role": "user", "content": "elsewhere"}]


async def test_another_agent_inside_of_a_node_has_the_calls_that_it_makes_itself():
    async def node(state):
        with agent_scope(get_rollout_context().register_agent("acme", Elsewhere())):
            return {"messages": [await MODEL.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile(name="outer")
    _, samples = await run(ScriptedPolicy("hi"), lambda: graph.ainvoke({"messages": "q"}))
    assert [len(sample.calls) for sample in samples.values()] == [1]


async def test_helper_model_has_a_sample_of_its_own_that_is_not_trained_on():
    helper = ChatOsmosis(sample_id="summaries", trainable=False)
    middleware = SummarizationMiddleware(helper, trigger=("messages", 2), keep=("messages", 1))
    solver = create_agent(MODEL, [], name="solver", middleware=[middleware])
    _, samples = await run(
        ScriptedPolicy("SUMMARY", "end"), lambda: solver.ainvoke({"messages": ["a", "b", "c"]})
    )
    assert {name: sample.trainable for name, sample in samples.items()} == {
        "summaries": False,
        "solver": True,
    }


async def test_calls_outside_of_graphs_are_main():
    _, samples = await run(ScriptedPolicy("hi"), lambda: (RunnableLambda(str) | MODEL).ainvoke("q"))
    assert said(samples["main"]) == [("user", "q"), ("assistant", "hi")]


async def test_unnamed_agents_in_different_tools_are_told_apart():
    inner = [create_agent(MODEL, []) for _ in range(2)]
    boss = agent("boss", asking("x", inner[0]), asking("y", inner[1]))
    policy = ScriptedPolicy(
        Tool("x", {"question": "1"}), "one", Tool("y", {"question": "2"}), "two", "end"
    )
    _, samples = await run(policy, lambda: boss.ainvoke({"messages": "q"}))
    assert sorted(samples) == ["boss", "model", "model-2"]


async def test_truncated_answer_ends_the_agent_and_marks_its_sample():
    policy = ScriptedPolicy(Say("and then", finish_reason="length"))
    _, samples = await run(policy, lambda: agent("a").ainvoke({"messages": "q"}))
    assert samples["a"].truncated


async def test_bare_calls_in_a_tool_name_the_tool_call():
    client = AsyncOpenAI(base_url=BASE_URL, http_client=async_client(HTTP), api_key="-")

    @tool
    async def review(text: str) -> str:
        """Review a text."""
        message = {"role": "user", "content": text}
        with agent_scope("critic"):
            await client.chat.completions.create(model="m", messages=[message])
        return "fine"

    policy = ScriptedPolicy(Tool("review", {"text": "x"}), "good", "end")
    rollout, _ = await run(policy, lambda: agent("boss", review).ainvoke({"messages": "q"}))
    assert starters(rollout) == [("boss", None), ("critic", 0), ("boss", None)]


async def test_other_models_in_a_graph_are_not_samples():
    other = GenericFakeChatModel(messages=iter(["from elsewhere"]))

    async def node(state):
        draft = await other.ainvoke(state["messages"])
        return {"messages": [draft, await MODEL.ainvoke([*state["messages"], draft])]}

    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile()
    _, samples = await run(ScriptedPolicy("mine"), lambda: graph.ainvoke({"messages": "q"}))
    assert [text for _, text in said(samples["node"])] == ["q", "from elsewhere", "mine"]


async def test_hundreds_of_rollouts_share_a_graph_and_never_meet():
    boss = agent("boss", asking("ask", agent("worker")))

    def answer(received):
        messages = received.body["messages"]
        if received.sample_id == "worker" or messages[-1]["role"] == "tool":
            return f"{received.rollout_id}:{messages[-1]['content']}"
        return Tool("ask", {"question": f"from {received.rollout_id}"})

    with ScriptedPolicy(answer) as policy:

        async def one(number):
            with policy.rollout(f"r{number}") as rollout:
                await boss.ainvoke({"messages": "q"})
                return await rollout.get_samples()

        collected = await asyncio.gather(*(one(number) for number in range(200)))
    for number, samples in enumerate(collected):
        mine = f"r{number}:from r{number}"
        assert said(samples["worker"])[-1] == ("assistant", mine)
        assert said(samples["boss"])[-1] == ("assistant", f"r{number}:{mine}")
