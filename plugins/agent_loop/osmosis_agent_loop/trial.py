"""Run a loop on rows of a data set, one after the other, against any policy: `osmosis test`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from osmosis_agent_loop.agent_loop import RolloutAgentLoop, stub_request
from osmosis_agent_loop.client import LLMClientProtocol
from osmosis_agent_loop.context import RolloutResult
from osmosis_agent_loop.datasets import Row
from osmosis_agent_loop.running import roll_out
from osmosis_agent_loop.settings import get_settings
from osmosis_core import ConfigError, PolicyCall, RolloutContext, WorkflowError
from osmosis_core.errors import boundary, one_line
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.plugins import get_plugins

_NO_KEY = "-"
_SYSTEMIC = (401, 403, 404)

type Wrap = Callable[[LLMClientProtocol, list[Any]], LLMClientProtocol]
"""Given a rollout's client and tools: the client that the loop gets instead."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """How one row went."""

    row_index: int
    success: bool
    error: str | None
    duration_ms: float
    token_usage: dict[str, int]
    reward: float | None
    finish_reason: str | None


@dataclass(slots=True)
class Report:
    """How all rows went."""

    results: list[RowResult] = field(default_factory=list[RowResult])
    duration_ms: float = 0.0
    stopped: str | None = None
    """Why rows were left out, such as a refused key."""

    def to_json(self) -> dict[str, Any]:
        """The published shape (protocol.md 3.1)."""
        passed = sum(result.success for result in self.results)
        summary: dict[str, Any] = {
            "total": len(self.results),
            "passed": passed,
            "failed": len(self.results) - passed,
            "total_duration_ms": self.duration_ms,
            "total_tokens": sum(result.token_usage["total_tokens"] for result in self.results),
        }
        if self.stopped is not None:
            summary |= {"stopped_early": True, "stop_reason": self.stopped}
        return {"summary": summary, "results": [asdict(result) for result in self.results]}

    def write(self, path: Path) -> None:
        """Write it as JSON; raises ConfigError when the file cannot be written."""
        try:
            path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"-o {str(path)!r}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Trial:
    """What each row is run with."""

    agent_loop: RolloutAgentLoop
    max_turns: int
    completion_params: dict[str, Any]
    debug_dir: str | None = None
    wrap: Wrap | None = None


def chosen_policy(
    model: str | None, base_url: str | None, api_key: str | None, name: str | None
) -> AbstractAsyncContextManager[PolicyEndpoint]:
    """A model of LiteLLM's, an endpoint at a URL, or a registered policy.

    Raises:
        PluginError: no plugin offers the policy.
    """
    if name is not None:
        return get_plugins().policy(name)()
    if base_url is not None:
        return nullcontext(PolicyEndpoint(base_url, api_key, model))
    from osmosis_server.models import litellm_policy

    return litellm_policy(str(model) if "/" in str(model) else f"openai/{model}")


async def run_rows(
    trial: Trial,
    rows: list[Row],
    policy: AbstractAsyncContextManager[PolicyEndpoint],
    report: Report,
    tell: Callable[[RowResult], None],
) -> None:
    """Run the rows, telling each as it ends; a policy that nobody can use ends the run."""
    began = time.monotonic()
    async with policy as endpoint:
        try:
            for row in rows:
                result, calls = await _run_row(trial, row, endpoint)
                report.results.append(result)
                tell(result)
                if (reason := _systemic(calls)) is not None:
                    report.stopped = reason
                    return
        finally:
            report.duration_ms = (time.monotonic() - began) * 1000


async def _run_row(
    trial: Trial, row: Row, endpoint: PolicyEndpoint
) -> tuple[RowResult, tuple[PolicyCall, ...]]:
    request = stub_request(
        f"test-{row.index}",
        messages=row.messages,
        completion_params=trial.completion_params,
        max_turns=trial.max_turns,
        metadata=row.metadata,
    )
    key = endpoint.api_key or _NO_KEY
    where = endpoint.base_url, key, request.rollout_id
    rollout = RolloutContext(*where, model=endpoint.model, retry=get_settings().client.retry)
    began, error, result = time.monotonic(), None, None
    with rollout:
        try:
            with boundary(WorkflowError):
                result = await roll_out(
                    trial.agent_loop, request, wrap=trial.wrap, debug_dir=trial.debug_dir
                )
            error = result.error_message
        except WorkflowError as raised:
            kind = type(raised.__cause__ or raised).__name__
            error = one_line(f"{kind}: {raised}")
    took_ms = (time.monotonic() - began) * 1000
    calls = tuple(rollout.calls)
    return _row_result(row, result, error, took_ms, calls), calls


def _row_result(
    row: Row,
    result: RolloutResult | None,
    error: str | None,
    took_ms: float,
    calls: tuple[PolicyCall, ...],
) -> RowResult:
    return RowResult(
        row.index,
        result is not None and not result.is_error,
        error,
        round(took_ms, 3),
        _usage(calls),
        result.reward if result else None,
        result.finish_reason if result else None,
    )


def _usage(calls: tuple[PolicyCall, ...]) -> dict[str, int]:
    usages = [call.usage for call in calls if call.usage]
    prompt, completion = (
        sum(n for usage in usages if isinstance(n := usage.get(name), int))
        for name in ("prompt_tokens", "completion_tokens")
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "num_llm_calls": len(calls),
    }


def _systemic(calls: tuple[PolicyCall, ...]) -> str | None:
    """Why no row can succeed: a refused key, no such model, nobody there; None otherwise."""
    last = calls[-1] if calls else None
    if last is None or last.error is None or not last.attempts:
        return None
    status = last.attempts[-1].status
    is_gone = status is None and "cannot be reached" in last.error
    return last.error if is_gone or status in _SYSTEMIC else None


def print_report(report: Report) -> None:
    """One line on stdout, and why the run stopped early on stderr."""
    summary = report.to_json()["summary"]
    if report.stopped is not None:
        click.echo(f"stopped early: {report.stopped}", err=True)
    seconds = summary["total_duration_ms"] / 1000
    counts = f"{summary['passed']} passed, {summary['failed']} failed, of {summary['total']} rows"
    click.echo(f"{counts}; {summary['total_tokens']} tokens, {seconds:.1f} s")
