"""What users subclass to write a loop by hand."""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from osmosis_agent_loop.errors import AgentLoopError
from osmosis_agent_loop.schemas import InitResponse, OpenAIFunctionToolSchema, RolloutRequest
from osmosis_core.errors import boundary, describe, one_line

if TYPE_CHECKING:
    from osmosis_agent_loop.context import RolloutContext, RolloutResult

type Tools = list[OpenAIFunctionToolSchema | dict[str, Any]]

LOCAL_URL = "http://local-rollout.local"
"""`request.server_url` where no trainer asked for the rollout."""


class RolloutAgentLoop(ABC):
    """A hand-written agent; one instance serves all rollouts, so keep their state out of it.

    Raises:
        TypeError: a subclass that is not abstract has no `name`.
    """

    name: str
    """Unique identifier; the sample's id too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inherited = {name for base in cls.__mro__ for name in vars(base)}
        is_abstract = any(
            getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in inherited
        )
        if not is_abstract and not getattr(cls, "name", None):
            raise TypeError(
                f'agent loop {cls.__name__} has no name; write `name = "..."` in its class body'
            )

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> Tools | Awaitable[Tools]:
        """The tools for this rollout, in OpenAI's function format; dicts or schemas.

        Called in a thread, or awaited where it is an `async def`.
        """

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run the agent, and return `ctx.complete(...)` or `ctx.error(...)`."""

    def get_default_tools(self) -> Tools | Awaitable[Tools]:
        """The tools for a request that says nothing."""
        return self.get_tools(stub_request("discovery"))


def stub_request(rollout_id: str, **fields: Any) -> RolloutRequest:
    """A request of no trainer."""
    defaults: dict[str, Any] = {"server_url": LOCAL_URL, "messages": [], "completion_params": {}}
    return RolloutRequest.model_validate({"rollout_id": rollout_id, **defaults, **fields})


async def offered_tools(agent_loop: RolloutAgentLoop, request: RolloutRequest) -> list[Any]:
    """What `get_tools` returns.

    Raises:
        AgentLoopError: it raised, or returned no list of tools.
    """
    called = f"get_tools() of agent loop {agent_loop.name!r}"
    try:
        found = await returned_tools(agent_loop, request)
    except AgentLoopError as error:
        raise AgentLoopError(f"{called} {error}") from error
    if not isinstance(found, list):
        kind = "None" if found is None else type(found).__name__
        raise AgentLoopError(f"{called} returned {kind}; return a list of tools, empty for none")
    tools = cast("list[Any]", found)
    try:
        tool_dicts(tools)
    except ValueError as error:
        raise AgentLoopError(f"{called}: {describe(error)}; see `osmosis validate`") from error
    return tools


async def returned_tools(agent_loop: Any, request: RolloutRequest) -> Any:
    """What `get_tools` returns, whatever it is: called in a thread, or awaited.

    Raises:
        AgentLoopError: it raised, `sys.exit()` included.
    """

    def call() -> Any:
        with boundary(AgentLoopError):  # in the thread: no future takes a StopIteration
            return agent_loop.get_tools(request)

    try:
        with boundary(AgentLoopError):
            found = await asyncio.to_thread(call)
            return await found if inspect.isawaitable(found) else found
    except AgentLoopError as error:
        kind = type(error.__cause__ or error).__name__
        raise AgentLoopError(f"raised {kind}: {one_line(str(error))}") from error


def tool_dicts(tools: list[Any]) -> list[dict[str, Any]]:
    """Tools as JSON objects, dicts as they were given.

    Raises:
        ValueError: one is no tool, or cannot be written as JSON.
    """
    dicts = [
        tool.model_dump() if isinstance(tool, OpenAIFunctionToolSchema) else tool for tool in tools
    ]
    InitResponse.model_validate({"rollout_id": "check", "tools": dicts})
    try:
        json.dumps(dicts, allow_nan=False)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return dicts


def packed_tools(tools: list[Any]) -> list[Any]:
    """Tools as JSON that `unpacked_tools` reads: `[is a schema object, the tool]` of each."""
    is_schema = [isinstance(tool, OpenAIFunctionToolSchema) for tool in tools]
    return [list(pair) for pair in zip(is_schema, tool_dicts(tools), strict=True)]


def unpacked_tools(packed: list[Any]) -> list[Any]:
    """The tools as `get_tools` returned them."""
    return [
        OpenAIFunctionToolSchema.model_validate(tool) if is_schema else tool
        for is_schema, tool in packed
    ]
