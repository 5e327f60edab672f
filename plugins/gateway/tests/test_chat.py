import asyncio
import json
import time

import httpx2
import openai
import pytest

from osmosis_core import RetryPolicy, WireOptions
from osmosis_core.testing import Cut, Delay, Say, Status, Tool

ASK = [{"role": "user", "content": "hello"}]
MODEL = "osmosis-rollout"


def test_answer_is_the_policys_and_on_record(world):
    opened = world("hello there")
    answer = opened.openai("greeter").chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == "hello there"
    (call,) = opened.rollout.calls
    assert (call.sample_id, call.rollout_id, call.error) == ("greeter", "r-1", None)
    assert opened.policy.requests[0].rollout_id == "r-1"


def test_parameters_reach_the_policy_as_they_are(world):
    opened = world("ok")
    extra = {"top_k": 7, "chat_template_kwargs": {"enable_thinking": False}}
    opened.openai().chat.completions.create(
        model="m", messages=ASK, temperature=0.5, extra_body=extra
    )
    sent = opened.sent()
    assert {"temperature": 0.5, **extra}.items() <= sent.items()
    assert sent["model"] == MODEL


async def test_stream_has_real_deltas(world):
    opened = world(Delay("one two three four five six", between_sec=0.02))
    async with opened.openai_async() as client:
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "one two three four five six"
    assert len([text for text in texts if text]) == 2


def test_first_delta_comes_before_the_answer_is_complete(world):
    opened = world(Delay("one two three four five six", between_sec=0.3))
    with opened.openai().chat.completions.create(model="m", messages=ASK, stream=True) as stream:
        next(iter(stream))
        assert opened.rollout.calls[0].answer is None


@pytest.mark.parametrize("asked", [True, False])
def test_usage_is_streamed_only_when_asked_for(world, asked):
    options = {"stream_options": {"include_usage": True}} if asked else {}
    stream = (
        world("hi")
        .openai()
        .chat.completions.create(model="m", messages=ASK, stream=True, **options)
    )
    chunks = list(stream)
    assert (chunks[-1].usage is not None) is asked
    assert all(chunk.choices for chunk in chunks[: -1 if asked else None])


@pytest.mark.parametrize("stream", [True, False])
def test_captured_tokens_are_recorded_and_kept_from_the_caller(world, stream):
    wire = WireOptions(capture={"logprobs": True, "return_token_ids": True})
    opened = world("hi", wire=wire)
    where = opened.gateway.endpoint()
    body = {"model": "m", "messages": ASK, "stream": stream}
    key = {"authorization": f"Bearer {where.api_key}"}
    text = httpx2.post(f"{where.openai_url}/chat/completions", json=body, headers=key).text
    assert "token_ids" not in text
    assert opened.rollout.calls[0].completion_token_ids == list(b"hi")


def test_stream_that_breaks_is_an_error_and_a_failed_call(world):
    opened = world(Cut(after=3))
    stream = opened.openai().chat.completions.create(model="m", messages=ASK, stream=True)
    with pytest.raises(Exception, match="cut"):
        list(stream)
    assert "cut" in opened.rollout.calls[0].error


def test_refusal_keeps_status_message_and_retry_after_and_is_not_retried(world):
    opened = world(Status(429, "slow down", retry_after="7"), retry=RetryPolicy(max_attempts=1))
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        opened.openai(max_retries=2).chat.completions.create(model="m", messages=ASK)
    assert caught.value.response.headers["retry-after"] == "7"
    assert len(opened.policy.requests) == 1


def test_transport_waits_out_a_paused_policy(world):
    opened = world(Status(503, retry_after="0.01"), Status(503, retry_after="0.01"), "back")
    answer = opened.openai().chat.completions.create(model="m", messages=ASK)
    assert answer.choices[0].message.content == "back"
    (call,) = opened.rollout.calls
    assert [attempt.status for attempt in call.attempts] == [503, 503, 200]


def test_tool_arguments_are_verbatim(world):
    answer = (
        world(Tool("add", '{"a":1,  "b":'))
        .openai()
        .chat.completions.create(model="m", messages=ASK)
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.arguments == '{"a":1,  "b":'


def test_legacy_completions_are_refused_clearly(world):
    with pytest.raises(openai.NotFoundError, match="use /v1/chat/completions"):
        world("x").openai().completions.create(model="m", prompt="hello")


def test_unknown_paths_say_what_is_served(world):
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not served; there are"):
        world("x").openai().embeddings.create(model="m", input="hello")


async def test_caller_that_goes_away_cancels_the_call(world):
    opened = world(Delay("late", before_sec=30))
    where = opened.gateway.endpoint()
    key = {"authorization": f"Bearer {where.api_key}"}
    async with httpx2.AsyncClient(headers=key, base_url=where.openai_url) as client:
        body = {"model": "m", "messages": ASK}
        task = asyncio.create_task(client.post("/chat/completions", json=body))
        await asyncio.to_thread(opened.policy.wait_for_requests, 1)
        task.cancel()
        await asyncio.wait([task])
    await asyncio.to_thread(wait_for, lambda: "cancelled" in (opened.rollout.calls[0].error or ""))


async def test_caller_that_leaves_a_stream_cancels_the_call(world):
    opened = world(Delay("x" * 4000, between_sec=0.02))
    async with opened.openai_async() as client:
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        await anext(aiter(stream))
        await stream.close()
    await asyncio.to_thread(wait_for, lambda: "cancelled" in (opened.rollout.calls[0].error or ""))


def wait_for(claim):
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_several_choices_are_streamed(world):
    stream = (
        world(Say("a"))
        .openai()
        .chat.completions.create(model="m", messages=ASK, stream=True, n=1, logprobs=True)
    )
    last = list(stream)[-1]
    assert json.loads(last.model_dump_json())["choices"][0]["logprobs"]["content"]


def test_stream_options_that_are_no_object_are_a_400(world):
    with pytest.raises(openai.BadRequestError, match="stream_options is not an object"):
        ask = world("ok").openai().chat.completions.create
        ask(model="m", messages=ASK, stream=True, stream_options="usage")
