"""Every call is recorded as it went over the wire, without the key."""

import asyncio
import json
import logging
from types import ModuleType, SimpleNamespace

import httpx
import pytest

from osmosis_core import PolicyCall, hookimpl, plugins
from osmosis_core.policy import agent_scope, async_client
from osmosis_core.policy.calls import UNFINISHED
from osmosis_core.testing import (
    Cut,
    Delay,
    Endless,
    Malformed,
    Say,
    ScriptedPolicy,
    Status,
    Tool,
    Turn,
    Web,
)

KEY = "sk-secret/7f3a9b"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture
def observed():
    """Calls that an installed plugin observes."""
    calls: list[PolicyCall] = []

    @hookimpl
    def osmosis_policy_call_finished(call):
        calls.append(call)

    module = ModuleType("observer")
    module.osmosis_policy_call_finished = osmosis_policy_call_finished
    entry_point = SimpleNamespace(name="observer", value="observer", dist=None, load=lambda: module)
    installed = plugins.get_plugins()
    plugins._plugins = plugins.PluginManager([entry_point], disabled="")
    yield calls
    plugins._plugins = installed


async def test_request_is_recorded_as_it_was_sent(ask):
    messages = [{"role": "system", "content": "ä 天 🙂"}, {"role": "user", "content": "hi"}]
    with ScriptedPolicy() as policy, policy.rollout("r") as rollout:
        await ask(messages=messages, tools=TOOLS, temperature=0.5, seed=7)
    (record,) = rollout.calls
    assert record.request == policy.requests[0].body
    assert record.messages == messages and record.tools == TOOLS
    assert record.request["temperature"] == 0.5 and record.request["seed"] == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_usage_and_finish_reason_are_recorded(call, stream):
    body = {"stream": stream, "stream_options": {"include_usage": True}}
    record = await call(Say("hello", finish_reason="stop", reasoning="because"), body=body)
    assert record.answer == {
        "role": "assistant",
        "content": "hello",
        "reasoning_content": "because",
    }
    assert record.finish_reason == "stop" and record.model == "osmosis-rollout"
    assert record.usage == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    assert record.response_id == "scripted-1" and record.rollout_id == "r"
    assert record.duration_sec > 0 and record.started_at > 1e9


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_are_recorded_with_their_exact_arguments(call, stream):
    turn = Turn((Tool("add", '{"a": 1,  "b":2}'), Tool("sub", {"ä": [1]})), text="let me see")
    record = await call(turn, body={"stream": stream})
    assert [c["function"] for c in record.answer["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1,  "b":2}'},
        {"name": "sub", "arguments": json.dumps({"ä": [1]})},
    ]
    assert [c["id"] for c in record.answer["tool_calls"]] == ["call_1", "call_2"]
    assert record.answer["content"] == "let me see" and record.finish_reason == "tool_calls"


async def test_stream_and_plain_answer_give_the_same_record(call):
    turn = Turn((Tool("add", {"a": 1}), Tool("add", {"a": 2})), text="both at once, as it were")
    plain, streamed = [await call(turn, body={"stream": stream}) for stream in (False, True)]
    assert plain.answer == streamed.answer
    assert plain.finish_reason == streamed.finish_reason


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_and_logprobs_of_vllm_are_recorded(call, stream):
    body = {"stream": stream, "return_token_ids": True, "logprobs": True}
    record = await call("hello", body=body)
    assert record.prompt_token_ids == list(b"hi")
    assert record.completion_token_ids == list(b"hello")
    assert record.logprobs == [0.0] * 5


@pytest.mark.parametrize(
    "extra",
    [
        {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4]},
        {"logprobs": {"content": [{"id": 3, "logprob": -1.0}, {"id": 4, "logprob": -2.0}]}},
        {"logprobs": {"content": [{"token": "token_id:3"}, {"token": "token_id:4"}]}},
    ],
)
async def test_token_ids_of_other_engines_are_recorded(call, extra):
    record = await call(Say("x", extra=extra))
    assert record.completion_token_ids == [3, 4]
    assert record.prompt_token_ids == extra.get("prompt_token_ids")


async def test_token_ids_in_an_extra_chunk_of_sglang_are_recorded(call):
    choice = {"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    ids = {"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[3]]}}
    events = [json.dumps({"id": "a", "choices": [choice]}), json.dumps(ids), "[DONE]"]
    record = await call(Malformed("".join(f"data: {e}\n\n" for e in events)))
    assert record.prompt_token_ids == [1, 2] and record.completion_token_ids == [3]


async def test_what_the_endpoint_did_not_return_stays_none(call):
    record = await call("hello")
    assert (record.prompt_token_ids, record.completion_token_ids, record.logprobs) == (None,) * 3


async def test_calls_are_listed_in_the_order_in_which_they_began(ask, quick):
    script = [Delay("slow", before_sec=0.2), "fast", Status(400)]
    with ScriptedPolicy(*script) as policy, policy.rollout("r", retry=quick) as rollout:
        slow = asyncio.create_task(ask())
        while not policy.requests:
            await asyncio.sleep(0.01)
        assert rollout.calls[0].error == UNFINISHED
        await ask()
        with agent_scope("helper", trainable=False):
            await ask()
        await slow
    assert [c.index for c in rollout.calls] == [0, 1, 2]
    assert [c.answer and c.answer["content"] for c in rollout.calls] == ["slow", "fast", None]
    assert [c.trainable for c in rollout.calls] == [True, True, False]
    assert len({c.call_id for c in rollout.calls}) == 3


async def test_calls_appear_in_the_sample_that_made_them(ask):
    with ScriptedPolicy("one", "two") as policy, policy.rollout("r") as rollout:
        for name in ("first", "second"):
            with agent_scope(name):
                await ask()
        samples = await rollout.get_samples()
    assert {k: s.messages[-1]["content"] for k, s in samples.items()} == {
        "first": "one",
        "second": "two",
    }


ECHOES = {
    "message": Status(401, f"Incorrect API key provided: {KEY}"),
    "long message": Status(400, "x" * 285 + KEY),
    "escaped": Malformed('{"error": {"message": "bad key sk-secret\\/7f3a9b"}}'),
    "stream event": Malformed(f'data: {{"error": "bad key {KEY}"}}\n\n'),
    "long chunk": Malformed("data: " + "x" * 110 + KEY + "\n\n"),
    "json": Malformed(f'{{"detail": "{KEY}"', content_type="application/json"),
    "page": Web(f"<html>{KEY}</html>"),
}


@pytest.mark.parametrize("name", ECHOES)
async def test_key_is_in_no_record_log_or_error_though_the_endpoint_echoes_it(
    ask, caplog, quick, name
):
    class Refusing(ScriptedPolicy):
        async def respond(self, request, body):
            response = await super().respond(request, body)
            response.set_status(400 if name == "escaped" else response.status)
            return response

    caplog.set_level(logging.DEBUG)
    with Refusing(ECHOES[name], api_key=KEY) as policy, policy.rollout(retry=quick) as rollout:
        answer = await ask()
    assert policy.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert answer.status_code >= 400 and rollout.calls[0].error
    said = f"{answer.text} {answer.headers} {rollout.calls[0]!r} {rollout!r} {caplog.text}"
    assert "secret" not in said


async def test_key_is_in_no_record_of_a_good_call(ask, caplog):
    caplog.set_level(logging.DEBUG)
    with ScriptedPolicy(api_key=KEY) as policy, policy.rollout("r") as rollout:
        answer = await ask()
    assert answer.extensions["osmosis_call"] is rollout.calls[0]
    assert "secret" not in f"{answer.text} {rollout.calls!r} {rollout!r} {caplog.text}"


async def test_observers_get_each_call_once_when_it_has_ended(ask, observed, quick):
    script = ["ok", Status(500), "after a retry", Status(400), Web()]
    with ScriptedPolicy(*script) as policy, policy.rollout("r", retry=quick) as rollout:
        for _ in range(4):
            await ask()
    assert observed == list(rollout.calls)
    assert [c.received for c in observed] == [True, True, False, False]


@pytest.mark.parametrize("how", ["cancelled", "deadline", "cut"])
async def test_observers_get_a_call_without_an_answer_once(call, observed, how):
    policies = {
        "cancelled": lambda: asyncio.wait_for(call(Endless()), 0.2),
        "deadline": lambda: call(Endless(), deadline=0.0),
        "cut": lambda: call(Cut(1)),
    }
    try:
        await policies[how]()
    except TimeoutError:
        assert how == "cancelled"
    assert len(observed) == 1 and not observed[0].received and observed[0].duration_sec > 0


async def test_half_a_surrogate_pair_is_answered_and_sent_without_raising(ask):
    with ScriptedPolicy("\ud83d") as policy, policy.rollout("r") as rollout:
        answer = await ask()
        raw = json.dumps({"messages": [{"role": "user", "content": "\ud83d"}]}).encode()
        again = await async_client(httpx).post(answer.request.url, content=raw)
    assert answer.status_code == again.status_code == 200
    assert [c.error for c in rollout.calls] == [None, None]
