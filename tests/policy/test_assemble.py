"""A stream cut anywhere, by any engine, becomes the same completion; and back."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_core.policy.assemble import (
    DONE,
    Assembler,
    EventReader,
    MalformedAnswer,
    event_stream,
    parse_completion,
    short_stream,
)
from osmosis_core.testing.server import chunks, completion

STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
names = st.text("abcxyz_", min_size=1, max_size=8)


@st.composite
def messages(draw):
    message = {"role": "assistant", "content": draw(st.none() | text.filter(bool))}
    calls = draw(st.lists(st.tuples(names, text), max_size=3))
    if calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ]
    return message


@st.composite
def completions(draw):
    asked = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    asked |= {"return_token_ids": draw(st.booleans()), "logprobs": draw(st.booleans())}
    answer = completion(asked, draw(messages()), draw(st.sampled_from(["stop", "length"])), "id-1")
    if draw(st.booleans()):
        second = copy.deepcopy(answer["choices"][0])
        answer["choices"].append({**second, "index": 1, "message": draw(messages())})
    return answer


def read(stream: bytes, cuts: list[int] | None = None) -> list[str]:
    reader, events, start = EventReader(), [], 0
    for end in [*sorted({c % (len(stream) + 1) for c in cuts or []}), len(stream)]:
        events += reader.feed(stream[start:end])
        start = end
    return [*events, *reader.close()]


def assemble(*events: object) -> dict:
    assembler = Assembler()
    for event in events:
        assembler.add(event if isinstance(event, str) else json.dumps(event))
    return assembler.completion()


def chunk(delta: dict, index: int | None = 0, finish_reason: str | None = None, **extra) -> dict:
    choice = {"delta": delta, "finish_reason": finish_reason, **extra}
    return {"choices": [choice if index is None else {"index": index, **choice}]}


def without_nones(answer: dict) -> dict:
    choices = [{k: v for k, v in c.items() if v is not None} for c in answer["choices"]]
    return {**answer, "choices": choices}


cuts = st.lists(st.integers(0, 5000), max_size=20)
ends = st.sampled_from(["\n", "\r\n"])


@given(st.lists(text.map(lambda t: " ".join(t.split())).filter(bool), max_size=5), cuts, ends)
def test_events_survive_any_cut_of_the_bytes(events, cuts, end):
    stream = "".join(f": keep-alive{end}data: {event}{end}{end}" for event in events)
    assert read(stream.encode(), cuts) == events


def test_every_single_byte_cut_gives_the_same_events():
    stream = "data: ä 天 🙂\r\n\r\n: ping\n\ndata:[DONE]\n\n".encode()
    for cut in range(len(stream) + 1):
        assert read(stream, [cut]) == ["ä 天 🙂", "[DONE]"]
    assert read(stream, list(range(len(stream)))) == ["ä 天 🙂", "[DONE]"]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        ("data: one\ndata: two\n\n", ["one\ntwo"]),
        ("event: ping\nid: 7\nretry: 1\ndata: x\n\n", ["x"]),
        (": comment\n\n:\n\n\n\n", []),
        ("data:no space\n\n", ["no space"]),
        ("data:  two spaces\n\n", [" two spaces"]),
        ("data: no end", ["no end"]),
        ("data: one end\r\n", ["one end"]),
        ("datax: y\n\n", []),
        ("", []),
    ],
)
def test_event_stream_format_is_read(stream, events):
    assert read(stream.encode()) == events


@given(completions(), cuts)
def test_any_cut_of_a_stream_gives_the_same_completion(answer, cuts):
    answer["choices"] = answer["choices"][:1]
    stream = event_stream([*map(json.dumps, chunks(answer, include_usage=True)), DONE])
    assembled = assemble(*read(stream, cuts))
    if answer["choices"][0]["message"]["content"] is None:
        answer["choices"][0]["message"]["content"] = ""
    assert assembled == without_nones(answer)


@given(completions(), st.booleans())
def test_short_stream_assembles_to_the_completion_it_came_from(answer, include_usage):
    expected = without_nones(answer)
    if not include_usage:
        expected.pop("usage")
    assert assemble(*read(short_stream(answer, include_usage))) == expected


@given(completions())
def test_short_stream_leaves_the_completion_as_it_was(answer):
    before = copy.deepcopy(answer)
    short_stream(answer, include_usage=True)
    assert answer == before


@given(completions())
def test_plain_answer_is_parsed_as_it_is(answer):
    assert parse_completion(b"  \n\n " + json.dumps(answer).encode()) == answer


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just("x"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "index",
                    "tool_calls",
                    "function",
                    "name",
                    "logprobs",
                    "content",
                    "error",
                    "finish_reason",
                    "token_ids",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.lists(json_values, max_size=4))
def test_any_json_is_a_completion_or_malformed(values):
    for attempt in (
        lambda: assemble(*(json.dumps({"choices": [value]}) for value in values)),
        lambda: assemble(*(json.dumps(value) for value in values)),
        lambda: parse_completion(json.dumps({"choices": values}).encode()),
    ):
        try:
            short_stream(attempt(), include_usage=True)
        except MalformedAnswer as error:
            assert str(error)


def test_interleaved_deltas_of_parallel_tool_calls_stay_apart():
    def part(index: int, **function: str) -> dict:
        return {"tool_calls": [{"index": index, "function": function}]}

    answer = assemble(
        chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "sub"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "add"}}]}),
        chunk(part(0, arguments='{"x"')),
        chunk(part(1, arguments='{"y"')),
        chunk(part(0, arguments=": 1}")),
        chunk(part(1, arguments=": 2}"), finish_reason="tool_calls"),
    )
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["type"], c["function"]) for c in calls] == [
        ("a", "function", {"name": "add", "arguments": '{"x": 1}'}),
        ("b", "function", {"name": "sub", "arguments": '{"y": 2}'}),
    ]


def test_tool_calls_without_an_index_are_told_apart_by_their_ids():
    def call(name: str, arguments: str, **more: str) -> dict:
        return {"tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}

    answer = assemble(
        chunk(call("add", "{", id="a")),
        chunk(call("", "}")),
        chunk(call("sub", "{", id="b")),
        chunk(call("", "}", id="b"), finish_reason="tool_calls"),
    )
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [c["function"]["name"] for c in calls] == ["add", "sub"]
    assert [c["function"]["arguments"] for c in calls] == ["{}", "{}"]


def test_tool_calls_of_one_delta_without_an_index_stay_apart():
    calls = [{"id": i, "function": {"name": i, "arguments": "{}"}} for i in "ab"]
    answer = assemble(chunk({"tool_calls": calls}, finish_reason="tool_calls"))
    assert [c["id"] for c in answer["choices"][0]["message"]["tool_calls"]] == ["a", "b"]


def test_index_inside_a_plain_tool_call_does_not_break_the_short_stream():
    call = {"index": None, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "b"}]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    first = json.loads(read(short_stream(answer, include_usage=False))[0])
    assert [c["index"] for c in first["choices"][0]["delta"]["tool_calls"]] == [0, 1]


def test_several_choices_are_assembled_side_by_side_and_sorted():
    answer = assemble(
        chunk({"content": "b1"}, index=1),
        chunk({"content": "a1"}, index=0),
        chunk({"content": "b2"}, index=1, finish_reason="length"),
        chunk({"content": "a2"}, index=0, finish_reason="stop"),
    )
    assert [c["message"]["content"] for c in answer["choices"]] == ["a1a2", "b1b2"]
    assert [c["finish_reason"] for c in answer["choices"]] == ["stop", "length"]


def test_choice_without_an_index_is_the_first():
    answer = assemble(
        chunk({"content": "a"}, index=None), chunk({}, index=None, finish_reason="stop")
    )
    assert answer["choices"][0]["index"] == 0
    assert answer["choices"][0]["message"]["content"] == "a"


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
def test_usage_may_come_in_a_chunk_without_choices(choices):
    usage = {"total_tokens": 3}
    answer = assemble(
        {**chunk({"content": "x"}, finish_reason="stop"), "usage": None},
        {**choices, "usage": usage},
    )
    assert answer["usage"] == usage


def test_token_ids_and_logprobs_are_joined_across_chunks():
    nothing = {"content": None, "refusal": None}
    answer = assemble(
        {**chunk({"role": "assistant"}, logprobs=nothing), "prompt_token_ids": [1, 2]},
        chunk({"content": "a"}, token_ids=[3], logprobs={"content": [{"logprob": -1.0}]}),
        chunk({"content": "b"}, token_ids=[4, 5], logprobs={"content": [{"logprob": -2.0}]}),
        chunk({}, finish_reason="stop", token_ids=None, logprobs=None),
    )
    choice = answer["choices"][0]
    assert answer["prompt_token_ids"] == [1, 2] and choice["token_ids"] == [3, 4, 5]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-1.0, -2.0]


def test_missing_done_is_accepted_after_a_finish_reason():
    answer = assemble(chunk({"role": "assistant", "content": "x"}), {"choices": [STOP]})
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "x"}


def test_what_follows_done_is_ignored():
    assert assemble(chunk({"content": "x"}, finish_reason="stop"), "[DONE]", "garbage")


def test_null_function_of_a_tool_call_delta_is_nothing():
    delta = {"tool_calls": [{"index": 0, "id": "a", "function": None}]}
    rest = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": None}}]}
    answer = assemble(chunk(delta), chunk(rest, finish_reason="tool_calls"))
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": ""}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "without an answer"),
        (["[DONE]"], "without an answer"),
        ([chunk({"content": "half"})], "without a finish reason"),
        ([chunk({"content": "half"}), "[DONE]"], "without a finish reason"),
        ([chunk({}, finish_reason="stop"), chunk({}, index=1)], "without a finish reason"),
        ([chunk({"content": "half"}), {"error": {"message": "out of memory"}}], "out of memory"),
        (["{"], "not JSON: '{'"),
        (["null"], "not a JSON object: 'null'"),
    ],
)
def test_stream_that_is_not_an_answer_says_why(events, problem):
    with pytest.raises(MalformedAnswer) as caught:
        assemble(*events)
    assert problem in str(caught.value)


def test_long_garbage_is_quoted_in_part():
    with pytest.raises(MalformedAnswer) as caught:
        assemble("x" * 5000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "halves, whole",
    [(("\\ud83d", "\\ude00"), "😀"), (("a\\ud83d", "b"), "a�b"), (("ä", "天"), "ä天")],
)
def test_character_that_comes_in_halves_is_whole_or_replaced(halves, whole):
    assembler = Assembler()
    for half in halves:
        assembler.add(f'{{"choices": [{{"index": 0, "delta": {{"content": "{half}"}}}}]}}')
    assembler.add('{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}')
    streamed = assembler.completion()["choices"][0]["message"]["content"]
    message = f'{{"role": "assistant", "content": "{"".join(halves)}"}}'
    plain = f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}]}}'
    assert streamed == whole
    assert parse_completion(plain.encode())["choices"][0]["message"]["content"] == whole
