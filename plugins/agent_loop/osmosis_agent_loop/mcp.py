"""An MCP server's tools as an agent loop: no code but the tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from osmosis_agent_loop.agent_loop import RolloutAgentLoop
from osmosis_agent_loop.context import RolloutContext, RolloutResult
from osmosis_agent_loop.errors import MCPLoadError, ToolArgumentError
from osmosis_agent_loop.schemas import MessageDict, RolloutRequest
from osmosis_agent_loop.tools import (
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    serialize_tool_result,
)
from osmosis_core import ConfigError
from osmosis_core.discovery import load_target
from osmosis_core.errors import describe

_KINDS = ("FastMCP", "MCPServer")


def load_mcp_server(directory: Path | str) -> Any:
    """The one server that `main.py` in a directory defines: a `FastMCP`, or mcp 2's `MCPServer`.

    Raises:
        MCPLoadError: there is no main.py, it cannot be imported, or it defines none or several.
    """
    file = Path(directory) / "main.py"
    if not file.is_file():
        raise MCPLoadError(f"no main.py in {str(directory)!r}; define a FastMCP server there")
    try:
        module, _ = load_target(str(file))
    except ConfigError as error:
        raise MCPLoadError(str(error)) from error
    found = {id(value): value for value in vars(module).values() if _is_server(value)}
    if len(found) != 1:
        count = len(found) or "no"
        raise MCPLoadError(f"{str(file)!r} defines {count} MCP servers; define one FastMCP object")
    return next(iter(found.values()))


def _is_server(value: object) -> bool:
    return any(kind.__name__ in _KINDS for kind in type(value).__mro__)


class MCPAgentLoop(RolloutAgentLoop):
    """Asks the policy, runs the tools it calls one after the other, and asks again."""

    name = "mcp_agent"

    def __init__(self, server: Any) -> None:
        self.server = server

    async def get_tools(self, request: RolloutRequest) -> list[Any]:
        """The server's tools; their JSON Schemas as they are."""
        return [_tool(tool) for tool in await self.server.list_tools()]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Go on until an answer calls no tool; `max_turns` when that does not happen in time."""
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            answer = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(answer.message)
            if not answer.has_tool_calls:
                return ctx.complete(messages, answer.finish_reason)
            for call in answer.tool_calls:
                messages.append(await self._result(call))
                ctx.record_tool_call()
        return ctx.complete(messages, "max_turns")

    async def _result(self, call: dict[str, Any]) -> MessageDict:
        try:
            call_id, name, arguments = get_tool_call_info(call)
        except ToolArgumentError as error:
            return create_tool_error_result(error.tool_call_id, str(error))
        try:
            found = await self.server.call_tool(name, arguments)
        except Exception as error:  # boundary: a tool may raise anything
            return create_tool_error_result(call_id, describe(error))
        if getattr(found, "is_error", False):
            return create_tool_error_result(call_id, _text(found))
        return create_tool_result(call_id, _text(found))


def _tool(tool: Any) -> dict[str, Any]:
    described = tool.model_dump(by_alias=True)
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": described["inputSchema"],
    }
    return {"type": "function", "function": function}


def _text(found: Any) -> str:
    """What a tool answered as text: of mcp 2 a result, of mcp 1 its parts, or parts and data."""
    parts: Any = getattr(found, "content", found)
    if isinstance(parts, tuple):
        parts = parts[0]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(parts, list):
        return serialize_tool_result(parts)
    texts = [getattr(part, "text", None) or str(part) for part in parts]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return "\n".join(texts)
