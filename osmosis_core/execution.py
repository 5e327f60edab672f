"""Run one workflow, run one grader: the same in a process, a container or a Ray worker."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from osmosis_core.active import get_rollout_context, no_rollout
from osmosis_core.config import AgentWorkflowConfig, GraderConfig
from osmosis_core.context import Policy, RolloutContext
from osmosis_core.errors import BackendError, GraderError, RolloutError, WorkflowError, boundary
from osmosis_core.grader import Grader, GraderContext
from osmosis_core.sample_ids import MAIN_SAMPLE
from osmosis_core.types import (
    AgentWorkflowOutput,
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_core.workflow import AgentWorkflow, AgentWorkflowContext

if TYPE_CHECKING:
    from osmosis_core.validation import Issue

_SALVAGE_SEC = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """What a backend runs for every request: the user's classes and their configs."""

    workflow: type[AgentWorkflow[Any]]
    workflow_config: AgentWorkflowConfig | None = None
    grader: type[Grader] | None = None
    grader_config: GraderConfig | None = None
    check: Callable[[], tuple[list[Issue], list[Issue]]] | None = None
    """Finds errors and warnings of what a plugin made a program of, which needs no grader then."""


class RolloutCancelled(BackendError):
    """The rollout was cancelled on request; its result says `cancelled`, not `failure`."""

    def __init__(self) -> None:
        super().__init__("the rollout was cancelled on request")


class Cutoff:
    """Ends the phase that it surrounds, at its deadline or on a cancel from the same loop."""

    __slots__ = ("_scope", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._scope: asyncio.Timeout | None = None

    def cancel(self) -> None:
        """End the running phase now and every later one at its start."""
        self.cancelled = True
        if self._scope is not None:
            with suppress(RuntimeError):  # the scope is ending already
                self._scope.reschedule(0)

    @asynccontextmanager
    async def until(self, deadline: float | None, late: str) -> AsyncGenerator[None]:
        """Raise WorkflowError(`late`) as a timeout once `deadline` (time.monotonic()) has passed.

        What the block returns or raises after that moment does not count: blocking code and
        swallowed cancellations are timeouts too.
        """
        self._check(deadline, late)
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        left = None if deadline is None else deadline - time.monotonic()
        scope = self._scope = asyncio.timeout(left)
        try:
            async with scope:
                yield
        except Exception as error:
            self._check(0.0 if scope.expired() else deadline, late, error)
            raise
        finally:
            self._scope = None
        self._check(0.0 if scope.expired() else deadline, late)  # uvloop's timers may fire early
        if task is not None and task.cancelling() > asked:
            raise asyncio.CancelledError  # the caller's cancel, swallowed by user code

    def _check(self, deadline: float | None, late: str, cause: Exception | None = None) -> None:
        if self.cancelled:
            raise RolloutCancelled from cause
        if deadline is not None and time.monotonic() >= deadline:
            raise RolloutError(late, category=RolloutErrorCategory.TIMEOUT) from cause


async def run_workflow(
    request: ExecutionRequest,
    program: Program,
    *,
    cutoff: Cutoff | None = None,
    submitted_at: float | None = None,
    policy: Policy | None = None,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    """Run the workflow and collect its samples; a failure is a result, with what was collected.

    `submitted_at` is the `time.monotonic()` instant from which `agent_timeout_sec` counts. Without
    `policy`, the policy is that of the active RolloutContext, or of the environment.
    """
    now = time.monotonic()
    submitted = now if submitted_at is None else submitted_at
    deadline = _deadline(request.agent_timeout_sec, submitted)
    policy = policy or (get_rollout_context() or RolloutContext()).policy
    context = RolloutContext(rollout_id=request.id, deadline=deadline, **policy)
    late = late_text("workflow", request.agent_timeout_sec, now - submitted)
    output = AgentWorkflowOutput()
    try:
        async with (cutoff or Cutoff()).until(deadline, late):
            with context, boundary(WorkflowError):
                output = await _call_workflow(request, program, artifacts_dir)
                samples = _with_output(await context.get_samples(), output)
        result = ExecutionResult(RolloutStatus.SUCCESS, samples)
    except RolloutError as error:
        samples = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_SALVAGE_SEC):
                samples = await context.get_samples(skip_failing=True)
        result = failed(error, samples)
    for sample in result.samples.values():
        sample.label = request.label
    extra: dict[str, Any] = {
        "queued_sec": round(now - submitted, 6),
        "duration_sec": round(time.monotonic() - now, 6),
    }
    return replace(result, extra_fields={**extra, "info": output.info} if output.info else extra)


async def _call_workflow(
    request: ExecutionRequest, program: Program, artifacts_dir: Path | None
) -> AgentWorkflowOutput:
    config = program.workflow_config.for_rollout() if program.workflow_config else None
    ctx = AgentWorkflowContext[Any](
        copy.deepcopy(request.prompt), config, copy.deepcopy(request.metadata), artifacts_dir
    )
    returned = await program.workflow(config).run(ctx)
    if isinstance(returned, AgentWorkflowOutput):
        return AgentWorkflowOutput.model_validate(returned.model_dump())
    try:
        return AgentWorkflowOutput(messages=returned)
    except ValidationError as error:
        raise TypeError(
            f"{program.workflow.__name__}.run() returned {type(returned).__name__}; return None, a "
            "list of messages, or AgentWorkflowOutput"
        ) from error


def _with_output(
    samples: dict[str, RolloutSample], output: AgentWorkflowOutput
) -> dict[str, RolloutSample]:
    """Give what the workflow returned to its only sample, or to `main` when there are several."""
    if output.messages is None and not output.metrics:
        return samples
    sample_id = next(iter(samples)) if len(samples) == 1 else MAIN_SAMPLE
    sample = samples.get(sample_id) or samples.setdefault(sample_id, RolloutSample(id=sample_id))
    if output.messages is not None:
        sample.messages = output.messages
    sample.metrics.update(output.metrics)
    return samples


def grading_refusal(
    request: ExecutionRequest, program: Program, workflow: ExecutionResult
) -> ExecutionResult | None:
    """The grader's result when it must not run, saying why; None when it may."""
    category = RolloutErrorCategory.VALIDATION_ERROR
    if workflow.status is not RolloutStatus.SUCCESS:
        why = f"the workflow ended in {workflow.status}: {workflow.err_message}"
        category = workflow.err_category
    elif program.grader is None:
        why = "no grader was given to the backend"
    elif request.label is None and request.metadata is None:
        why = "the row has neither a label nor metadata"
    else:
        return None
    status = RolloutStatus.FAILURE
    if workflow.status is RolloutStatus.CANCELLED:
        status = RolloutStatus.CANCELLED
    return ExecutionResult(status, workflow.samples, f"grading did not run: {why}", category)


async def run_grader(
    request: ExecutionRequest,
    program: Program,
    samples: dict[str, RolloutSample],
    *,
    cutoff: Cutoff | None = None,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    """Grade copies of the samples; on a failure none keeps a reward. No rollout is active."""
    assert program.grader is not None
    started = time.monotonic()
    samples = {sample_id: _own(sample) for sample_id, sample in samples.items()}
    deadline = _deadline(request.grader_timeout_sec, started)
    late = late_text("grader", request.grader_timeout_sec, 0.0)
    try:
        async with (cutoff or Cutoff()).until(deadline, late):
            with no_rollout(), boundary(GraderError):
                config = program.grader_config.for_rollout() if program.grader_config else None
                metadata = copy.deepcopy(request.metadata)
                ctx = GraderContext(
                    request.label, dict(samples), metadata, artifacts_dir=artifacts_dir
                )
                await program.grader(config).grade(ctx)
                _check_rewards(samples)
        result = ExecutionResult(RolloutStatus.SUCCESS, samples)
    except RolloutError as error:
        for sample in samples.values():
            sample.reward = None
        result = failed(error, samples)
    return replace(result, extra_fields={"grading_sec": round(time.monotonic() - started, 6)})


def _own(sample: RolloutSample) -> RolloutSample:
    """A copy for the grader to mark; messages and calls are shared, they are not its to change."""
    marks = {"metrics": dict(sample.metrics), "extra_fields": dict(sample.extra_fields)}
    return sample.model_copy(update=marks)


def _check_rewards(samples: dict[str, RolloutSample]) -> None:
    if not samples:
        raise ValueError("no sample to grade: no agent registered and no policy call was made")
    missing = [
        sample_id
        for sample_id, sample in samples.items()
        if sample.reward is None and sample.trainable and not sample.remove_sample
    ]
    if missing:
        raise ValueError(
            f"the grader gave no reward to {', '.join(missing)}; call ctx.set_sample_reward() for "
            "each, or set sample.remove_sample"
        )


def failed(error: RolloutError, samples: dict[str, RolloutSample]) -> ExecutionResult:
    """The result of a rollout that ended in `error`."""
    if isinstance(error, RolloutCancelled):
        return ExecutionResult(RolloutStatus.CANCELLED, samples, str(error))
    return ExecutionResult(RolloutStatus.FAILURE, samples, str(error), error.category)


def _deadline(timeout_sec: float | None, since: float) -> float | None:
    return None if timeout_sec is None else since + timeout_sec


def late_text(what: str, timeout_sec: float | None, queued_sec: float) -> str:
    """What is said about a phase that passed its deadline (protocol.md 2.6)."""
    queued = f" ({queued_sec:.1f}s of it spent queued)" if queued_sec >= 0.1 else ""
    return f"{what} exceeded its {timeout_sec}s deadline{queued}"
