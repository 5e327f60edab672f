"""What this distribution offers to osmosis; a loop's own modules are imported when one is met."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_core.hookspecs import ProtocolFactory, Register, hookimpl

if TYPE_CHECKING:
    import click

    from osmosis_core.execution import Program


@hookimpl
def osmosis_adapt_target(obj: object) -> Program | None:
    """Agent loops: an instance, a class, a module that has one, a directory of an MCP server."""
    if "osmosis_agent_loop.agent_loop" not in sys.modules and not isinstance(obj, Path):
        return None
    from osmosis_agent_loop.target import adapt

    return adapt(obj)


@hookimpl
def osmosis_register_protocols(register: Register[ProtocolFactory]) -> None:
    """The protocol of the first generation."""
    register("agent-loop", _agent_loop)


def _agent_loop(service: Any) -> Any:
    from osmosis_agent_loop.protocol import AgentLoopProtocol

    return AgentLoopProtocol(service)


@hookimpl
def osmosis_register_commands(cli: click.Group) -> None:
    """Add `osmosis test`."""
    from osmosis_agent_loop.cli import test

    cli.add_command(test)
