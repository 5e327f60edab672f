"""Gives each rollout a thread and an event loop, so one that blocks holds up nobody."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_core import (
    BackendError,
    ConcurrencyLimiter,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    ResultCallback,
    RolloutError,
    RolloutStatus,
)
from osmosis_core.backend import CancelDisposition, select_rollouts
from osmosis_core.discovery import load_program
from osmosis_core.execution import (
    Cutoff,
    RolloutCancelled,
    failed,
    grading_refusal,
    run_grader,
    run_workflow,
)
from osmosis_core.plugins import get_plugins


class Run:
    """A rollout in flight."""

    def __init__(self) -> None:
        self.status, self.has_slot = RolloutStatus.QUEUED, False
        self.cutoff, self.loop = Cutoff(), asyncio.get_running_loop()

    def cancel(self) -> None:
        """End the phase that runs; safe from any thread."""
        self.cutoff.cancelled = True  # for phases that have not begun
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.cutoff.cancel)


class AcmeBackend(ExecutionBackend):
    """Takes the keyword arguments of `LocalBackend`; see there."""

    def __init__(
        self,
        *,
        workflow: Any,
        workflow_config: Any = None,
        grader: Any = None,
        grader_config: Any = None,
        max_concurrent: int | None = None,
        max_queued: int | None = None,  # not kept here: has_capacity() is always true
        artifacts_root: str | Path | None = None,
    ) -> None:
        self.program = load_program(workflow, workflow_config, grader, grader_config)
        config = self.program.workflow_config
        cap = max_concurrent or (config and config.concurrency.max_concurrent) or 8
        self.limiter, self.threads = ConcurrencyLimiter(cap), ThreadPoolExecutor(cap)
        self.root = Path(artifacts_root or "~/.osmosis").expanduser()
        self.runs: dict[str, Run] = {}

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run a rollout to its end; see `ExecutionBackend.execute`."""
        if request.id in self.runs:
            raise BackendError(f"rollout {request.id!r} is running")
        run = self.runs[request.id] = Run()
        on_graded = on_grader_complete if request.grade else None
        try:
            with get_plugins().observed(request, self) as reported:
                result = await self._run_workflow(request, run)
                run.status = run.status if on_graded else result.status
                reported(result)
                await on_workflow_complete(result)
                if on_graded:
                    result = await self._run_grader(request, run, result)
                    run.status = result.status
                    reported(result)
                    await on_graded(result)
        finally:
            del self.runs[request.id]
            run.cancel()  # the caller may have been cancelled: let the thread end
            if run.has_slot:
                self.limiter.release()

    async def _run_workflow(self, request: ExecutionRequest, run: Run) -> ExecutionResult:
        submitted_at, timeout_sec = time.monotonic(), request.agent_timeout_sec
        deadline = None if timeout_sec is None else submitted_at + timeout_sec
        try:
            async with run.cutoff.until(deadline, f"not started within {timeout_sec} s"):
                await self.limiter.acquire()
                run.has_slot = True
        except RolloutError as error:
            return failed(error, {})
        run.status = RolloutStatus.RUNNING
        options = {"submitted_at": submitted_at, **self._options(request, run)}
        return await self._in_thread(run, run_workflow, request, self.program, **options)

    async def _run_grader(
        self, request: ExecutionRequest, run: Run, workflow: ExecutionResult
    ) -> ExecutionResult:
        if run.cutoff.cancelled:
            return failed(RolloutCancelled(), workflow.samples)
        refusal = grading_refusal(request, self.program, workflow)
        if refusal is not None:
            return refusal
        run.status = RolloutStatus.GRADING
        arguments = request, self.program, workflow.samples
        result = await self._in_thread(run, run_grader, *arguments, **self._options(request, run))
        return replace(result, extra_fields={**workflow.extra_fields, **result.extra_fields})

    def _options(self, request: ExecutionRequest, run: Run) -> dict[str, Any]:
        return {"cutoff": run.cutoff, "artifacts_dir": self.root / request.id / "artifacts"}

    async def _in_thread(
        self,
        run: Run,
        work: Callable[..., Coroutine[Any, Any, ExecutionResult]],
        *arguments: Any,
        **options: Any,
    ) -> ExecutionResult:
        async def there() -> ExecutionResult:
            run.loop = asyncio.get_running_loop()
            return await work(*arguments, **options)

        context = contextvars.copy_context()  # with the active RolloutContext
        thread = self.threads.submit(lambda: context.run(asyncio.run, there()))
        return await asyncio.wrap_future(thread)

    @property
    def max_concurrency(self) -> int:
        """How many rollouts run at once; 0 when there is no limit."""
        return self.limiter.max_concurrent or 0

    def rollout_status(self, rollout_id: str) -> RolloutStatus | None:
        """The status of a rollout that has not ended; None for any other."""
        return self.runs[rollout_id].status if rollout_id in self.runs else None

    async def cancel_rollouts(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel rollouts by id, by prefix, or all; says for each what was done."""
        found: dict[str, CancelDisposition] = {}
        for rollout_id in select_rollouts(self.runs, ids, prefix, all):
            run = self.runs.get(rollout_id)
            if run is None or run.cutoff.cancelled or run.status.is_terminal:
                found[rollout_id] = "not_found"
                continue
            queued = run.status is RolloutStatus.QUEUED
            found[rollout_id] = "cancelled_queued" if queued else "cancelled_running"
            run.cancel()
        return found

    async def shutdown(self) -> None:
        """Cancel what runs, and let the threads end."""
        await super().shutdown()
        self.threads.shutdown(wait=False)
