"""What one dialect says, told in another and back, is the same; whatever comes is answered."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_gateway import Refusal, chat, messages, responses
from osmosis_gateway.app import translated

TEXT = st.text(max_size=20)
SOME = st.text(min_size=1, max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(SOME, JSON, max_size=3)
NAMED = {"name": SOME, "arguments": OBJECT.map(json.dumps)}
CALL = st.fixed_dictionaries(
    {"id": SOME, "type": st.just("function"), "function": st.fixed_dictionaries(NAMED)}
)


def unique(calls):
    return [{**call, "id": f"{i}{call['id']}"} for i, call in enumerate(calls)]


@st.composite
def answers(draw):
    """An assistant message that says something."""
    message = {"role": "assistant", "content": draw(st.none() | SOME)}
    reasoning = draw(st.none() | SOME)
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = unique(draw(st.lists(CALL, min_size=message["content"] is None, max_size=3)))
    return {**message, "tool_calls": calls} if calls else message


def completion(message, finish_reason="stop"):
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"id": "c", "model": "m", "choices": [choice], "usage": usage}


def canonical(message):
    """The message with its arguments parsed."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(arguments)}}
        for call in message.get("tool_calls") or []
        for arguments in [call["function"]["arguments"]]
    ]
    return {**message, "tool_calls": calls}


@given(answers())
def test_responses_give_back_what_the_policy_said(message):
    output = responses.from_chat(completion(message), {})["output"]
    assert responses.to_chat({"input": output})["messages"] == [message]


@given(answers())
def test_messages_give_back_what_the_policy_said(message):
    content = messages.from_chat(completion(message), {})["content"]
    (back,) = messages.to_chat({"messages": [{"role": "assistant", "content": content}]})[
        "messages"
    ]
    assert canonical(back) == canonical(message)


@given(answers(), st.lists(TEXT, min_size=3, max_size=3))
def test_tool_results_follow_their_calls_in_both_dialects(message, results):
    calls = message.get("tool_calls") or []
    pairs = [(call["id"], text) for call, text in zip(calls, results, strict=False)]
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in pairs]
    items = [{"type": "function_call_output", "call_id": i, "output": text} for i, text in pairs]
    told = messages.from_chat(completion(message), {})["content"]
    turns = [{"role": "assistant", "content": told}]
    turns += [{"role": "user", "content": blocks}] if blocks else []
    output = responses.from_chat(completion(message), {})["output"]
    expected = [{"role": "tool", "tool_call_id": i, "content": text} for i, text in pairs]
    assert messages.to_chat({"messages": turns})["messages"][1:] == expected
    assert responses.to_chat({"input": [*output, *items]})["messages"][1:] == expected


@st.composite
def streams(draw):
    """A message and the chunks in which it may come: cut anywhere, parallel calls interleaved."""
    message = draw(answers())
    rows = [
        [{name: piece} for piece in cut(draw, message[name])]
        for name in ("reasoning_content", "content")
        if message.get(name)
    ]
    deltas = [delta for row in rows for delta in row]
    calls = [tool_deltas(draw, i, call) for i, call in enumerate(message.get("tool_calls") or [])]
    while any(calls):
        row = draw(st.sampled_from([row for row in calls if row]))
        deltas.append({"tool_calls": [row.pop(0)]})
    return message, [
        {"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas
    ] + [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ]


def cut(draw, text):
    at = draw(st.integers(0, len(text)))
    return [piece for piece in (text[:at], text[at:]) if piece]


def tool_deltas(draw, index, call):
    function = call["function"]
    first = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
    pieces = cut(draw, function["arguments"])
    return [first, *({"index": index, "function": {"arguments": piece}} for piece in pieces)]


def events(stream, chunks):
    text = "".join([e for chunk in chunks for e in stream.feed(chunk)] + list(stream.close()))
    lines = [line for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@given(streams())
def test_streamed_response_is_the_whole_one(stream):
    message, chunks = stream
    told = events(responses.Stream({}), chunks)
    whole = responses.from_chat(completion(message), {})
    assert without_ids(told[-1]["response"]["output"]) == without_ids(whole["output"])
    assert told[-1]["response"]["usage"] == whole["usage"]


def without_ids(output):
    """Items without their own ids, calls by their call ids: they may begin in any order."""
    items = [{k: v for k, v in item.items() if k != "id"} for item in output]
    return sorted(items, key=lambda item: (item["type"] == "function_call", item.get("call_id")))


@given(streams())
def test_streamed_message_is_the_whole_one(stream):
    message, chunks = stream
    blocks, open_blocks = [], []
    for event in events(messages.Stream({}), chunks):
        if event["type"] == "content_block_start":
            assert open_blocks == [] and event["index"] == len(blocks)
            open_blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            grow(open_blocks[0], event["delta"])
        elif event["type"] == "content_block_stop":
            blocks.append(open_blocks.pop())
    whole = messages.from_chat(completion(message), {})["content"]
    assert sorted(blocks, key=by_id) == sorted(whole, key=by_id)


def by_id(block):
    return block.get("id", ""), block["type"]


def grow(block, delta):
    if delta["type"] == "input_json_delta":
        block["input"] = json.loads(delta["partial_json"])
    else:
        name = delta["type"].removesuffix("_delta")
        block[name] += delta[name]


@given(streams())
def test_streamed_chunks_are_passed_on(stream):
    _, chunks = stream
    told = events(chat.Stream({"stream_options": {"include_usage": True}}), chunks)
    assert [chunk["choices"] for chunk in told] == [chunk["choices"] for chunk in chunks]


NAMES = ("messages", "input", "system", "tools", "tool_choice", "text", "reasoning", "role", "type")
NAMES += ("content", "output_config", "source", "function_call", "message", "user", "assistant")
LOOSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("dialect", [messages, responses])
@given(body=st.dictionaries(st.sampled_from(NAMES), LOOSE))
def test_malformed_bodies_are_refused_in_words(dialect, body):
    try:
        asked = translated(dialect, body)
    except Refusal as refusal:
        assert refusal.status == 400 and "\n" not in refusal.message
    else:
        assert all(isinstance(message, dict) for message in asked["messages"])
