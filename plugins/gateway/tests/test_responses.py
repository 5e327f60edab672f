import httpx2
import openai
import pytest
from pydantic import BaseModel

from osmosis_core.testing import Cut, Say, Status, Tool, Turn

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ASK = [{"role": "user", "content": "hello"}]

TOOL = {"type": "function", "name": "add", "description": "Add.", "parameters": ADD, "strict": True}


def test_text_and_usage(world):
    answer = (
        world("hello")
        .openai("writer")
        .responses.create(model="m", input="hi", instructions="Be kind.", max_output_tokens=9)
    )
    assert (answer.output_text, answer.status) == ("hello", "completed")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0


def test_request_is_translated(world):
    opened = world("ok")
    opened.openai().responses.create(
        model="m",
        input=[{"role": "developer", "content": "D"}, *ASK],
        instructions="S",
        max_output_tokens=9,
        temperature=0.3,
        reasoning={"effort": "low"},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
    )
    sent = opened.sent()
    assert [m["role"] for m in sent["messages"]] == ["system", "system", "user"]
    assert (sent["max_tokens"], sent["temperature"], sent["reasoning_effort"]) == (9, 0.3, "low")
    assert sent["tools"][0]["function"] == {k: v for k, v in TOOL.items() if k != "type"}
    assert sent["tool_choice"]["function"] == {"name": "add"}
    assert sent["parallel_tool_calls"] is False


def test_tool_loop_comes_back_as_one_turn(world):
    opened = world(Turn((Tool("add", '{"a": 1}'), Tool("add", '{"a":2}')), "Let me."), "3")
    client, first = opened.openai(), list(ASK)
    answer = client.responses.create(model="m", input=first, tools=[TOOL])
    calls = [item for item in answer.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": c.call_id, "output": f"{c.arguments}!"}
        for c in calls
    ]
    client.responses.create(model="m", input=[*first, *answer.output, *results], tools=[TOOL])
    _, assistant, *tools = opened.sent()["messages"]
    assert assistant == opened.rollout.calls[0].answer
    assert [tool["content"] for tool in tools] == ['{"a": 1}!', '{"a":2}!']
    assert [tool["tool_call_id"] for tool in tools] == [c["id"] for c in assistant["tool_calls"]]
    assert [(call.continues, call.findings) for call in opened.rollout.calls] == [
        (None, []),
        (0, []),
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"},
            },
        ),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf,x"},
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf,x"},
            },
        ),
    ],
)
def test_images_and_files_are_carried(world, given, expected):
    opened = world("ok")
    opened.openai().responses.create(model="m", input=[{"role": "user", "content": [given]}])
    assert opened.sent()["messages"][0]["content"] == [expected]


def test_structured_output(world):
    class Sum(BaseModel):
        total: int

    opened = world('{"total": 4}')
    answer = opened.openai().responses.parse(model="m", input="2 + 2", text_format=Sum)
    assert answer.output_parsed == Sum(total=4)
    wanted = opened.sent()["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"]) == ("json_schema", "Sum")


def test_stream_ends_in_the_same_response(world):
    script = Turn((Tool("add", {"a": 1}), Tool("add", {"b": "é" * 20})), "text before tools")
    client = world(script, script).openai()
    with client.responses.stream(model="m", input="x", tools=[TOOL]) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    whole = client.responses.create(model="m", input="x", tools=[TOOL])
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [shown(item) for item in streamed.output] == [shown(item) for item in whole.output]


def shown(item):
    told = item.model_dump(exclude_none=True)
    hidden = ("id", "call_id", "parsed_arguments")
    return {k: v for k, v in told.items() if k not in hidden}


async def test_stream_asynchronously_with_reasoning(world):
    opened = world(Say("four", reasoning="two and two"))
    async with opened.openai_async() as client:
        stream = await client.responses.create(model="m", input="2 + 2", stream=True)
        deltas = [e.delta async for e in stream if e.type.endswith("text.delta")]
    assert deltas == ["two and two", "four"]


def test_reasoning_goes_back_to_the_policy(world):
    opened = world(Say("four", reasoning="two and two"), "ok")
    client = opened.openai()
    answer = client.responses.create(model="m", input="2 + 2")
    client.responses.create(model="m", input=[*ASK, *answer.output, *ASK])
    assert opened.sent()["messages"][1] == opened.rollout.calls[0].answer


def test_cut_at_the_token_limit_is_incomplete(world):
    opened = world(Say("half an ans", finish_reason="length"))
    answer = opened.openai().responses.create(model="m", input="x")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_stream_that_breaks_is_a_failed_response(world):
    stream = world(Cut(after=3)).openai().responses.create(model="m", input="x", stream=True)
    last = list(stream)[-1]
    assert last.type == "response.failed"
    assert "cut" in last.response.error.message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: the gateway stores nothing"),
        ({"background": True}, "background: the gateway stores nothing"),
        ({"tools": [{"type": "web_search"}]}, "'web_search' runs at OpenAI"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "type 'item_reference'"),
    ],
)
def test_what_cannot_be_carried_is_refused(world, more, said):
    with pytest.raises(openai.BadRequestError, match=said):
        world("x").openai().responses.create(model="m", **{"input": "x", **more})


def test_error_of_the_policy_keeps_its_status(world):
    opened = world(Status(400, "context too long"))
    with pytest.raises(openai.BadRequestError, match="context too long"):
        opened.openai().responses.create(model="m", input="x", stream=True)


def test_malformed_request_is_a_400(world):
    where = world("x").gateway.endpoint()
    key = {"authorization": f"Bearer {where.api_key}"}
    answer = httpx2.post(f"{where.openai_url}/responses", json={"input": [{}]}, headers=key)
    assert answer.status_code == 400
    assert "malformed: KeyError 'role'" in answer.json()["error"]["message"]
