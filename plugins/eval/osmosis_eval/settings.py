"""What was asked for, checked as far as that goes without a network or a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from osmosis_core import ConfigError, WireOptions
from osmosis_core.discovery import Entrypoint, load_entrypoint
from osmosis_core.errors import nearest
from osmosis_core.execution import Program
from osmosis_core.hookspecs import BackendFactory
from osmosis_core.plugins import get_plugins
from osmosis_core.validation import validate_program
from osmosis_eval.datasets import Row, read_rows, select_rows
from osmosis_eval.endpoint import PolicyChoice, external_policy, registered_policy
from osmosis_eval.results import check_unused, run_name
from osmosis_eval.servers import Servers


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for on the command line."""

    target: str | None
    """None only where servers are given."""
    dataset: Path
    servers: Servers | None = None
    """Where rollouts run instead of in `backend`."""
    policy: str | None = None
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    plain: bool = False
    capture: dict[str, Any] = field(default_factory=dict[str, Any])
    preflight: bool = True
    offset: int = 0
    limit: int | None = None
    per_row: int = 1
    concurrency: int | None = None
    agent_timeout_sec: float = 600.0
    grader_timeout_sec: float = 150.0
    backend: str = "local"
    backend_options: dict[str, Any] = field(default_factory=dict[str, Any])
    by_key: str | None = None
    output: Path | None = None
    show: int = 0
    as_json: bool = False
    is_quiet: bool = False

    @property
    def wire(self) -> WireOptions:
        """How the policy is asked."""
        return WireOptions(stream=not self.plain, capture=self.capture)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Settings that were found good, with what they name."""

    settings: Settings
    program: Program | None
    """None when only the servers have it."""
    rows: list[Row]
    policy: PolicyChoice
    backend: BackendFactory
    name: str


def prepare(settings: Settings) -> Prepared:
    """Load and check everything that needs no network; raises OsmosisError."""
    if settings.output is not None:
        check_unused(settings.output)
    policy = _policy(settings)
    backend = _backend(settings)
    entrypoint = None if settings.target is None else _entrypoint(settings.target)
    rows = select_rows(read_rows(settings.dataset), settings.offset, settings.limit)
    if settings.by_key is not None:
        _check_key(settings.by_key, rows)
    program = entrypoint and entrypoint.program
    name = run_name(entrypoint.name if entrypoint else "server")
    return Prepared(settings, program, rows, policy, backend, name)


def _backend(settings: Settings) -> BackendFactory:
    if settings.servers is not None:
        return settings.servers.backend()
    return get_plugins().backend(settings.backend)


def _entrypoint(target: str) -> Entrypoint:
    if target.lower().endswith(".toml"):
        raise ConfigError(
            f"{target!r}: TOML configs are not supported yet by this version; give an "
            "entrypoint: module, module:attr or a path to a .py file"
        )
    entrypoint = load_entrypoint(target)
    _validate(entrypoint)
    return entrypoint


def _policy(settings: Settings) -> PolicyChoice:
    if settings.policy is not None:
        return registered_policy(settings.policy)
    return external_policy(settings.base_url or "", settings.model, settings.api_key_env)


def _validate(entrypoint: Entrypoint) -> None:
    checked = validate_program(entrypoint.program, entrypoint.name)
    for issue in checked.warnings:
        click.echo(f"warning: {issue.message}", err=True)
    errors = [issue.message for issue in checked.errors if issue.code != "MISSING_GRADER"]
    if errors:
        raise ConfigError(f"{entrypoint.target!r}: {'; '.join(errors)}")


def _check_key(key: str, rows: list[Row]) -> None:
    known = {name for row in rows for name in row.metadata or {}}
    if key not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"--by {key!r}: no row has it in its metadata; there is {there}{nearest(key, known)}"
        )
