"""Real deltas for frameworks whose user watches them, and what happens when they break off."""

import asyncio

import httpx2
import pytest
from openai import AsyncOpenAI

from osmosis_core import PolicyError, RetryPolicy, WireOptions
from osmosis_core.policy import BASE_URL, async_client, bound_headers
from osmosis_core.testing import Cut, Delay, ScriptedPolicy, Status, Tool

TEE = WireOptions(tee=True)
FAST = RetryPolicy(max_attempts=3, base_delay_sec=0)
PROMPT = [{"role": "user", "content": "q"}]


@pytest.fixture
def sdk():
    http_client = async_client(httpx2)
    return AsyncOpenAI(base_url=BASE_URL, http_client=http_client, api_key="-", max_retries=0)


async def texts(sdk, **options):
    stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True, **options)
    return [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]


async def test_deltas_arrive_as_they_are_sent(sdk):
    slow = Delay("0123456789abcdef" * 3, between_sec=0.05)
    with ScriptedPolicy(slow) as policy, policy.rollout(wire=TEE) as rollout:
        stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True)
        await anext(stream)
        assert rollout.calls[0].error == "the call has not finished"
        rest = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(rest) == "0123456789abcdef" * 3
    assert rollout.calls[0].answer["content"] == "0123456789abcdef" * 3
    assert rollout.calls[0].error is None


async def test_one_request_may_ask_for_deltas(sdk):
    with ScriptedPolicy("x" * 100) as policy, policy.rollout() as rollout:
        watched = await texts(sdk, extra_headers=bound_headers(rollout, "agent", tee=True))
        short = await texts(sdk)
    assert len(watched) > len(short)
    assert "".join(watched) == "".join(short)
    assert [call.sample_id for call in rollout.calls] == ["agent", "main"]
    assert not any(name.startswith("x-osmosis") for name in policy.requests[0].headers)


async def test_failures_before_the_first_delta_are_tried_again(sdk):
    with ScriptedPolicy(Status(500), Cut(0), Cut(0), "done") as policy:
        with policy.rollout(wire=TEE, retry=FAST) as rollout:
            assert "".join(await texts(sdk)) == "done"
    assert [a.number for a in rollout.calls[0].attempts] == [1, 2, 3]


async def test_lasting_failure_is_an_answer_with_its_status(sdk):
    with ScriptedPolicy(Status(500, "broken")) as policy:
        with policy.rollout(wire=TEE, retry=FAST) as rollout:
            with pytest.raises(Exception, match="broken"):
                await texts(sdk)
    assert "broken" in rollout.calls[0].error


async def test_stream_that_breaks_off_raises_and_is_not_tried_again(sdk):
    with ScriptedPolicy(Cut(3, "a long answer that is cut off somewhere"), "again") as policy:
        with policy.rollout(wire=TEE, retry=FAST) as rollout:
            with pytest.raises(PolicyError, match="cut"):
                await texts(sdk)
    assert len(policy.requests) == 1
    assert rollout.calls[0].answer is None


async def test_consumer_that_leaves_early_ends_the_call(sdk):
    slow = Delay("x" * 1000, between_sec=0.05)
    before = asyncio.all_tasks()
    with ScriptedPolicy(slow) as policy, policy.rollout(wire=TEE) as rollout:
        stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True)
        await anext(stream)
        await stream.close()
        assert "cancelled" in rollout.calls[0].error
    assert asyncio.all_tasks() <= before


async def test_tool_calls_pass_as_deltas(sdk):
    with ScriptedPolicy(Tool("add", {"numbers": list(range(20))})) as policy:
        with policy.rollout(wire=TEE) as rollout:
            stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True)
            parts = [
                call.function.arguments
                async for chunk in stream
                if chunk.choices
                for call in chunk.choices[0].delta.tool_calls or []
            ]
    recorded = rollout.calls[0].answer["tool_calls"][0]["function"]["arguments"]
    assert "".join(parts) == recorded
    assert len(parts) > 2
