"""An agent loop as the TARGET of every command."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_agent_loop.agent_loop import RolloutAgentLoop
from osmosis_agent_loop.config import AgentLoopConfig
from osmosis_agent_loop.settings import get_settings
from osmosis_agent_loop.validator import ValidationError, validate_agent_loop
from osmosis_agent_loop.workflow import AgentLoopWorkflow
from osmosis_core import ConfigError
from osmosis_core.discovery import load_entrypoint
from osmosis_core.execution import Program
from osmosis_core.validation import Issue


def adapt(obj: object) -> Program | None:
    """A program of the agent loop that an object is or a module has; None for neither.

    A path is the directory of an MCP server, whose tools become a loop.

    Raises:
        ConfigError: the module has several, or the class cannot be made.
    """
    if isinstance(obj, Path):
        from osmosis_agent_loop.mcp import MCPAgentLoop, load_mcp_server

        return agent_loop_program(MCPAgentLoop(load_mcp_server(obj)))
    loop = _only_loop(obj) if isinstance(obj, ModuleType) else obj
    return agent_loop_program(loop) if _is_loop(loop) else None


def agent_loop_program(loop: Any, **config: Any) -> Program:
    """What backends run for an agent loop; further arguments are fields of `AgentLoopConfig`."""
    get_settings()  # raises a ConfigError here; within a model it would be pydantic's
    wanted = AgentLoopConfig.model_validate({"loop": loop, **config})

    def check() -> tuple[list[Issue], list[Issue]]:
        found = validate_agent_loop(wanted.agent_loop)
        return _issues(found.errors), _issues(found.warnings)

    return Program(AgentLoopWorkflow, wanted, check=check)


def _is_loop(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutAgentLoop) and not inspect.isabstract(value)
    return isinstance(value, RolloutAgentLoop)


def _only_loop(module: ModuleType) -> object:
    """The module's one instance, else the one class that it defines, else None."""
    found = {name: value for name, value in vars(module).items() if _is_loop(value)}
    loops = {n: value for n, value in found.items() if isinstance(value, RolloutAgentLoop)}
    classes = {n: v for n, v in found.items() if getattr(v, "__module__", "") == module.__name__}
    unique = {id(value): name for name, value in (loops or classes).items()}
    if len(unique) > 1:
        names = ", ".join(sorted(unique.values()))
        raise ConfigError(f"several agent loops in {module.__name__!r}: {names}; name module:attr")
    return next(iter((loops or classes).values()), None)


def _issues(found: list[ValidationError]) -> list[Issue]:
    return [Issue(issue.code, issue.message) for issue in found]


def load_agent_loop(target: str) -> RolloutAgentLoop:
    """The agent loop that a TARGET names.

    Raises:
        ConfigError: there is none, or its module cannot be imported.
    """
    config = load_entrypoint(target).program.workflow_config
    if not isinstance(config, AgentLoopConfig):
        raise ConfigError(f"{target!r} is a workflow, no agent loop; use `osmosis eval run`")
    return config.agent_loop
