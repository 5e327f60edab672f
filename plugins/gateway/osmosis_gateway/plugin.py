"""What this distribution offers to osmosis: the `osmosis gateway` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def osmosis_register_commands(cli: click.Group) -> None:
    """Add `osmosis gateway`."""
    from osmosis_gateway.cli import gateway

    cli.add_command(gateway)
