"""Errors of agent loops, under their published names and in the kernel's tree.

RolloutError
└── OsmosisRolloutError
    ├── OsmosisTransportError    no answer: no connection, or a cut or unreadable one
    ├── OsmosisTimeoutError      the policy stopped answering
    ├── OsmosisServerError       it answered 5xx or 429 to the last try
    ├── OsmosisValidationError   it refused the request, or cannot be given it
    ├── AgentLoopNotFoundError
    ├── AgentLoopError           `get_tools` or `run` did not do what they must
    └── ToolExecutionError  ←  ToolArgumentError
ConfigError  ←  AgentLoopValidationError, ServeError, MCPLoadError
"""

from __future__ import annotations

from collections.abc import Iterable

from osmosis_core import ConfigError, PolicyError, RolloutError, RolloutErrorCategory


class OsmosisRolloutError(RolloutError):
    """Base of the errors of agent loops."""


class OsmosisTransportError(OsmosisRolloutError, PolicyError):
    """No usable answer of the policy, after all tries."""

    default_category = RolloutErrorCategory.HTTP_ERROR


class OsmosisTimeoutError(OsmosisRolloutError, PolicyError):
    """The policy stopped answering, in all tries."""

    default_category = RolloutErrorCategory.HTTP_ERROR


class _StatusError(OsmosisRolloutError, PolicyError):
    default_category = RolloutErrorCategory.HTTP_ERROR

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code

    def __reduce__(self) -> tuple[type[_StatusError], tuple[str, int]]:
        return type(self), (str(self), self.status_code)


class OsmosisServerError(_StatusError):
    """The policy answered 5xx or asked to wait, in all tries; `status_code` is the last one's."""


class OsmosisValidationError(_StatusError):
    """The policy refused the request; it was not sent again."""


class AgentLoopError(OsmosisRolloutError):
    """`get_tools` or `run` did not do what they must."""

    default_category = RolloutErrorCategory.VALIDATION_ERROR


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop is registered under a name; `available` are those that are."""

    exit_code = 2

    def __init__(self, name: str, available: Iterable[str] = ()) -> None:
        self.name, self.available = name, sorted(available)
        there = ", ".join(self.available) or "none"
        super().__init__(f"no agent loop {name!r} is registered; there is {there}")


class ToolExecutionError(OsmosisRolloutError):
    """A tool did not run; `tool_call_id` and `tool_name` say which, as far as that is known."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call are not a JSON object."""


class AgentLoopValidationError(ConfigError):
    """An agent loop has errors that `validate_agent_loop` finds."""


class ServeError(ConfigError):
    """An agent loop cannot be served as asked."""


class MCPLoadError(ConfigError):
    """A directory holds no MCP server that can be loaded."""
