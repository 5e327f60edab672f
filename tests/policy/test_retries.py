"""The transport alone retries: what, how often, how long, and what the client above sees."""

import asyncio
import email.utils
import time

import pytest

from osmosis_core import RetryPolicy, RolloutContext
from osmosis_core.policy.attempt import Outcome
from osmosis_core.policy.retry import RetryPlan, retry_after_sec
from osmosis_core.testing import Cut, Delay, Endless, Malformed, Say, ScriptedPolicy, Status, Web

CUT_JSON = Malformed('{"choices": [{"ind', content_type="application/json")
PASSING = {
    "429": (Status(429), 429, "answered 429: scripted failure"),
    "500": (Status(500), 500, "answered 500"),
    "503": (Status(503), 503, "answered 503"),
    "dropped": (Cut(0), None, "cannot be reached"),
    "cut": (Cut(2), 200, "was cut"),
    "bad chunk": (Malformed(), 200, "a chunk of the stream is not JSON: '{not json'"),
    "empty stream": (Malformed(""), 200, "ended without an answer"),
    "cut json": (CUT_JSON, 200, "the answer is not JSON"),
    "error event": (Malformed('data: {"error": {"message": "busy"}}\n\n'), 200, "busy"),
}


@pytest.mark.parametrize("name", PASSING)
async def test_passing_failure_is_retried_and_each_attempt_recorded(call, name):
    failure, status, text = PASSING[name]
    record = await call(failure, failure, "hello", body={"stream": True})
    assert record.received and record.answer["content"] == "hello"
    assert [a.number for a in record.attempts] == [1, 2, 3]
    assert [a.status for a in record.attempts] == [status, status, 200]
    assert all(text in a.error for a in record.attempts[:2])
    assert record.attempts[2].error is None
    assert all(a.duration_sec > 0 for a in record.attempts)


async def test_retry_reaches_the_client_as_one_answer(post, quick):
    with ScriptedPolicy(Status(500), "hello") as policy, policy.rollout(retry=quick) as rollout:
        answer = await post()
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert len(policy.requests) == 2 and len(rollout.calls) == 1


async def test_tries_end_at_max_attempts_with_the_endpoints_own_status(post, quick):
    with ScriptedPolicy(Status(500, "out of order")) as policy, policy.rollout(retry=quick) as r:
        answer = await post()
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "out of order"
    assert len(policy.requests) == len(r.calls[0].attempts) == quick.max_attempts


@pytest.mark.parametrize("failure", [Cut(0), Cut(1), Malformed()])
async def test_failure_without_an_error_status_reaches_the_client_as_502(ask, failure, quick):
    with ScriptedPolicy(failure) as policy, policy.rollout(retry=quick) as rollout:
        answer = await ask()
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == rollout.calls[0].error


async def test_stream_cut_midway_is_not_called_unreachable(call):
    record = await call(Cut(2), body={"stream": True})
    assert "was cut" in record.error and "cannot be reached" not in record.error


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 501])
async def test_refusal_is_final(call, status):
    record = await call(Status(status, "no"), "never asked for")
    assert not record.received and f"answered {status}: no" in record.error
    assert [a.status for a in record.attempts] == [status]


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "API key"), (403, "API key"), (404, "base URL and the model name")]
)
async def test_refusal_says_what_to_check(call, status, hint):
    assert hint in (await call(Status(status))).error


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_never_followed_nor_retried(ask, status):
    class Moved(ScriptedPolicy):
        async def respond(self, request, body):
            response = await super().respond(request, body)
            response.headers["Location"] = f"{target.base_url}/chat/completions"
            return response

    with ScriptedPolicy() as target, Moved(Status(status)) as policy, policy.rollout() as rollout:
        answer = await ask()
    assert answer.status_code == 502 and len(policy.requests) == 1 and not target.requests
    assert "redirects are not followed" in rollout.calls[0].error


async def test_web_page_is_final_and_hints_at_the_base_url(call):
    record = await call(Web(), "never asked for")
    assert "web page" in record.error and "/v1" in record.error
    assert [a.status for a in record.attempts] == [200]


async def test_unreachable_policy_is_tried_again_and_named(ask, quick):
    with RolloutContext("http://127.0.0.1:1/v1", retry=quick) as rollout:
        assert (await ask()).status_code == 502
    record = rollout.calls[0]
    assert len(record.attempts) == 3 and "http://127.0.0.1:1/v1" in record.error


@pytest.mark.parametrize(
    "url",
    [
        *("localhost/v1", "ftp://localhost/v1", "http://", "http://host:99999/v1"),
        *("http://user:secret@host/v1", "user:secret@host/v1", "http://user:secret@/v1"),
    ],
)
async def test_url_that_cannot_work_is_refused_without_saying_it(ask, quick, url):
    with RolloutContext(url, retry=quick) as rollout:
        assert (await ask()).status_code == 502
    assert rollout.calls[0].attempts == []
    assert "http://host:port/v1" in rollout.calls[0].error
    assert "secret" not in rollout.calls[0].error + repr(rollout)


async def test_query_of_the_base_url_stays_a_query(ask, quick):
    with ScriptedPolicy("hi") as policy:
        with RolloutContext(f"{policy.base_url}?version=1", retry=quick):
            assert (await ask()).status_code == 200


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_retry_after_in_seconds_is_waited_for(call, status):
    began = time.monotonic()
    record = await call(Status(status, retry_after="0.2"), "hello")
    assert record.received and time.monotonic() - began >= 0.2
    assert record.duration_sec >= 0.2


async def test_retry_after_of_the_last_try_is_handed_on(ask):
    once = RetryPolicy(max_attempts=1)
    with ScriptedPolicy(Status(429, retry_after="7")) as policy, policy.rollout(retry=once):
        assert (await ask()).headers["retry-after"] == "7"


async def test_retry_after_as_a_date_is_waited_for(call):
    then = int(time.time()) + 2
    record = await call(Status(429, retry_after=email.utils.formatdate(then, usegmt=True)), "hello")
    assert record.received and time.time() >= then


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "", None])
def test_retry_after_that_means_nothing_is_ignored(value):
    assert retry_after_sec(value) is None


def test_retry_after_in_the_past_means_now():
    assert retry_after_sec("-5") == retry_after_sec("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize("status", [425, 503])
async def test_pause_for_a_weight_update_uses_up_no_try(call, status):
    pauses = [Status(status, retry_after="0.01")] * 6
    record = await call(*pauses, "hello")
    assert record.received and len(record.attempts) == 7


async def test_pauses_are_bounded_by_their_budget(call):
    retry = RetryPolicy(max_attempts=2, base_delay_sec=0.001, pause_budget_sec=0.05)
    record = await call(Status(503, retry_after="0.02"), retry=retry)
    assert not record.received and len(record.attempts) == 3


async def test_pause_longer_than_the_budget_fails_at_once(call):
    began = time.monotonic()
    record = await call(Status(503, retry_after="3600"))
    assert len(record.attempts) == 1 and time.monotonic() - began < 5


def test_backoff_doubles_up_to_its_limit_with_jitter():
    policy = RetryPolicy(max_attempts=6, base_delay_sec=1.0, max_delay_sec=4.0)
    plan, failure = RetryPlan(policy, None), Outcome(error="x", retryable=True)
    delays = [plan.delay_before_retry(failure) for _ in range(6)]
    assert delays[-1] is None
    for delay, full in zip(delays[:-1], [1, 2, 4, 4, 4], strict=True):
        assert full / 2 <= delay <= full


async def test_wait_beyond_the_deadline_is_not_begun(call):
    began = time.monotonic()
    record = await call(Status(429, retry_after="60"), deadline=began + 5)
    assert time.monotonic() - began < 4
    assert "answered 429" in record.error and len(record.attempts) == 1


@pytest.mark.parametrize("slow", [Delay("late", before_sec=30), Endless()])
async def test_deadline_ends_a_call_in_flight_as_504(post, slow, quick):
    began = time.monotonic()
    with ScriptedPolicy(slow) as policy:
        with policy.rollout(deadline=began + 0.2, retry=quick) as rollout:
            answer = await post()
        assert time.monotonic() - began < 5
    assert answer.status_code == 504 and "deadline" in rollout.calls[0].error
    assert [a.number for a in rollout.calls[0].attempts] == [1]


async def test_call_after_the_deadline_fails_at_once(call):
    began = time.monotonic()
    record = await call(Delay("late", before_sec=30), deadline=began - 1)
    assert "deadline" in record.error and time.monotonic() - began < 5


async def test_read_timeout_of_the_request_is_honoured(ask):
    once = RetryPolicy(max_attempts=1)
    began = time.monotonic()
    with ScriptedPolicy(Delay("late", before_sec=30)) as policy:
        with policy.rollout(retry=once) as rollout:
            answer = await ask(timeout=0.2)
    assert answer.status_code == 502 and time.monotonic() - began < 5
    assert "stopped answering" in rollout.calls[0].error


async def test_slow_stream_that_keeps_coming_outlives_the_read_timeout(ask, quick):
    slow = Delay("a stream of some thirty-two chars" * 3, between_sec=0.06)
    with ScriptedPolicy(slow) as policy, policy.rollout(retry=quick) as rollout:
        assert (await ask(timeout=0.3, stream=True)).status_code == 200
    assert len(rollout.calls[0].attempts) == 1 and rollout.calls[0].duration_sec > 0.3


async def test_cancellation_ends_the_call_and_is_recorded(ask, quick):
    with ScriptedPolicy(Endless()) as policy, policy.rollout(retry=quick) as rollout:
        task = asyncio.create_task(ask())
        while not policy.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
    (record,) = rollout.calls
    assert not record.received and "cancelled" in record.error
    assert record.duration_sec > 0 and len(record.attempts) == 1


async def test_retries_of_one_call_do_not_delay_another(ask):
    slow = RetryPolicy(max_attempts=2, base_delay_sec=1.0)

    def answer(received):
        return Status(500) if received.sample_id == "main" and len(policy.requests) < 2 else "ok"

    with ScriptedPolicy(answer) as policy, policy.rollout(retry=slow) as rollout:
        first = asyncio.create_task(ask())
        while not policy.requests:
            await asyncio.sleep(0.01)
        await ask()
        assert not first.done()
        await first
    assert [len(c.attempts) for c in rollout.calls] == [2, 1]


WRONG = [
    '{"choices": {}}',
    '{"choices": "x"}',
    '{"choices": [null]}',
    '{"choices": [{"finish_reason": "stop"}]}',
    '{"choices": [{"message": [], "finish_reason": "stop"}]}',
    '{"choices": [{"message": {"tool_calls": [1]}, "finish_reason": "tool_calls"}]}',
    '{"choices": [{"message": {}, "logprobs": [], "finish_reason": null}]}',
    '{"choices": [{"message": {}, "logprobs": {"content": [0]}, "finish_reason": "stop"}]}',
    '{"error": {"message": "overloaded"}}',
    "[]",
    "",
]


@pytest.mark.parametrize("body", WRONG)
async def test_answer_of_another_shape_is_malformed_and_never_raises(call, body):
    record = await call(Malformed(body, "application/json"))
    assert "malformed answer" in record.error and len(record.attempts) == 3


@pytest.mark.parametrize(
    "chunk",
    [
        '{"choices": [null]}',
        '{"choices": 5}',
        '{"choices": [{"index": "x", "delta": {}}]}',
        '{"choices": [{"delta": {"tool_calls": [7]}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]}',
        "[]",
    ],
)
async def test_chunk_of_another_shape_is_malformed_and_never_raises(call, chunk):
    record = await call(Malformed(f"data: {chunk}\n\n"))
    assert "malformed answer" in record.error and len(record.attempts) == 3


async def test_truncated_answer_is_an_answer_that_says_so(call):
    record = await call(Say("half an ans", finish_reason="length"))
    assert record.received and record.finish_reason == "length"
