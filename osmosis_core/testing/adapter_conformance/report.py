"""The suite without pytest: every check of an installed framework plugin, and a table of them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal
from unittest import SkipTest

import click

from osmosis_core.cli import reserved_stdout
from osmosis_core.errors import ConfigError, PluginError, describe, one_line
from osmosis_core.hookspecs import Framework
from osmosis_core.plugins import get_plugins
from osmosis_core.testing.adapter_conformance import AdapterConformance, AdapterFixtures
from osmosis_core.testing.adapter_conformance.fixtures import OPTIONAL, REQUIRED, declared
from osmosis_core.testing.adapter_conformance.kit import CHECKS, CheckFailed


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check ended; `message` says what is wrong and what to do, or why it was skipped."""

    name: str
    capability: str
    status: Literal["passed", "failed", "skipped"]
    message: str = ""


def run_checks(fixtures: AdapterFixtures) -> list[CheckResult]:
    """Run every check that the fixtures declare, each on an event loop of its own.

    Raises:
        ValueError: the fixtures declare a capability that there is not.
    """
    declared(fixtures)
    suite = AdapterConformance()
    suite.fixtures = fixtures
    order = [*REQUIRED, *OPTIONAL]
    names = sorted(CHECKS, key=lambda name: order.index(CHECKS[name].capability))
    with _without_handlers_of_last_resort():
        return [_run(suite, name) for name in names]


@contextmanager
def _without_handlers_of_last_resort() -> Generator[None]:
    """What frameworks log about errors that checks provoke is not for the user."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _run(suite: AdapterConformance, name: str) -> CheckResult:
    capability = CHECKS[name].capability
    try:
        asyncio.run(getattr(suite, name)())
    except SkipTest as reason:
        return CheckResult(name, capability, "skipped", str(reason))
    except CheckFailed as error:
        return CheckResult(name, capability, "failed", str(error))
    return CheckResult(name, capability, "passed")


def capability_table(results: Iterable[CheckResult]) -> dict[str, str]:
    """For each capability `yes`, `no` (not declared) or `failed`, in the order of the checks."""
    found: dict[str, set[str]] = {}
    for result in results:
        found.setdefault(result.capability, set()).add(result.status)
    return {
        capability: "failed" if "failed" in seen else "yes" if "passed" in seen else "no"
        for capability, seen in found.items()
    }


def load_fixtures(framework: Framework) -> AdapterFixtures:
    """What `Framework.conformance` names.

    Raises:
        PluginError: it names nothing.
        ConfigError: it cannot be imported or built, or is no `AdapterFixtures`.
    """
    path = framework.conformance
    if path is None:
        text = f"framework {framework.name!r} names no conformance fixtures; its plugin must set "
        raise PluginError(f'{text}Framework(conformance="module:Class")')
    try:
        module, _, name = path.partition(":")
        fixtures = getattr(importlib.import_module(module), name)()
    except Exception as error:
        what = f"{type(error).__name__}: {one_line(describe(error))}"
        raise ConfigError(f"the fixtures {path!r} of {framework.name!r} raise {what}") from error
    if not isinstance(fixtures, AdapterFixtures):
        raise ConfigError(f"{path!r} is a {type(fixtures).__name__}; make it an AdapterFixtures")
    return fixtures


def check_framework(name: str, *, as_json: bool) -> int:
    """`osmosis plugins check NAME`: print the table; returns the exit code, 1 when a check failed.

    Raises:
        PluginError: no plugin offers the framework, or it names no fixtures.
        ConfigError: its fixtures cannot be loaded.
    """
    framework = get_plugins().framework(name)
    with reserved_stdout():  # what frameworks print is not the answer
        results = run_checks(load_fixtures(framework))
    failures = [result for result in results if result.status == "failed"]
    click.echo(_as_json(framework, results) if as_json else _as_text(framework, results))
    for failure in [] if as_json else failures:
        click.echo(f"{failure.name}: {failure.message}", err=True)
    return 1 if failures else 0


def _version(framework: Framework) -> str | None:
    try:
        return importlib.metadata.version(framework.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _as_json(framework: Framework, results: list[CheckResult]) -> str:
    report = {
        "framework": framework.name,
        "distribution": framework.distribution,
        "version": _version(framework),
        "capabilities": capability_table(results),
        "checks": [asdict(result) for result in results],
    }
    return json.dumps(report, indent=2)


def _as_text(framework: Framework, results: list[CheckResult]) -> str:
    version = _version(framework) or "?"
    counts = {s: sum(r.status == s for r in results) for s in ("passed", "failed", "skipped")}
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines = [f"{framework.name} ({framework.distribution} {version}): {told}"]
    for capability, state in capability_table(results).items():
        own = [result for result in results if result.capability == capability]
        note = own[0].message if state == "no" else f"{len(own)} checks"
        lines.append(f"  {capability:<18} {state:<7} {note}")
    return "\n".join(lines)
