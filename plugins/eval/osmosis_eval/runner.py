"""Roll out rows: as many at a time as there are slots, each in a task of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from osmosis_core import (
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    PolicyCall,
    RolloutError,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_core.errors import describe
from osmosis_eval.datasets import Row

_GRACE_SEC = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rollouts to make, and their limits."""

    name: str
    """Prefix of every rollout id."""
    rows: list[Row]
    per_row: int
    concurrency: int
    agent_timeout_sec: float
    grader_timeout_sec: float
    has_grader: bool

    @property
    def total(self) -> int:
        """How many rollouts that is."""
        return len(self.rows) * self.per_row

    def attempts(self) -> Iterator[tuple[Row, int]]:
        """Each row with each run index."""
        return ((row, index) for row in self.rows for index in range(self.per_row))

    def request(self, row: Row, run_index: int) -> ExecutionRequest:
        """What the backend is asked for."""
        return ExecutionRequest(
            id=f"{self.name}-row-{row.index}-run-{run_index}",
            prompt=row.prompt,
            label=row.label,
            metadata=row.metadata,
            agent_timeout_sec=self.agent_timeout_sec,
            grader_timeout_sec=self.grader_timeout_sec,
            grade=self.has_grader,
            extra_fields={"row_index": row.index, "run_index": run_index},
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished rollout."""

    row: Row
    run_index: int
    rollout_id: str
    result: ExecutionResult
    duration_sec: float

    @property
    def calls(self) -> list[PolicyCall]:
        """The policy calls of all its samples."""
        return [call for sample in self.result.samples.values() for call in sample.calls]


async def run_rollouts(
    backend: ExecutionBackend,
    plan: Plan,
    report: Callable[[Outcome], None],
    stop: asyncio.Event,
    *,
    grace_sec: float = _GRACE_SEC,
) -> None:
    """Make every rollout of the plan and report each when it ends, until `stop` is set.

    On `stop` the running ones are cancelled and not reported; those that have not ended after
    `grace_sec` are left behind. What `report` raises ends the evaluation and is raised here.
    """
    await _Dispatch(backend, plan, report).run(stop, grace_sec)


class _Dispatch:
    """As many workers as slots; each takes the next attempt when its last one has ended."""

    def __init__(
        self, backend: ExecutionBackend, plan: Plan, report: Callable[[Outcome], None]
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._report = report
        self._attempts = plan.attempts()
        self._is_stopping = False
        self._is_closed = False

    async def run(self, stop: asyncio.Event, grace_sec: float) -> None:
        count = min(self._plan.concurrency, self._plan.total)
        workers = [asyncio.create_task(self._work()) for _ in range(count)]
        ended = asyncio.create_task(
            asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION), name="all rollouts"
        )
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_stopping = True
            for task in (*workers, ended, stopped):
                task.cancel()
            await asyncio.wait({*workers, stopped}, timeout=grace_sec)
            self._is_closed = True
        ended_workers = [worker for worker in workers if worker.done() and not worker.cancelled()]
        for error in [worker.exception() for worker in ended_workers]:
            if error is not None:
                raise error

    async def _work(self) -> None:
        for row, run_index in self._attempts:
            request, began = self._plan.request(row, run_index), time.monotonic()
            rollout = asyncio.create_task(self._execute(request))
            try:
                result = await rollout
            except asyncio.CancelledError:
                if self._is_stopping:
                    raise
                result = _failure("the rollout's own code cancelled its task", None, {})
            if self._is_closed:
                return
            duration_sec = time.monotonic() - began
            self._report(Outcome(row, run_index, request.id, result, duration_sec))
            if self._is_stopping:
                return

    async def _execute(self, request: ExecutionRequest) -> ExecutionResult:
        results: list[ExecutionResult] = []

        async def keep(result: ExecutionResult) -> None:
            results.append(result)

        try:
            await self._backend.execute(request, keep, keep if request.grade else None)
        except Exception as error:  # boundary: a backend may be anyone's
            category = error.category if isinstance(error, RolloutError) else None
            samples = results[-1].samples if results else {}
            return _failure(f"the backend raised: {describe(error)}", category, samples)
        if not results:
            return _failure("the backend reported no result", None, {})
        return next((r for r in results if r.status is not RolloutStatus.SUCCESS), results[-1])


def _failure(
    message: str, category: RolloutErrorCategory | None, samples: dict[str, RolloutSample]
) -> ExecutionResult:
    category = category or RolloutErrorCategory.INTERNAL_ERROR
    return ExecutionResult(RolloutStatus.FAILURE, samples, message, category)
