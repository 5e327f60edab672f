import asyncio
import threading

import pytest
from agents import Agent, RunConfig, Runner, RunState, function_tool, handoff
from agents.extensions import handoff_filters

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_core.testing import Delay, ScriptedPolicy, Tool, Turn
from osmosis_openai_agents import OsmosisAgent, OsmosisModelProvider, OsmosisRolloutModel

MODEL = OsmosisRolloutModel()


async def streamed(agent, given, **options):
    result = Runner.run_streamed(agent, given, **options)
    async for _ in result.stream_events():
        pass
    return result


both_ways = pytest.mark.parametrize("run", [Runner.run, streamed])


def callers(policy):
    return [request.sample_id for request in policy.requests]


def starters(rollout):
    """Of each call: its agent, and the agent whose tool call started that."""
    calls = rollout.calls
    return [
        (c.sample_id, None if c.started_by is None else calls[c.started_by].sample_id)
        for c in calls
    ]


@both_ways
async def test_shared_model_knows_agents_across_a_handoff(run):
    writer = Agent(name="writer", model=MODEL)
    router = Agent(name="router", model=MODEL, handoffs=[writer])
    with ScriptedPolicy(Tool("transfer_to_writer"), "done") as policy:
        with policy.rollout() as rollout:
            result = await run(router, "write")
            samples = await rollout.get_samples()
    assert result.last_agent is writer
    assert callers(policy) == ["router", "writer"]
    assert starters(rollout) == [("router", None), ("writer", "router")]
    assert "assistant" in samples["router"].messages[-1]["output"]
    assert samples["writer"].messages[:3] == samples["router"].messages


@both_ways
@pytest.mark.parametrize("option", ["model", "model_provider"])
async def test_run_config_knows_agents_too(run, option):
    given = {"model": MODEL, "model_provider": OsmosisModelProvider()}[option]
    critic = Agent(name="critic")
    writer = Agent(name="writer", tools=[critic.as_tool("criticise", "")])
    script = Tool("criticise", {"input": "x"}), "bad", "better"
    with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
        await run(writer, "write", run_config=RunConfig(**{option: given}))
    assert callers(policy) == ["writer", "critic", "writer"]
    assert starters(rollout) == [("writer", None), ("critic", "writer"), ("writer", None)]


@both_ways
async def test_agents_as_tools_three_deep_are_each_started_by_their_caller(run):
    agent = Agent(name="d0", model=MODEL)
    for depth in (1, 2, 3):
        agent = Agent(name=f"d{depth}", model=MODEL, tools=[agent.as_tool("ask", "")])
    script = [Tool("ask", {"input": "?"})] * 3 + ["0", "1", "2", "3"]
    with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
        await run(agent, "go")
        samples = await rollout.get_samples()
    assert callers(policy) == ["d3", "d2", "d1", "d0", "d1", "d2", "d3"]
    started = dict(zip(callers(policy), [c.started_by for c in rollout.calls], strict=True))
    assert started == {"d3": None, "d2": 0, "d1": 1, "d0": 2}
    tree = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
    assert [line.strip().partition(":")[0] for line in str(tree[0]).splitlines()] == [
        "d3",
        "d2",
        "d1",
        "d0",
    ]


@both_ways
async def test_streamed_agents_as_tools_are_started_by_their_caller(run):
    events = []
    inner = Agent(name="inner", model=MODEL)
    tool = inner.as_tool("ask", "", on_stream=lambda event: events.append(event))
    outer = Agent(name="outer", model=MODEL, tools=[tool])
    with ScriptedPolicy(Tool("ask", {"input": "?"}), "in", "out") as policy:
        with policy.rollout() as rollout:
            await run(outer, "go")
    assert starters(rollout) == [("outer", None), ("inner", "outer"), ("outer", None)]
    assert events


async def test_nested_agents_of_one_name_are_two_samples():
    inner = Agent(name="twin", model=MODEL)
    outer = Agent(name="twin", model=MODEL, tools=[inner.as_tool("ask", "")])
    with ScriptedPolicy(Tool("ask", {"input": "?"}), "in", "out") as policy:
        with policy.rollout() as rollout:
            await Runner.run(outer, "go")
            samples = await rollout.get_samples()
    assert callers(policy) == ["twin", "twin-2", "twin"]
    assert starters(rollout)[1] == ("twin-2", "twin")
    assert [len(sample.messages) for sample in samples.values()] == [4, 2]


async def test_parallel_sub_agents_in_one_answer_are_told_apart():
    workers = [Agent(name=f"w{n}", model=MODEL, instructions=f"You are w{n}.") for n in range(6)]
    boss = Agent(name="boss", model=MODEL, tools=[w.as_tool(w.name, "") for w in workers])

    def answer(request):
        messages = request.body["messages"]
        if request.sample_id != "boss":
            return Delay(f"{messages[0]['content']} did {messages[1]['content']}", before_sec=0.02)
        if messages[-1]["role"] == "tool":
            return "all done"
        return Turn(tuple(Tool(w.name, {"input": f"job of {w.name}"}) for w in workers))

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        await Runner.run(boss, "go")
        samples = await rollout.get_samples()
    for worker in workers:
        told = [message["content"] for message in samples[worker.name].messages]
        assert told[0] == f"job of {worker.name}"
        assert told[1][0]["text"] == f"You are {worker.name}. did job of {worker.name}"
        assert samples[worker.name].calls[0].started_by == 0


async def test_parallel_runs_with_handoffs_are_told_apart():
    def answer(request):
        name = request.sample_id
        return (
            Delay(Tool("transfer_to_" + name.replace("from", "to")), before_sec=0.01)
            if (name.startswith("from"))
            else Delay(f"I am {name}", before_sec=0.01)
        )

    async def one(number, run):
        target = Agent(name=f"to{number}", model=MODEL)
        source = Agent(name=f"from{number}", model=MODEL, handoffs=[target])
        return (await run(source, "go")).final_output

    with ScriptedPolicy(answer) as policy, policy.rollout() as rollout:
        outputs = await asyncio.gather(*(one(n, [Runner.run, streamed][n % 2]) for n in range(10)))
    assert outputs == [f"I am to{n}" for n in range(10)]
    assert {s for s in starters(rollout) if s[1]} == {(f"to{n}", f"from{n}") for n in range(10)}


async def test_one_agent_object_runs_in_many_rollouts_at_once():
    agent = Agent(name="a", model=MODEL, tools=[echo])

    def answer(request):
        last = request.body["messages"][-1]
        if last["role"] == "user":
            return Delay(Tool("echo", {"text": last["content"]}), before_sec=0.01)
        return Delay(f"{request.rollout_id} said {last['content']}", before_sec=0.01)

    with ScriptedPolicy(answer) as policy:

        async def one(number):
            with policy.rollout(f"r{number}") as rollout:
                await Runner.run(agent, f"q{number}")
                return (await rollout.get_samples())["a"]

        samples = await asyncio.gather(*(one(number) for number in range(32)))
    for number, sample in enumerate(samples):
        assert sample.messages[0]["content"] == f"q{number}"
        assert sample.messages[-1]["content"][0]["text"] == f"r{number} said q{number}"
        assert len(sample.messages) == 4
        assert {call.rollout_id for call in sample.calls} == {f"r{number}"}


@function_tool
async def echo(text: str) -> str:
    """Say it again."""
    await asyncio.sleep(0.005)
    return text


async def test_parallel_runs_of_one_agent_in_one_rollout_keep_every_turn():
    agent = Agent(name="a", model=MODEL)
    with ScriptedPolicy(lambda r: Delay("re " + r.body["messages"][0]["content"], 0.01)) as policy:
        with policy.rollout() as rollout:
            await asyncio.gather(*(Runner.run(agent, f"q{n}") for n in range(5)))
            sample = (await rollout.get_samples())["a"]
    told = [m["content"] if "id" not in m else m["content"][0]["text"] for m in sample.messages]
    assert sorted(told) == sorted([f"q{n}" for n in range(5)] + [f"re q{n}" for n in range(5)])


async def test_clones_are_samples_of_their_own():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        agent = OsmosisAgent(name="a", instructions="one")
        clone = agent.clone(instructions="two")
        assert isinstance(clone, OsmosisAgent)
        await Runner.run(agent, "q")
        await Runner.run(clone, "q")
    assert callers(policy) == ["a", "a-2"]


@both_ways
async def test_handoff_filter_and_handoff_back_keep_attribution(run):
    clerk = Agent(name="clerk", model=MODEL)
    boss = Agent(
        name="boss",
        model=MODEL,
        handoffs=[handoff(clerk, input_filter=handoff_filters.remove_all_tools)],
    )
    clerk.handoffs = [boss]
    script = Tool("transfer_to_clerk"), Tool("transfer_to_boss"), "done"
    with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
        await run(boss, "go")
        samples = await rollout.get_samples()
    assert callers(policy) == ["boss", "clerk", "boss"]
    assert starters(rollout) == [("boss", None), ("clerk", "boss"), ("boss", None)]
    types = [m.get("type", m.get("role")) for m in samples["boss"].messages]
    assert types[:2] == ["user", "function_call"]
    assert types[-1] == "message"
    assert [m["role"] for m in policy.requests[1].body["messages"]] == ["user"]


async def test_agent_that_runs_inside_a_plain_tool_is_started_by_the_caller():
    helper = Agent(name="helper", model=MODEL)

    @function_tool
    async def ask(question: str) -> str:
        """Ask the helper."""
        return (await Runner.run(helper, question)).final_output

    @function_tool
    def ask_in_thread(question: str) -> str:
        """Ask the helper, from a thread."""
        return asyncio.run(Runner.run(helper, question)).final_output

    outer = Agent(name="outer", model=MODEL, tools=[ask, ask_in_thread])
    calls = Tool("ask", {"question": "1"}), "one", Tool("ask_in_thread", {"question": "2"}), "two"
    with ScriptedPolicy(*calls, "done") as policy, policy.rollout() as rollout:
        await Runner.run(outer, "go")
    assert [c.started_by for c in rollout.calls] == [None, 0, None, 2, None]
    assert callers(policy) == ["outer", "helper", "outer", "helper", "outer"]


@both_ways
async def test_run_that_was_interrupted_goes_on_in_the_same_sample(run):
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    agent = Agent(name="payer", model=MODEL, tools=[pay])
    with ScriptedPolicy(Tool("pay", {"amount": 5}), "done") as policy:
        with policy.rollout() as rollout:
            first = await run(agent, "pay 5")
            state = await RunState.from_string(agent, first.to_state().to_string())
            state.approve(state.get_interruptions()[0])
            await run(agent, state)
            sample = (await rollout.get_samples())["payer"]
    assert callers(policy) == ["payer", "payer"]
    types = [m.get("type", m.get("role")) for m in sample.messages]
    assert types == ["user", "function_call", "function_call_output", "message"]


async def test_threads_that_run_one_agent_are_one_sample():
    agent, start = Agent(name="a", model=MODEL), threading.Barrier(4)

    def work():
        start.wait(10)
        asyncio.run(Runner.run(agent, "go"))

    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout:
        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
        samples = await rollout.get_samples()
    assert list(samples) == ["a"]
    assert len(samples["a"].messages) == 8
