"""Samples come back from JSON as they were, hold what is common once, and share it in memory."""

import gc
import json
import pickle
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_core import PolicyCall, RolloutContext, RolloutSample
from osmosis_core.active import Scope
from osmosis_core.packing import joined, pack_ids, pack_logprobs, shared_length
from osmosis_core.policy.calls import begin_call, complete_call, end_call
from osmosis_core.policy.chains import conversations
from osmosis_core.testing import Cut, Say, ScriptedPolicy

IDS = st.lists(st.integers(0, 200_000), max_size=30)


@given(IDS, IDS, IDS, IDS)
def test_packed_ids_are_the_ids_whatever_they_share(prompt, completion, rest, other):
    first, answer = pack_ids(prompt), pack_ids(completion)
    for whole in ([*prompt, *completion, *rest], [*prompt, *rest], other, prompt[:3] + other):
        packed = pack_ids(whole, first, answer)
        assert packed == whole and list(packed) == whole and len(packed) == len(whole)
        assert list(joined(packed)) == whole and packed[2:5] == whole[2:5]
        shared = shared_length(packed, first, answer)
        assert whole[:shared] == [*prompt, *completion][:shared]


def test_what_a_prompt_repeats_is_stored_once():
    first, answer = pack_ids(range(1000)), pack_ids(range(500))
    second = pack_ids([*range(1000), *range(500), 1, 2], first, answer)
    assert shared_length(second, first, answer) == 1500
    assert [len(piece) for piece in second.pieces] == [1000, 500, 2]


def test_log_probs_keep_their_gaps():
    packed = pack_logprobs([-0.5, None, 0.0])
    assert packed == [-0.5, None, 0.0] and packed[1] is None and packed[:2] == [-0.5, None]


@pytest.mark.parametrize("odd", [["1"], [1.5], [2**40], [None]])
def test_what_are_no_token_ids_stays_as_it_came(odd):
    assert pack_ids(odd) is odd


def test_packed_numbers_are_compared_like_any_sequence():
    assert pack_ids([1, 2]) == (1, 2) and pack_ids([1, 2]) != [1, 3] and pack_ids([]) == []
    assert pack_ids([1]) != "1" and pack_ids([1]) != 1
    assert repr(pack_ids([1, 2])) == "[1, 2]" and pickle.loads(pickle.dumps(pack_ids([7]))) == [7]


def conversation(turns, context, sample="main", tools=({"type": "function"},)):
    """A tool loop with token ids, put in by hand."""
    messages, ids = [{"role": "user", "content": "go"}], [1, 2, 3]
    for turn in range(turns):
        body = {"messages": list(messages), "tools": list(tools), "temperature": 1.0}
        call = begin_call(context, Scope(sample), json.loads(json.dumps(body)))
        answer = {"role": "assistant", "content": f"turn {turn}", "refusal": None}
        generated = [100 + turn, 200]
        choice = {"message": answer, "finish_reason": "stop", "token_ids": generated}
        complete_call(call, {"choices": [choice], "prompt_token_ids": list(ids)})
        end_call(context, call)
        messages += [
            {"role": "assistant", "content": f"turn {turn}"},
            {"role": "user", "content": "on"},
        ]
        ids += [*generated, 9]


def sample_of(*conversations):
    context = RolloutContext(rollout_id="r")
    for number, turns in enumerate(conversations):
        conversation(turns, context, tools=({"type": "function", "n": number},))
    return RolloutSample(id="main", calls=list(context.calls))


def test_sample_comes_back_from_json_as_it_was():
    sample = sample_of(4, 3)
    again = RolloutSample.model_validate_json(sample.model_dump_json())
    assert again == sample and all(isinstance(call, PolicyCall) for call in again.calls)
    assert again.calls[3].prompt_token_ids == sample.calls[3].prompt_token_ids


def test_json_holds_each_message_and_token_once():
    sample = sample_of(30)
    text = sample.model_dump_json()
    assert text.count("turn 7") == 1
    assert text.count('"function"') == 1
    assert len(text) < 30 * 400


def test_loaded_calls_share_messages_and_tokens():
    again = RolloutSample.model_validate_json(sample_of(3).model_dump_json())
    second, third = again.calls[1:]
    assert third.messages[0] is second.messages[0] and third.tools is second.tools
    assert shared_length(third.prompt_token_ids, second.prompt_token_ids)


async def test_what_really_came_over_the_wire_comes_back(ask):
    with ScriptedPolicy(Say("a", reasoning="hm"), Cut(0), Cut(0), Cut(0)) as policy:
        with policy.rollout() as rollout:
            await ask()
            await ask()
        (sample,) = (await rollout.get_samples()).values()
    again = RolloutSample.model_validate_json(sample.model_dump_json())
    assert again == sample and again.calls[1].attempts[0].error
    assert again.findings == sample.findings


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"call_id": "c", "unknown": 1},
        {"base": {"call": 5, "messages": 0, "ids": 0}, "request": {"messages": []}},
    ],
)
def test_record_that_is_none_says_which(record):
    with pytest.raises(ValueError, match="record 0 is not one of a policy call"):
        RolloutSample.model_validate({"id": "main", "calls": [record]})


ENTRY = {"token": "x", "logprob": -1.0}


@pytest.mark.parametrize(
    "choice, top",
    [
        ({"token_ids": "abc"}, {"prompt_token_ids": 5}),
        ({"token_ids": {"1": 2}}, {"prompt_token_ids": [2**40]}),
        ({"logprobs": {"content": [{**ENTRY, "logprob": "x"}]}}, {}),
        ({"logprobs": {"content": [{**ENTRY, "logprob": 10**400}]}}, {}),
        ({"logprobs": {"content": [{"prob": -1}]}}, {}),
        ({"meta_info": {"output_token_logprobs": [[1]]}}, {}),
        ({"token_ids": 5}, {"metadata": {"weight_version": 1}, "sglext": {"output_ids": 5}}),
    ],
)
def test_token_fields_of_an_unknown_shape_spoil_neither_call_nor_sample(choice, top):
    context = RolloutContext(rollout_id="r")
    for _ in range(2):
        call = begin_call(context, Scope(), {"messages": [{"role": "user", "content": "q"}]})
        message = {"role": "assistant", "content": "a"}
        whole = {"message": message, "finish_reason": "stop", **choice}
        complete_call(call, {"choices": [whole], **top})
        end_call(context, call)
        assert call.received and call.answer == message and call.logprobs is None
    sample = RolloutSample(id="main", calls=list(context.calls))
    assert RolloutSample.model_validate_json(sample.model_dump_json()) == sample


@pytest.mark.parametrize("request_", [{}, {"messages": None}, {"messages": "text"}])
def test_requests_without_messages_come_back(request_):
    context = RolloutContext(rollout_id="r")
    for _ in range(2):
        end_call(context, begin_call(context, Scope(), dict(request_)))
    sample = RolloutSample(id="main", calls=list(context.calls))
    assert RolloutSample.model_validate_json(sample.model_dump_json()) == sample


def test_conversations_of_a_rollout_go_with_it():
    context = RolloutContext(rollout_id="r")
    conversation(3, context)
    first = weakref.ref(conversations(context)._roots[0][1].below)
    gc.disable()
    try:
        del context
        assert first() is None
    finally:
        gc.enable()
