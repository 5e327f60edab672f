"""What osmosis-eval offers: the `osmosis eval` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def osmosis_register_commands(cli: click.Group) -> None:
    """Add `osmosis eval`."""
    from osmosis_eval.cli import group

    cli.add_command(group)
