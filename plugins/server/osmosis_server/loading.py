"""What `osmosis serve` runs: a workflow, or what a plugin makes a program of."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from osmosis_core import ConfigError
from osmosis_core.discovery import load_entrypoint
from osmosis_core.execution import Program
from osmosis_core.plugins import get_plugins
from osmosis_core.validation import validate_program


def served_program(
    target: str, mcp: Path | None = None, log: Path | None = None, *, is_checked: bool = True
) -> Program:
    """The program of a TARGET, or of a directory with an MCP server, with its debug logs placed.

    Raises:
        ConfigError: it cannot be loaded, has errors, or has no debug logs.
    """
    if mcp is not None:
        program = get_plugins().adapt_target(mcp)
        if program is None:
            raise ConfigError("--mcp needs agent loops; pip install 'osmosis-core[agent-loop]'")
        name = str(mcp)
    else:
        entrypoint = load_entrypoint(target)
        program, name = entrypoint.program, entrypoint.name
    if is_checked:
        _check(program, name, target)
    return program if log is None else _logging(program, log)


def _check(program: Program, name: str, target: str) -> None:
    found = validate_program(program, name)
    for issue in found.warnings:
        click.echo(f"warning: {issue.message} [{issue.code}]", err=True)
    errors = [f"{i.message} [{i.code}]" for i in found.errors if i.code != "MISSING_GRADER"]
    if errors:
        raise ConfigError(f"{target!r}: {'; '.join(errors)}; --no-validate serves it all the same")


def _logging(program: Program, log: Path) -> Program:
    config = program.workflow_config
    if config is None or "debug_dir" not in type(config).model_fields:
        raise ConfigError("--log goes with agent loops: it is where ctx.log_event writes")
    folder = str(log / str(int(time.time())))
    return replace(program, workflow_config=config.model_copy(update={"debug_dir": folder}))
