"""What engines call their fields, what they refuse, and what frameworks are kept from seeing."""

import json

import httpx2
import pytest

from osmosis_core import RetryPolicy, RolloutContext, WireOptions
from osmosis_core.policy import BASE_URL, async_client, dialect
from osmosis_core.testing import Malformed, Say, ScriptedPolicy, Status

CAPTURE = WireOptions(capture={"return_token_ids": True, "logprobs": True})
ONCE = RetryPolicy(max_attempts=1)
DEFAULT = WireOptions()


@pytest.fixture(autouse=True)
def unknown_endpoints():
    dialect._refusals.clear()


async def ask(policy, wire=DEFAULT, **body):
    with policy.rollout(wire=wire, retry=ONCE) as rollout:
        request = {"messages": [{"role": "user", "content": "q"}], **body}
        answer = await async_client(httpx2).post(f"{BASE_URL}/chat/completions", json=request)
    return answer, rollout.calls[0]


def plain(choice=(), **completion):
    message = {"role": "assistant", "content": "hi"}
    base = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", **completion, "choices": [{**base, **dict(choice)}]}
    return Malformed(json.dumps(body), "application/json")


def stream(*events):
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return Malformed(text + "data: [DONE]\n\n", "text/event-stream")


def delta(content=None, finish_reason=None, **choice):
    message = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": message, "finish_reason": finish_reason, **choice}]}


async def test_wire_is_streamed_and_the_framework_gets_one_answer():
    with ScriptedPolicy("hello") as policy:
        answer, call = await ask(policy)
    assert policy.requests[0].body["stream"] is True
    assert policy.requests[0].body["stream_options"] == {"include_usage": True}
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert call.usage["completion_tokens"] == 5


async def test_framework_that_streams_gets_a_short_stream():
    with ScriptedPolicy("hello " * 50) as policy:
        answer, _ = await ask(policy, stream=True)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.count("data:") == 3


async def test_user_may_ask_for_plain_answers():
    with ScriptedPolicy("hello") as policy:
        answer, _ = await ask(policy, WireOptions(stream=False), stream=True)
    assert "stream" not in policy.requests[0].body
    assert answer.headers["content-type"] == "text/event-stream"


async def test_captured_fields_are_recorded_and_kept_from_the_framework():
    with ScriptedPolicy("hi") as policy:
        answer, call = await ask(policy, CAPTURE)
    assert policy.requests[0].body["return_token_ids"] is True
    assert list(call.completion_token_ids) == list(b"hi")
    assert list(call.prompt_token_ids) == list(b"q")
    assert list(call.logprobs) == [0.0, 0.0]
    assert call.logprobs_kind == "raw"
    text = answer.text
    assert not any(name in text for name in ("token_ids", '"logprob"'))


async def test_framework_keeps_the_logprobs_that_it_asked_for():
    with ScriptedPolicy("hi") as policy:
        answer, _ = await ask(policy, CAPTURE, logprobs=True)
    assert len(answer.json()["choices"][0]["logprobs"]["content"]) == 2


async def test_vendor_fields_are_not_sent_unasked():
    with ScriptedPolicy("hi") as policy:
        await ask(policy, temperature=0.5)
    assert set(policy.requests[0].body) == {
        *("messages", "model", "stream", "stream_options", "temperature")
    }


SGLANG_PLAIN = plain(
    {"prompt_token_ids": [1], "response_token_ids": [7, 8]}, metadata={"weight_version": 3}
)
SGLANG_META = plain({"meta_info": {"output_token_logprobs": [[-0.5, 7, "h"], [-0.25, 8, "i"]]}})
SGLANG_STREAM = stream(
    delta("hi"),
    delta(finish_reason="stop"),
    {"choices": [], "sglext": {"input_ids": [1], "output_ids": [[7, 8]]}},
)
MLX = plain({"logprobs": {"content": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -0.25}]}})
AS_TOKENS = plain(
    {"logprobs": {"content": [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:8"}]}}
)
LLAMA = plain({"logprobs": {"content": [{"id": 7, "prob": 1.0}, {"id": 8, "prob": 0.5}]}})
VLLM_STREAM = stream(
    {"prompt_token_ids": [1], **delta("h", token_ids=[7])},
    delta(token_ids=[]),
    delta("i", token_ids=[8]),
    delta(finish_reason="stop", weight_versions=[{"version": "v9", "start": 0, "end": 2}]),
)


@pytest.mark.parametrize(
    "answer", [SGLANG_PLAIN, SGLANG_META, SGLANG_STREAM, MLX, AS_TOKENS, LLAMA, VLLM_STREAM]
)
async def test_token_ids_are_found_where_each_engine_puts_them(answer):
    with ScriptedPolicy(answer) as policy:
        _, call = await ask(policy)
    assert list(call.completion_token_ids) == [7, 8]
    assert call.answer["content"] == "hi"


@pytest.mark.parametrize(
    ("answer", "versions"),
    [
        (SGLANG_PLAIN, [{"version": "3", "start": 0, "end": 2}]),
        (VLLM_STREAM, [{"version": "v9", "start": 0, "end": 2}]),
        (plain(weight_version="w1"), [{"version": "w1", "start": 0, "end": 0}]),
        (plain(), []),
    ],
)
async def test_weight_versions_are_found_where_each_engine_puts_them(answer, versions):
    with ScriptedPolicy(answer) as policy:
        _, call = await ask(policy)
    assert call.weight_versions == versions


@pytest.mark.parametrize(
    ("answer", "kind"), [(SGLANG_META, "sampling"), (MLX, "unknown"), (plain(), "unknown")]
)
async def test_kind_of_logprobs_is_that_of_the_engine(answer, kind):
    with ScriptedPolicy(answer) as policy:
        _, call = await ask(policy)
    assert call.logprobs_kind == kind


async def test_probabilities_become_logprobs():
    with ScriptedPolicy(LLAMA) as policy:
        _, call = await ask(policy)
    assert list(call.logprobs) == pytest.approx([0.0, -0.6931471805599453])


async def test_refused_field_is_left_out_from_then_on():
    def strict(request):
        if "return_token_ids" in request.body:
            return Status(422, "Unexpected fields: {'return_token_ids'}")
        return "hi"

    with ScriptedPolicy(strict) as policy:
        for _ in range(2):
            answer, call = await ask(policy, CAPTURE)
            assert answer.status_code == 200
    assert [("return_token_ids" in r.body) for r in policy.requests] == [True, False, False]
    assert [a.status for a in call.attempts] == [200]
    assert "logprobs" in policy.requests[-1].body


async def test_refused_stream_is_asked_plain_from_then_on():
    def no_stream(request):
        if request.body.get("stream"):
            return Status(400, "return_token_ids is not supported with streaming")
        return "hi"

    with ScriptedPolicy(no_stream) as policy:
        for _ in range(2):
            answer, call = await ask(policy, CAPTURE)
            assert answer.status_code == 200
    assert [bool(r.body.get("stream")) for r in policy.requests] == [True, False, False]
    assert policy.requests[-1].body["return_token_ids"] is True
    assert call.request == policy.requests[-1].body


async def test_other_refusals_are_final():
    with ScriptedPolicy(Status(400, "messages are too long")) as policy:
        answer, call = await ask(policy, CAPTURE)
    assert answer.status_code == 400
    assert len(policy.requests) == len(call.attempts) == 1


async def test_refusal_of_the_frameworks_own_field_is_final():
    with ScriptedPolicy(Status(400, "top_k is not known")) as policy:
        answer, _ = await ask(policy, top_k=3)
    assert answer.status_code == 400
    assert len(policy.requests) == 1


async def test_reasoning_is_recorded_and_handed_on():
    with ScriptedPolicy(Say("four", reasoning="2 + 2")) as policy:
        answer, call = await ask(policy)
    assert call.answer["reasoning_content"] == "2 + 2"
    assert answer.json()["choices"][0]["message"]["reasoning_content"] == "2 + 2"


def test_short_keys_are_not_cut_out_of_words():
    from osmosis_core.policy.attempt import redact

    assert redact("well-known", "-") == "well-known"
    assert redact("key sk-123 is bad", "sk-123") == "key *** is bad"


def test_wire_options_reach_the_rollouts_own_context():
    outer = RolloutContext("http://x/v1", wire=CAPTURE)
    assert outer.for_rollout("r").wire is CAPTURE
