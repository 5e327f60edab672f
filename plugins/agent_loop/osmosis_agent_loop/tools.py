"""Read tool calls, run them, and put their results into messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

from osmosis_agent_loop.errors import ToolArgumentError, ToolExecutionError
from osmosis_agent_loop.schemas import MessageDict

__all__ = [
    "ToolArgumentError",
    "ToolExecutionError",
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_tool_call_info",
    "parse_tool_arguments",
    "serialize_tool_result",
]

type ToolCall = dict[str, Any]
type OnExecuted = Callable[[int, float], None]

on_executed: ContextVar[OnExecuted | None] = ContextVar("osmosis_on_executed", default=None)
"""Told of each `execute_tool_calls`: how many calls, and the milliseconds that they took."""


def create_tool_result(tool_call_id: str, content: str) -> MessageDict:
    """The message that answers a tool call."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> MessageDict:
    """The message that tells the model why a tool call has no result."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """A result as text: a string as it is, a number as Python writes it, all else as JSON.

    Raises:
        TypeError: it cannot be written as JSON.
    """
    if isinstance(result, str):
        return result
    is_number = isinstance(result, int | float) and not isinstance(result, bool)
    return str(result) if is_number else json.dumps(result)


def parse_tool_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a tool call.

    Raises:
        ToolArgumentError: they are not a JSON object.
    """
    parsed: Any = arguments
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ToolArgumentError(f"the arguments are not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ToolArgumentError(
            f"the arguments are of type {type(parsed).__name__}; give a JSON object"
        )
    return parsed  # pyright: ignore[reportUnknownVariableType]


def get_tool_call_info(tool_call: ToolCall) -> tuple[str, str, dict[str, Any]]:
    """Id (`unknown` without one), function name ("" without one) and arguments of a tool call.

    Raises:
        ToolArgumentError: the arguments are not a JSON object; it carries id and name.
    """
    function: dict[str, Any] = tool_call.get("function") or {}
    tool_call_id, name = tool_call.get("id") or "unknown", function.get("name") or ""
    try:
        return tool_call_id, name, parse_tool_arguments(function.get("arguments"))
    except ToolArgumentError as error:
        raise ToolArgumentError(str(error), tool_call_id, name) from error


async def execute_tool_calls[T](
    tool_calls: Iterable[ToolCall], executor: Callable[[ToolCall], Awaitable[T]]
) -> list[T]:
    """Run all tool calls at once; results in the order of the calls.

    The first exception of an executor is raised here, once the other calls have been cancelled.
    The rollout's metrics count the calls, unless the loop does with `ctx.record_tool_call`.
    """
    began = time.monotonic()
    tasks = [asyncio.ensure_future(executor(call)) for call in tool_calls]
    if not tasks:
        return []
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        tell = on_executed.get()
        if tell is not None:
            tell(len(tasks), (time.monotonic() - began) * 1000)
