"""The openai SDK as the client above: it sees one clean answer, or one error that says why."""

import asyncio
import logging
import time

import httpx
import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from osmosis_core import PolicyNotBoundError, RetryPolicy
from osmosis_core.errors import categorize, failed_call
from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client, client
from osmosis_core.testing import Cut, Delay, Say, ScriptedPolicy, Status, Tool, Turn, Web

HI = [{"role": "user", "content": "hi"}]
LIB = httpx2 if issubclass(openai.DefaultAsyncHttpxClient, httpx2.AsyncClient) else httpx
OWN = {"base_url": BASE_URL, "api_key": "sdk-key", "max_retries": 0}
SHARED = AsyncOpenAI(http_client=async_client(LIB), **OWN)


def chat(**options):
    return SHARED.chat.completions.create(**{"model": MODEL, "messages": HI, **options})


def causes(error: BaseException | None):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def test_answer_arrives_and_nothing_of_the_sdk_reaches_the_wire():
    with ScriptedPolicy("hello", api_key="k") as policy, policy.rollout("r"):
        answer = await chat(extra_headers={"x-stainless-retry-count": "4"})
    sent = policy.requests[0].headers
    assert answer.choices[0].message.content == "hello"
    assert sent["authorization"] == "Bearer k" and "sdk-key" not in str(sent)
    assert not [name for name in sent if "stainless" in name] and "OpenAI" not in sent["user-agent"]


async def test_synchronous_sdk_works_in_tool_threads():
    sdk = OpenAI(http_client=client(LIB), **OWN)
    with ScriptedPolicy("hello") as policy, policy.rollout("r") as rollout, agent_scope("tool"):
        answer = await asyncio.to_thread(sdk.chat.completions.create, model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "hello"
    assert rollout.calls[0].sample_id == "tool"


async def test_stream_is_parsed_by_the_sdk():
    turn = Turn(
        (Tool("add", {"a": 1}), Tool("sub", '{"b":  2}')), text="a longer text than one chunk"
    )
    with ScriptedPolicy(turn) as policy, policy.rollout("r") as rollout:
        stream = await chat(stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert "".join(delta.content or "" for delta in deltas) == "a longer text than one chunk"
    assert [(c.index, c.function.arguments) for c in calls] == [(0, '{"a": 1}'), (1, '{"b":  2}')]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.total_tokens == rollout.calls[0].usage["total_tokens"]


async def test_streaming_helper_of_the_sdk_accumulates_the_same_answer():
    with ScriptedPolicy(Tool("add", {"a": 1})) as policy, policy.rollout("r") as rollout:
        async with SHARED.chat.completions.stream(model=MODEL, messages=HI) as stream:
            final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    (recorded,) = rollout.calls[0].answer["tool_calls"]
    assert (call.id, call.function.name) == (recorded["id"], "add")
    assert call.function.arguments == recorded["function"]["arguments"]


async def test_token_fields_asked_for_through_extra_body_are_recorded_and_passed_on():
    with ScriptedPolicy("hello") as policy, policy.rollout("r") as rollout:
        answer = await chat(logprobs=True, extra_body={"return_token_ids": True})
    assert rollout.calls[0].completion_token_ids == list(b"hello")
    assert answer.choices[0].token_ids == list(b"hello")
    assert answer.choices[0].logprobs.content[0].logprob == 0.0


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Status(400, "too long"), openai.BadRequestError),
        (Status(401, "who are you"), openai.AuthenticationError),
        (Status(404, "no such model"), openai.NotFoundError),
        (Status(429, "slow down"), openai.RateLimitError),
        (Status(500, "out of order"), openai.InternalServerError),
    ],
)
async def test_refusal_is_the_sdks_own_error_with_the_endpoints_message(failure, error, quick):
    with ScriptedPolicy(failure) as policy, policy.rollout("r", retry=quick) as rollout:
        with pytest.raises(error, match=failure.message) as caught:
            await chat()
    assert caught.value.status_code == failure.status
    assert failed_call(caught.value) is rollout.calls[0]
    assert categorize(caught.value) == "http_error"


@pytest.mark.parametrize(("failure", "text"), [(Cut(1), "was cut"), (Web(), "web page")])
async def test_unusable_answer_is_an_error_with_our_message(failure, text, quick):
    with ScriptedPolicy(failure) as policy, policy.rollout("r", retry=quick):
        with pytest.raises(openai.InternalServerError, match=text):
            await chat(stream=True)


async def test_one_call_of_the_sdk_is_one_call_whatever_was_retried(quick):
    with ScriptedPolicy(Status(500)) as policy, policy.rollout("r", retry=quick) as rollout:
        with pytest.raises(openai.InternalServerError):
            await chat()
    assert len(rollout.calls) == 1 and len(policy.requests) == quick.max_attempts


async def test_deadline_is_an_error_with_status_504(quick):
    with ScriptedPolicy(Delay("late", before_sec=30)) as policy:
        with policy.rollout("r", retry=quick, deadline=time.monotonic() + 0.2):
            with pytest.raises(openai.InternalServerError, match="deadline") as caught:
                await chat()
    assert caught.value.status_code == 504


async def test_timeout_of_the_sdk_is_the_longest_silence():
    once = RetryPolicy(max_attempts=1)
    with ScriptedPolicy(Delay("late", before_sec=30)) as policy, policy.rollout("r", retry=once):
        with pytest.raises(openai.InternalServerError, match="stopped answering"):
            await chat(timeout=0.2)


async def test_default_timeout_of_the_sdk_does_not_end_a_slow_answer():
    with ScriptedPolicy(Delay("slow", before_sec=0.3)) as policy, policy.rollout("r") as rollout:
        await chat()
    assert SHARED.timeout.read == 600 and len(rollout.calls[0].attempts) == 1


async def test_call_outside_a_rollout_names_the_way_out_in_its_causes():
    with pytest.raises(Exception) as caught:
        await chat()
    found = [error for error in causes(caught.value) if isinstance(error, PolicyNotBoundError)]
    assert found and "RolloutContext" in str(found[0])


async def test_closing_the_sdk_changes_nothing():
    with ScriptedPolicy("hello") as policy, policy.rollout("r") as rollout:
        async with AsyncOpenAI(http_client=async_client(LIB), **OWN):
            pass
        await chat()
    assert rollout.calls[0].received


async def test_truncated_answer_keeps_its_finish_reason():
    with ScriptedPolicy(Say("half", finish_reason="length")) as policy, policy.rollout("r"):
        assert (await chat()).choices[0].finish_reason == "length"


async def test_debug_log_of_the_sdk_has_no_key(caplog):
    caplog.set_level(logging.DEBUG)
    with ScriptedPolicy(api_key="sk-endpoint-key") as policy, policy.rollout("r"):
        await chat()
    assert "/chat/completions" in caplog.text and "sk-endpoint-key" not in caplog.text
