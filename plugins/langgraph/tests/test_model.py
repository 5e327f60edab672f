"""ChatOsmosis as the chat model that LangChain users know."""

import copy
import json
import os
import subprocess
import sys

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
    trim_messages,
)
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from pydantic import BaseModel

from osmosis_core import PolicyError, PolicyNotBoundError, RetryPolicy, WireOptions
from osmosis_core.policy import agent_scope
from osmosis_core.testing import Say, ScriptedPolicy, Status, Tool
from osmosis_langgraph import ChatOsmosis, OsmosisRolloutModel

MODEL = OsmosisRolloutModel(temperature=0.5, max_tokens=9)


class Answer(BaseModel):
    number: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def collected(policy, work):
    with policy, policy.rollout("r") as rollout:
        result = await work()
        return result, await rollout.get_samples()


def text_of(chunks):
    return "".join(chunk.text for chunk in chunks)


async def test_every_way_to_call_it():
    async def work():
        events = [e async for e in MODEL.astream_events("q", version="v2")]
        return [
            MODEL.invoke("q").text,
            (await MODEL.ainvoke("q")).text,
            text_of(MODEL.stream("q")),
            text_of([chunk async for chunk in MODEL.astream("q")]),
            events[-1]["data"]["output"].text,
            *(message.text for message in await MODEL.abatch(["q", "q"])),
        ]

    policy = ScriptedPolicy("hello there")
    texts, samples = await collected(policy, work)
    assert texts == ["hello there"] * 7
    assert {r.sample_id for r in policy.requests} == {"main"}
    assert all(call.usage for call in samples["main"].calls)
    body = policy.requests[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("osmosis-rollout", 0.5, 9)


@pytest.mark.parametrize("mode", ["values", "messages", ["updates", "messages"]])
async def test_streamed_agent_is_recorded_whole(mode):
    agent = create_agent(MODEL, [add], name="a")

    async def work():
        async for _ in agent.astream({"messages": "q"}, stream_mode=mode):
            pass
        for _ in agent.stream({"messages": "again"}, stream_mode=mode):
            pass

    policy = ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "3", Tool("add", {"a": 1, "b": 2}), "3")
    _, samples = await collected(policy, work)
    for name in ("a", "a-2"):
        roles = [message["role"] for message in samples[name].messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert samples[name].messages[1]["tool_calls"][0]["args"] == {"a": 1, "b": 2}
        assert samples[name].messages[-1]["usage_metadata"]["output_tokens"] > 0


async def test_real_deltas_for_who_asks_for_them():
    with ScriptedPolicy("one two three " * 20) as policy:
        with policy.rollout(wire=WireOptions(tee=True)):
            chunks = [chunk async for chunk in MODEL.astream("q")]
    assert len([chunk for chunk in chunks if chunk.text]) > 1


@pytest.mark.parametrize(
    ("method", "answer"),
    [("function_calling", Tool("Answer", {"number": 4})), ("json_schema", '{"number": 4}')],
)
async def test_structured_output(method, answer):
    asked = MODEL.with_structured_output(Answer, method=method)

    async def work():
        with agent_scope("s"):
            return [await asked.ainvoke("2+2"), asked.invoke("2+2")]

    results, samples = await collected(ScriptedPolicy(answer), work)
    assert results == [Answer(number=4)] * 2
    assert len(samples["s"].calls) == 2


async def test_agent_with_a_response_format():
    agent = create_agent(MODEL, [], response_format=Answer, name="a")
    state, samples = await collected(
        ScriptedPolicy(Tool("Answer", {"number": 4})), lambda: agent.ainvoke({"messages": "q"})
    )
    assert state["structured_response"] == Answer(number=4)
    assert [m["role"] for m in samples["a"].messages] == ["user", "assistant", "tool"]


async def test_native_messages_are_langchains_own():
    agent = create_agent(MODEL, [add], name="a", system_prompt="Add.")
    state, samples = await collected(
        ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "3"),
        lambda: agent.ainvoke({"messages": "q"}),
    )
    native = convert_to_messages(copy.deepcopy(samples["a"].messages))
    assert [type(m) for m in native[1:]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert [m.id for m in native[1:]] == [m.id for m in state["messages"]]
    assert native[2].tool_calls == state["messages"][1].tool_calls
    assert json.dumps(samples["a"].messages)


async def test_images_of_the_prompt_go_out_as_they_came():
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    prompt = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]
    agent = create_agent(MODEL, [], name="a")
    policy = ScriptedPolicy("a cat")
    await collected(policy, lambda: agent.ainvoke({"messages": prompt}))
    assert part in policy.requests[0].body["messages"][0]["content"]


async def test_broken_tool_arguments_end_the_run_and_are_kept():
    agent = create_agent(MODEL, [add], name="a")
    _, samples = await collected(
        ScriptedPolicy(Tool("add", "{broken")), lambda: agent.ainvoke({"messages": "q"})
    )
    assert samples["a"].messages[-1]["invalid_tool_calls"][0]["args"] == "{broken"


async def test_reasoning_is_kept_in_the_calls():
    _, samples = await collected(
        ScriptedPolicy(Say("4", reasoning="two and two")), lambda: MODEL.ainvoke("2+2")
    )
    assert samples["main"].calls[0].answer["reasoning_content"] == "two and two"


@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_failing_policy_is_a_policy_error(how):
    with ScriptedPolicy(Status(401, "who are you")) as policy, policy.rollout():
        with pytest.raises(PolicyError, match="who are you"):
            list(getattr(MODEL, how)("q"))
    assert len(policy.requests) == 1


async def test_context_overflow_stays_what_langchain_knows():
    from langchain_core.exceptions import ContextOverflowError

    full = Status(400, "context_length_exceeded")
    with ScriptedPolicy(full) as policy, policy.rollout(retry=RetryPolicy(max_attempts=1)):
        with pytest.raises(ContextOverflowError):
            await MODEL.ainvoke("q")


async def test_outside_of_rollouts_only_calling_is_an_error():
    model = copy.deepcopy(MODEL).bind_tools([add])
    with pytest.raises(PolicyNotBoundError, match="ChatOsmosis"):
        await model.ainvoke("q")
    with pytest.raises(PolicyNotBoundError):
        list(MODEL.stream("q"))


@pytest.mark.parametrize("name", ["model", "base_url", "api_key", "max_retries"])
def test_what_the_rollout_decides_is_refused(name):
    with pytest.raises(TypeError, match=f"takes no {name}"):
        ChatOsmosis(**{name: 7})


async def test_configured_and_bound_copies_work():
    model = ChatOsmosis().configurable_fields(temperature=ConfigurableField(id="t"))
    policy = ScriptedPolicy("hi")

    async def work():
        await model.with_config(configurable={"t": 0.25}).ainvoke("q")
        await MODEL.bind(stop=["x"], extra_headers={"x-mine": "1"}).ainvoke("q")

    await collected(policy, work)
    assert policy.requests[0].body["temperature"] == 0.25
    assert policy.requests[1].body["stop"] == ["x"]
    assert policy.requests[1].headers["x-mine"] == "1"


def test_counting_tokens_needs_no_network():
    messages = [HumanMessage("word " * 100), AIMessage("short")]
    kept = trim_messages(messages, max_tokens=20, token_counter=MODEL, strategy="last")
    assert kept == messages[1:]


QUIET = """
import asyncio, os, sys
from osmosis_core.plugins import get_plugins
assert "langgraph" in [framework.name for framework in get_plugins().frameworks]
import osmosis_langgraph
assert not {"langchain_core", "langgraph", "openai"} & sys.modules.keys()

def loopback_only(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "127.0.0.1", b"127.0.0.1"):
        raise SystemExit(f"name resolution of {args[0]!r}")

sys.addaudithook(loopback_only)
before = dict(os.environ)
from langchain.agents import create_agent
from langsmith.utils import tracing_is_enabled
from osmosis_core.testing import ScriptedPolicy
assert not tracing_is_enabled()
with ScriptedPolicy("hi") as policy, policy.rollout():
    agent = create_agent(osmosis_langgraph.ChatOsmosis(), [])
    print(asyncio.run(agent.ainvoke({"messages": "q"}))["messages"][-1].text)
assert dict(os.environ) == before
"""


def test_finding_the_plugin_is_light_and_running_it_is_quiet():
    hostile = {"OPENAI_PROXY": "http://elsewhere", "OPENAI_API_BASE": "http://elsewhere"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LANG", "OPENAI"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET],
        env={**kept, **hostile},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("hi\n", "")
