"""One evaluation, from its settings to its summary and exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import Runner
from collections.abc import Coroutine
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

from osmosis_core import ConfigError, ExecutionBackend, OsmosisError, RolloutContext
from osmosis_core.cli import reserved_stdout
from osmosis_core.errors import describe
from osmosis_eval.endpoint import check_endpoint
from osmosis_eval.interrupt import EXIT_CODE, stop_on_sigint
from osmosis_eval.report import print_report, progress_bar
from osmosis_eval.results import Redact, ResultFiles, create_directory, redactor, without_secrets
from osmosis_eval.runner import Outcome, Plan, run_rollouts
from osmosis_eval.servers import check_servers
from osmosis_eval.settings import Prepared, Settings, prepare
from osmosis_eval.show import conversation
from osmosis_eval.stats import Totals

_DEFAULT_CONCURRENCY = 4
_NO_KEY = "-"
"""A registered policy without a key is not sent the user's OSMOSIS_API_KEY."""


def evaluate(settings: Settings) -> int:
    """Run an evaluation, print its summary on stdout, and return the exit code.

    Raises:
        OsmosisError: something is wrong before the first rollout, or results cannot be written.
    """
    stdouts = reserved_stdout() if settings.as_json else nullcontext(sys.stdout)
    with stdouts as stdout, Runner(loop_factory=_Loop) as runner:
        runner.get_loop().set_task_factory(_contained)
        summary = runner.run(_evaluate(prepare(settings)))
        if settings.as_json:
            print(json.dumps(summary, indent=2), file=stdout, flush=True)
        else:
            print_report(summary)
    if summary["interrupted"]:
        return EXIT_CODE
    return 1 if summary["rollouts"]["failed"] else 0


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose end does not wait for the threads that user code left running."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Leave the threads to `close`, which does not wait either."""


def _contained(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Tasks in which `sys.exit()` of user code is an error of theirs, not the end of the run."""

    async def contained() -> Any:
        try:
            return await coroutine
        except SystemExit as error:
            raise RuntimeError(f"called sys.exit({error.code!r})") from error

    return asyncio.Task(contained(), loop=loop, **options)


async def _evaluate(prepared: Prepared) -> dict[str, Any]:
    settings = prepared.settings
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(prepared.policy.factory())
        if prepared.policy.is_external and settings.preflight:
            await check_endpoint(endpoint, settings.wire)
        directory = create_directory(settings.output, prepared.name)
        backend = _create_backend(prepared, directory)
        stack.push_async_callback(backend.shutdown)
        if settings.servers is not None:
            await check_servers(backend)
        key = endpoint.api_key or (None if prepared.policy.is_external else _NO_KEY)
        context = RolloutContext(endpoint.base_url, key, model=endpoint.model, wire=settings.wire)
        redact = redactor(context.api_key)
        with ResultFiles(directory, redact) as files, context:
            return await _roll_out(prepared, backend, files, redact)


def _create_backend(prepared: Prepared, directory: Path) -> ExecutionBackend:
    program, settings = prepared.program, prepared.settings
    cap = {"max_concurrent": settings.concurrency} if settings.concurrency else {}
    try:
        if settings.servers is not None or program is None:
            return prepared.backend(**cap)
        return prepared.backend(
            **cap,
            **settings.backend_options,
            workflow=program.workflow,
            workflow_config=program.workflow_config,
            grader=program.grader,
            grader_config=program.grader_config,
            artifacts_root=directory.absolute() / "artifacts",
        )
    except OsmosisError:
        raise
    except Exception as error:  # boundary: a backend may be anyone's
        raise ConfigError(
            f"backend {settings.backend!r} cannot be built: {describe(error)}"
        ) from error


async def _roll_out(
    prepared: Prepared, backend: ExecutionBackend, files: ResultFiles, redact: Redact
) -> dict[str, Any]:
    settings, plan = prepared.settings, _plan(prepared, backend)
    totals = Totals(plan.total, settings.by_key)
    with stop_on_sigint() as stop, progress_bar(plan.total, is_quiet=settings.is_quiet) as bar:

        def report(outcome: Outcome) -> None:
            outcome = without_secrets(outcome, redact)
            files.append(outcome)
            totals.add(outcome)
            if totals.finished <= settings.show:
                bar.show(conversation(outcome), to_stderr=settings.as_json)
            bar.update(totals)

        try:
            await run_rollouts(backend, plan, report, stop)
        finally:
            summary = _summary(prepared, totals, files.directory, is_interrupted=stop.is_set())
            files.write_summary(summary)
    return summary


def _plan(prepared: Prepared, backend: ExecutionBackend) -> Plan:
    settings = prepared.settings
    wanted = settings.concurrency or backend.max_concurrency or _DEFAULT_CONCURRENCY
    return Plan(
        name=prepared.name,
        rows=prepared.rows,
        per_row=settings.per_row,
        concurrency=min(wanted, backend.max_concurrency or wanted),
        agent_timeout_sec=settings.agent_timeout_sec,
        grader_timeout_sec=settings.grader_timeout_sec,
        has_grader=prepared.program is None or prepared.program.grader is not None,
    )


def _summary(
    prepared: Prepared, totals: Totals, directory: Path, *, is_interrupted: bool
) -> dict[str, Any]:
    settings, servers = prepared.settings, prepared.settings.servers
    grader = prepared.program and prepared.program.grader
    return {
        "name": prepared.name,
        "target": settings.target,
        "dataset": str(settings.dataset),
        "policy": prepared.policy.shown,
        "backend": "server" if servers else settings.backend,
        **({"servers": list(servers.urls), "protocol": servers.protocol} if servers else {}),
        "grader": grader.__name__ if grader else None,
        "rows": len(prepared.rows),
        "per_row": settings.per_row,
        "interrupted": is_interrupted,
        **totals.to_json(),
        "output": str(directory),
    }
