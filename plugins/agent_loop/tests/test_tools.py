"""Tool helpers, message helpers (protocol.md 2.1, "Tool helpers")."""

import asyncio

import pytest

from osmosis_agent_loop import messages
from osmosis_agent_loop.errors import OsmosisRolloutError, ToolExecutionError
from osmosis_agent_loop.tools import (
    ToolArgumentError,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    parse_tool_arguments,
    serialize_tool_result,
)


def call(arguments, **more):
    return {"id": "c1", "function": {"name": "add", "arguments": arguments}, **more}


def test_create_tool_result_is_a_tool_message():
    assert create_tool_result("c1", "4") == {"role": "tool", "content": "4", "tool_call_id": "c1"}


def test_create_tool_error_result_says_error():
    assert create_tool_error_result("c1", "no")["content"] == "Error: no"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ("as is", "as is"),
        ({"a": [1]}, '{"a": [1]}'),
        (None, "null"),
    ],
)
def test_serialize_tool_result_writes_each_kind(value, text):
    assert serialize_tool_result(value) == text


def test_serialize_tool_result_refuses_what_is_no_json():
    with pytest.raises(TypeError):
        serialize_tool_result(object())


@pytest.mark.parametrize("given", [{"a": 1}, '{"a": 1}'])
def test_parse_tool_arguments_takes_an_object_or_its_text(given):
    assert parse_tool_arguments(given) == {"a": 1}


@pytest.mark.parametrize("given", ["{a: 1", "", "[1]", "3", None, 3, "[" * 100_000])
def test_parse_tool_arguments_refuses_anything_else(given):
    with pytest.raises(ToolArgumentError, match="the arguments are"):
        parse_tool_arguments(given)


def test_get_tool_call_info_reads_a_call():
    assert get_tool_call_info(call('{"a": 1}')) == ("c1", "add", {"a": 1})


def test_get_tool_call_info_has_stand_ins():
    assert get_tool_call_info({"function": {"arguments": "{}"}}) == ("unknown", "", {})


def test_get_tool_call_info_says_whose_arguments_are_broken():
    with pytest.raises(ToolArgumentError) as caught:
        get_tool_call_info(call("{broken"))
    assert (caught.value.tool_call_id, caught.value.tool_name) == ("c1", "add")
    assert issubclass(ToolArgumentError, ToolExecutionError)
    assert issubclass(ToolExecutionError, OsmosisRolloutError)


async def test_execute_tool_calls_runs_all_at_once_in_order():
    gate = asyncio.Event()

    async def run(number):
        if number == 2:
            gate.set()
        await gate.wait()
        return number

    assert await execute_tool_calls([0, 1, 2], run) == [0, 1, 2]
    assert await execute_tool_calls([], run) == []


async def test_execute_tool_calls_raises_the_first_exception_and_leaves_no_call_running():
    ended = []

    async def run(number):
        if number == 1:
            raise ValueError("second")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="second"):
        await execute_tool_calls([0, 1, 2], run)
    assert ended == [0, 2]


def test_parse_tool_calls_takes_only_lists():
    assert messages.parse_tool_calls({"tool_calls": [{"id": "c"}]}) == [{"id": "c"}]
    assert messages.parse_tool_calls({"tool_calls": None}) == messages.parse_tool_calls({}) == []


@pytest.mark.parametrize(
    ("stop", "normal"), [(None, None), ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1], None)]
)
def test_normalize_stop_gives_a_list_or_none(stop, normal):
    assert messages.normalize_stop(stop) == normal


def test_message_helpers_have_their_documented_defaults():
    assert (messages.get_message_content({}), messages.get_message_role({})) == ("", "unknown")
    assert messages.get_message_content({"content": [{"type": "text", "text": "hi"}]}) == "hi"
    said = [{"role": "user"}, {"role": "tool"}, {"role": "assistant"}, {"role": "user"}]
    assert messages.count_messages_by_role(said) == {"user": 2, "tool": 1, "assistant": 1}
    is_role = messages.is_user_message, messages.is_tool_message, messages.is_assistant_message
    assert [f(m) for f, m in zip(is_role, said[:3], strict=True)] == [True] * 3
