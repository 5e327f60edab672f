"""What every backend does around the two phases of a rollout; where those run is its subclass's."""

import hashlib
import os
import time
import urllib.parse
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from osmosis_core import backend, execution
from osmosis_core.active import get_rollout_context
from osmosis_core.backends.phase import Phase
from osmosis_core.config import AgentWorkflowConfig, GraderConfig
from osmosis_core.context import RolloutContext
from osmosis_core.errors import BackendError, ConfigError, RolloutError
from osmosis_core.execution import Cutoff, RolloutCancelled, failed
from osmosis_core.grader import Grader
from osmosis_core.types import ExecutionRequest, ExecutionResult, RolloutSample, RolloutStatus
from osmosis_core.types import RolloutErrorCategory as Category
from osmosis_core.workflow import AgentWorkflow


@dataclass(slots=True, eq=False)
class Run:
    """One rollout in flight."""

    request: ExecutionRequest
    status: RolloutStatus = RolloutStatus.QUEUED
    submitted_at: float = field(default_factory=time.monotonic)
    """`time.monotonic()`, from which `agent_timeout_sec` counts."""
    cutoff: Cutoff = field(default_factory=Cutoff)
    """For phases on the loop of `execute`; `cutoff.cancelled` once a cancel was asked for."""
    stop: Callable[[], object] = lambda: None
    """Set it to what ends the phase where it runs: called on a cancel, perhaps when the phase has
    just ended, and when nobody waits for the phase any more because the caller was cancelled."""
    phase: Phase = field(init=False)
    """What runs, or ran last; there is none in the queue."""
    is_over: bool = False


class PlacedBackend(backend.ExecutionBackend):
    """A backend but for where its two phases run; `health()`, cancels and slots included.

    Args:
        workflow: AgentWorkflow subclass, or `"module:attr"`.
        workflow_config: config instance or `"module:attr"`; its `concurrency.max_concurrent` caps
            rollouts (None: unlimited). Without a config the cap is `default_concurrency`.
        grader: Grader subclass, or `"module:attr"`.
        grader_config: config instance or `"module:attr"`.
        max_concurrent: a cap that comes before the config's.
        max_queued: rollouts that may wait for a slot before `has_capacity()` is false.
        artifacts_root: parent of `<rollout id>/artifacts`; by default
            `_OSMOSIS_ROLLOUT_ARTIFACT_ROOT`, else `~/.osmosis` (protocol.md 2.8).

    Raises:
        ConfigError: an argument does not name what it should.
    """

    default_concurrency = 4
    is_elsewhere = False
    """True where workflows run out of this process: observers, who are silent there, are told of
    samples and policy calls when the result arrives."""

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
        cap = config.concurrency.max_concurrent if config else self.default_concurrency
        self._limiter = backend.ConcurrencyLimiter(
            cap if max_concurrent is None else max_concurrent
        )
        if max_queued is not None and max_queued < 1:
            raise ConfigError(f"max_queued is {max_queued!r}; give 1 or more, or None")
        self._max_queued = max_queued
        root = artifacts_root or os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or "~/.osmosis"
        self.artifacts_root = Path(root).expanduser()
        self._runs: dict[str, Run] = {}

    @abstractmethod
    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run `phase` where this backend runs things, and return what `phase.run()` returned there.

        The run has its slot. Whoever cannot be cancelled through `run.cutoff`, on this loop, sets
        `run.stop`. What is raised becomes a failed result, and a cancelled run reports `cancelled`
        whatever is returned; when the caller is cancelled `run.stop()` is called and
        CancelledError raised here.
        """

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: backend.ResultCallback,
        on_grader_complete: backend.ResultCallback | None = None,
    ) -> None:
        """Run one rollout; the slot is held through grading and callbacks."""
        from osmosis_core.plugins import get_plugins

        if request.id in self._runs:
            text = f"rollout {request.id!r} is running; give each rollout its own id"
            raise BackendError(text, category=Category.VALIDATION_ERROR)
        run = self._runs[request.id] = Run(request)
        on_graded = on_grader_complete if request.grade else None
        try:
            with get_plugins().observed(request, self) as reported:
                result = await self._run_workflow(run)
                run.is_over = on_graded is None
                if self.is_elsewhere:
                    get_plugins().tell(request.id, result)
                reported(result)
                await on_workflow_complete(result)
                if on_graded is not None:
                    result = await self._run_grader(run, result)
                    run.is_over = True
                    reported(result)
                    await on_graded(result)
        finally:
            del self._runs[request.id]
            if run.status is not RolloutStatus.QUEUED:
                self._limiter.release()

    async def _run_workflow(self, run: Run) -> ExecutionResult:
        timeout_sec = run.request.agent_timeout_sec
        deadline = None if timeout_sec is None else run.submitted_at + timeout_sec
        late = execution.late_text("workflow", timeout_sec, timeout_sec or 0.0)
        try:
            async with run.cutoff.until(deadline, late):
                await self._limiter.acquire()
                run.status = RolloutStatus.RUNNING
        except RolloutError as error:
            queued_sec = round(time.monotonic() - run.submitted_at, 6)
            return replace(failed(error, {}), extra_fields={"queued_sec": queued_sec})
        name = urllib.parse.quote(run.request.id, safe=" ")
        # 255: the longest name that file systems take
        if len(name) > 255:
            name = hashlib.sha256(run.request.id.encode()).hexdigest()
        directory = self.artifacts_root / name / "artifacts"
        policy = (get_rollout_context() or RolloutContext()).policy
        run.phase = Phase(run.request, policy, directory, time.monotonic() - run.submitted_at)
        return await self._placed(run, {})

    async def _run_grader(self, run: Run, workflow: ExecutionResult) -> ExecutionResult:
        if run.cutoff.cancelled:
            return failed(RolloutCancelled(), workflow.samples)
        if refusal := execution.grading_refusal(run.request, self.program, workflow):
            return refusal
        run.status = RolloutStatus.GRADING
        run.phase = replace(run.phase, samples=workflow.samples)
        graded = await self._placed(run, workflow.samples)
        return replace(graded, extra_fields={**workflow.extra_fields, **graded.extra_fields})

    async def _placed(self, run: Run, samples: dict[str, RolloutSample]) -> ExecutionResult:
        try:
            result = await self.place(run, run.phase)
        except RolloutError as error:
            result = failed(error, samples)
        except Exception as error:  # boundary: a place to run may raise anything
            result = failed(BackendError(f"the backend raised {error!r}"), samples)
        except BaseException:
            run.cutoff.cancel()
            run.stop()
            raise
        if run.cutoff.cancelled:
            cancelled = failed(RolloutCancelled(), samples or result.samples)
            return replace(cancelled, extra_fields=result.extra_fields)
        return result

    @property
    def max_concurrency(self) -> int:
        """The cap on rollouts at once; 0 means no limit."""
        return self._limiter.max_concurrent or 0

    def health(self) -> dict[str, Any]:
        """`status`, and `concurrency` with `max_concurrent`, `queued` and `running`."""
        names = ("max_concurrent", "queued", "running")
        return {"status": "ok", "concurrency": {n: getattr(self._limiter, n) for n in names}}

    def has_capacity(self) -> bool:
        """False when `max_queued` rollouts are waiting for a slot."""
        return self._max_queued is None or self._limiter.queued < self._max_queued

    def rollout_status(self, rollout_id: str) -> RolloutStatus | None:
        """Queued, running or grading; None when unknown or finished."""
        return self._runs[rollout_id].status if rollout_id in self._runs else None

    async def cancel_rollouts(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, backend.CancelDisposition]:
        """Cancel by exactly one selector; each cancelled rollout reports status `cancelled`."""
        selected = backend.select_rollouts(self._runs, ids, prefix, all)
        found: dict[str, backend.CancelDisposition] = dict.fromkeys(selected, "not_found")
        for rollout_id in found:
            run = self._runs.get(rollout_id)
            if run is not None and not (run.is_over or run.cutoff.cancelled):
                queued = run.status is RolloutStatus.QUEUED
                found[rollout_id] = "cancelled_queued" if queued else "cancelled_running"
                run.cutoff.cancel()
                run.stop()
        return found
