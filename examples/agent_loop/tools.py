"""Two tools, and what is answered to a tool call, a bad one too."""

from __future__ import annotations

from typing import Any

from osmosis_agent_loop.errors import ToolArgumentError
from osmosis_agent_loop.tools import (
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    serialize_tool_result,
)


async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return round(a * b, 4)


FUNCTIONS = {"add": add, "multiply": multiply}
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": function.__doc__, "parameters": NUMBERS},
    }
    for name, function in FUNCTIONS.items()
]


async def execute_tool(tool_call: dict[str, Any]) -> dict[str, Any]:
    """Run one tool call; what is wrong with it is told to the model."""
    try:
        call_id, name, arguments = get_tool_call_info(tool_call)
    except ToolArgumentError as error:
        return create_tool_error_result(error.tool_call_id, str(error))
    if name not in FUNCTIONS:
        return create_tool_error_result(call_id, f"Unknown tool: {name}")
    try:
        result = await FUNCTIONS[name](**arguments)
    except TypeError as error:
        return create_tool_error_result(call_id, str(error))
    return create_tool_result(call_id, serialize_tool_result(result))
