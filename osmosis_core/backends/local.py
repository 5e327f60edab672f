"""Run workflows and graders in this process and event loop."""

import os
import time
import urllib.parse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_core import execution
from osmosis_core.backend import (
    CancelDisposition,
    ConcurrencyLimiter,
    ExecutionBackend,
    ResultCallback,
    select_rollouts,
)
from osmosis_core.config import AgentWorkflowConfig, GraderConfig
from osmosis_core.errors import BackendError, ConfigError, RolloutError
from osmosis_core.execution import Cutoff, RolloutCancelled, failed
from osmosis_core.grader import Grader
from osmosis_core.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.workflow import AgentWorkflow

DEFAULT_CONCURRENCY = 4
_MAX_FILE_NAME = 255


class _Run:
    """One rollout in flight."""

    __slots__ = ("cutoff", "has_slot", "is_over", "request", "status", "submitted_at")

    def __init__(self, request: ExecutionRequest) -> None:
        self.request = request
        self.status = RolloutStatus.QUEUED
        self.has_slot = False
        self.is_over = False
        self.submitted_at = time.monotonic()
        self.cutoff = Cutoff()


class LocalBackend(ExecutionBackend):
    """Runs everything in the current process: instant, debuggable, not isolated.

    Args:
        workflow: AgentWorkflow subclass, or `"module:attr"`.
        workflow_config: config instance or `"module:attr"`; its `concurrency.max_concurrent` caps
            rollouts (None: unlimited). Without a config the cap is 4.
        grader: Grader subclass, or `"module:attr"`.
        grader_config: config instance or `"module:attr"`.
        max_concurrent: a cap that comes before the config's.
        max_queued: rollouts that may wait for a slot before `has_capacity()` is false.
        artifacts_root: parent of `<rollout id>/artifacts`; by default
            `_OSMOSIS_ROLLOUT_ARTIFACT_ROOT`, else `~/.osmosis` (protocol.md 2.8).

    Raises:
        ConfigError: an argument does not name what it should.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        max_concurrent: int | None = None,
        max_queued: int | None = None,
        artifacts_root: Path | str | None = None,
    ) -> None:
        from osmosis_core.discovery import load_program

        self.program = load_program(workflow, workflow_config, grader, grader_config)
        config = self.program.workflow_config
        cap = config.concurrency.max_concurrent if config else DEFAULT_CONCURRENCY
        self._limiter = ConcurrencyLimiter(cap if max_concurrent is None else max_concurrent)
        if max_queued is not None and max_queued < 1:
            raise ConfigError(f"max_queued is {max_queued!r}; give 1 or more, or None")
        self._max_queued = max_queued
        root = artifacts_root or os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or "~/.osmosis"
        self.artifacts_root = Path(root).expanduser()
        self._runs: dict[str, _Run] = {}

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout here; the slot is held through grading and callbacks."""
        from osmosis_core.plugins import get_plugins

        if request.id in self._runs:
            raise BackendError(
                f"rollout {request.id!r} is running; give each rollout its own id",
                category=RolloutErrorCategory.VALIDATION_ERROR,
            )
        run = self._runs[request.id] = _Run(request)
        on_graded = on_grader_complete if request.grade else None
        try:
            with get_plugins().observed(request, self) as reported:
                result = await self._run_workflow(run)
                run.is_over = on_graded is None
                reported(result)
                await on_workflow_complete(result)
                if on_graded is not None:
                    result = await self._run_grader(run, result)
                    run.is_over = True
                    reported(result)
                    await on_graded(result)
        finally:
            del self._runs[request.id]
            if run.has_slot:
                self._limiter.release()

    async def _run_workflow(self, run: _Run) -> ExecutionResult:
        request, timeout_sec = run.request, run.request.agent_timeout_sec
        deadline = None if timeout_sec is None else run.submitted_at + timeout_sec
        late = execution.late_text("workflow", timeout_sec, timeout_sec or 0.0)
        try:
            async with run.cutoff.until(deadline, late):
                await self._limiter.acquire()
                run.has_slot = True
        except RolloutError as error:
            queued_sec = round(time.monotonic() - run.submitted_at, 6)
            return replace(failed(error, {}), extra_fields={"queued_sec": queued_sec})
        run.status = RolloutStatus.RUNNING
        return await execution.run_workflow(
            request,
            self.program,
            cutoff=run.cutoff,
            submitted_at=run.submitted_at,
            artifacts_dir=self._artifacts_dir(request.id),
        )

    async def _run_grader(self, run: _Run, workflow: ExecutionResult) -> ExecutionResult:
        if run.cutoff.cancelled:
            return failed(RolloutCancelled(), workflow.samples)
        refusal = execution.grading_refusal(run.request, self.program, workflow)
        if refusal is not None:
            return refusal
        run.status = RolloutStatus.GRADING
        graded = await execution.run_grader(
            run.request,
            self.program,
            workflow.samples,
            cutoff=run.cutoff,
            artifacts_dir=self._artifacts_dir(run.request.id),
        )
        return replace(graded, extra_fields={**workflow.extra_fields, **graded.extra_fields})

    def _artifacts_dir(self, rollout_id: str) -> Path:
        name = urllib.parse.quote(rollout_id, safe=" ")
        if len(name) > _MAX_FILE_NAME:
            import hashlib

            name = hashlib.sha256(rollout_id.encode()).hexdigest()
        return self.artifacts_root / name / "artifacts"

    @property
    def max_concurrency(self) -> int:
        """The cap of the workflow config, 4 without a config; 0 means no limit."""
        return self._limiter.max_concurrent or 0

    def health(self) -> dict[str, Any]:
        """`status`, and `concurrency` with `max_concurrent`, `queued` and `running`."""
        limiter = self._limiter
        return {
            "status": "ok",
            "concurrency": {
                "max_concurrent": limiter.max_concurrent,
                "queued": limiter.queued,
                "running": limiter.running,
            },
        }

    def has_capacity(self) -> bool:
        """False when `max_queued` rollouts are waiting for a slot."""
        return self._max_queued is None or self._limiter.queued < self._max_queued

    def rollout_status(self, rollout_id: str) -> RolloutStatus | None:
        """Queued, running or grading; None when unknown or finished."""
        run = self._runs.get(rollout_id)
        return run.status if run else None

    async def cancel_rollouts(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector; each cancelled rollout reports status `cancelled`."""
        dispositions: dict[str, CancelDisposition] = {}
        for rollout_id in select_rollouts(self._runs, ids, prefix, all):
            run = self._runs.get(rollout_id)
            if run is None or run.is_over or run.cutoff.cancelled:
                dispositions[rollout_id] = "not_found"
                continue
            queued = run.status is RolloutStatus.QUEUED
            dispositions[rollout_id] = "cancelled_queued" if queued else "cancelled_running"
            run.cutoff.cancel()
        return dispositions
