import anthropic
import pytest

from osmosis_core import RetryPolicy
from osmosis_core.testing import Cut, Say, Status, Tool, Turn

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ASK = [{"role": "user", "content": "hello"}]

TOOL = {"name": "add", "description": "Add.", "input_schema": ADD}
PNG = {"type": "base64", "media_type": "image/png", "data": "AA=="}


def ask(client, messages=ASK, **more):
    return client.messages.create(model="m", max_tokens=64, messages=messages, **more)


def test_text_and_usage(world):
    answer = ask(world("hello").anthropic("writer"))
    assert (answer.content[0].text, answer.stop_reason) == ("hello", "end_turn")
    assert answer.usage.output_tokens == 5


def test_request_is_translated(world):
    opened = world("ok")
    system = [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]
    ask(
        opened.anthropic(),
        system=[*system, {"type": "text", "text": "B"}],
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        extra_body={"top_k": 4},
    )
    sent = opened.sent()
    assert sent["messages"] == [{"role": "system", "content": "A\n\nB"}, *ASK]
    assert (sent["stop"], sent["top_k"], sent["max_tokens"]) == (["END"], 4, 64)
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)
    function = {"name": "add", "description": "Add.", "parameters": ADD}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert not sent.keys() & {"system", "thinking", "metadata", "stop_sequences"}


def test_tool_loop_comes_back_as_one_turn(world):
    opened = world(Turn((Tool("add", {"a": 1}), Tool("add", {"a": 2})), "Let me."), "3")
    client = opened.anthropic()
    answer = ask(client, tools=[TOOL])
    assert answer.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"])}
        for block in answer.content
        if block.type == "tool_use"
    ]
    said = {"role": "assistant", "content": answer.content}
    ask(client, [*ASK, said, {"role": "user", "content": results}], tools=[TOOL])
    _, assistant, *tools = opened.sent()["messages"]
    assert assistant == opened.rollout.calls[0].answer
    assert [(t["role"], t["content"]) for t in tools] == [("tool", "1"), ("tool", "2")]
    assert [(call.continues, call.findings) for call in opened.rollout.calls] == [
        (None, []),
        (0, []),
    ]


def test_tool_results_come_before_what_else_the_user_says(world):
    opened = world("ok")
    image = {"type": "image", "source": PNG}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("seen"), image]}
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    turn = [{"role": "assistant", "content": [use]}]
    ask(opened.anthropic(), [*ASK, *turn, {"role": "user", "content": [text("and?"), result]}])
    _, _, tool, user = opened.sent()["messages"]
    assert tool == {"role": "tool", "tool_call_id": "t1", "content": "seen"}
    url = {"url": "data:image/png;base64,AA=="}
    assert user["content"] == [text("and?"), {"type": "image_url", "image_url": url}]


def text(value):
    return {"type": "text", "text": value}


def test_arguments_that_are_no_object_survive_the_loop(world):
    opened = world(Tool("add", '{"a": 1,,}'), "ok")
    client = opened.anthropic()
    answer = ask(client, tools=[TOOL])
    assert answer.content[0].input == {"_raw": '{"a": 1,,}'}
    ask(client, [*ASK, {"role": "assistant", "content": answer.content}])
    (call,) = opened.sent()["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == '{"a": 1,,}'


@pytest.mark.parametrize("arguments", ['{"a": 1,,}', '{"a": "é"}', ""])
def test_stream_ends_in_the_same_message(world, arguments):
    script = Turn((Tool("add", arguments), Tool("add", {"b": 2})), "a text of some length")
    client = world(script, script).anthropic()
    with client.messages.stream(model="m", max_tokens=9, messages=ASK, tools=[TOOL]) as stream:
        streamed = stream.get_final_message()
    whole = ask(client, tools=[TOOL])
    assert [shown(block) for block in streamed.content] == [shown(b) for b in whole.content]
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)


def shown(block):
    return {k: v for k, v in block.model_dump(exclude_none=True).items() if k != "id"}


async def test_stream_asynchronously_with_thinking(world):
    opened = world(Say("four is the answer", reasoning="two and two"))
    async with opened.anthropic_async() as client:
        async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            texts = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
    assert texts == ["four is the answ", "er"]
    assert message.content[0].thinking == "two and two"


def test_thinking_goes_back_to_the_policy(world):
    opened = world(Say("four", reasoning="two and two"), "ok")
    client = opened.anthropic()
    answer = ask(client)
    ask(client, [*ASK, {"role": "assistant", "content": answer.content}, *ASK])
    assert opened.sent()["messages"][1] == opened.rollout.calls[0].answer


@pytest.mark.parametrize(
    ("finish_reason", "extra", "stop"),
    [
        ("length", {}, ("max_tokens", None)),
        ("content_filter", {}, ("refusal", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
    ],
)
def test_stop_reasons(world, finish_reason, extra, stop):
    answer = ask(world(Say("x", finish_reason=finish_reason, extra=extra)).anthropic())
    assert (answer.stop_reason, answer.stop_sequence) == stop


def test_structured_output(world):
    opened = world('{"total": 4}')
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    ask(opened.anthropic(), output_config={"format": {"type": "json_schema", "schema": schema}})
    assert opened.sent()["response_format"]["json_schema"]["schema"] == schema


def test_tokens_are_counted_by_the_latest_call(world):
    client = world("ok").anthropic()
    guess = client.messages.count_tokens(model="m", messages=ASK)
    answer = ask(client)
    learned = client.messages.count_tokens(model="m", messages=ASK)
    assert guess.input_tokens > 1
    assert learned.input_tokens == answer.usage.input_tokens


def test_stream_that_breaks_is_an_error_event(world):
    client = world(Cut(after=3)).anthropic()
    with pytest.raises(anthropic.APIStatusError, match="cut"):
        with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            stream.get_final_message()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs at Anthropic"),
        ({"extra_body": {"mcp_servers": [{"url": "x"}]}}, "the gateway runs no tools"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "search_result"),
    ],
)
def test_what_cannot_be_carried_is_refused(world, more, said):
    with pytest.raises(anthropic.BadRequestError, match=said):
        ask(world("x").anthropic(), **more)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (413, "request_too_large"), (529, "overloaded_error")],
)
def test_errors_have_anthropics_shape(world, status, kind):
    opened = world(Status(status, "no"), retry=RetryPolicy(max_attempts=1))
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(opened.anthropic(max_retries=2))
    assert caught.value.status_code == status
    assert caught.value.body["error"] == {"type": kind, "message": "no"}
    assert len(opened.policy.requests) == 1
