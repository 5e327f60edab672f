"""`ProcessBackend`: rollouts in a pool of worker processes."""

from __future__ import annotations

import os
import sys
import time
import weakref
from dataclasses import replace
from math import inf
from typing import Any, cast

from osmosis_core import (
    BackendError,
    ConcurrencyLimiter,
    ConfigError,
    ExecutionResult,
    RolloutErrorCategory,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.execution import failed, late_text
from osmosis_process import worker
from osmosis_process.handle import WorkerLostError
from osmosis_process.pool import Pool
from osmosis_process.program import Parcel

_PER_WORKER = 4
_CATEGORIES = {
    "late": RolloutErrorCategory.TIMEOUT,
    "alone": RolloutErrorCategory.AGENT_ERROR,
}


class ProcessBackend(PlacedBackend):
    """Runs rollouts in worker processes, several at once in each.

    Keyword arguments beside those of `PlacedBackend`:

    Args:
        num_workers: processes; by default one per processor that this one may use. They start
            when they are needed.
        max_concurrent_per_worker: rollouts at once in one worker. It lowers the cap on all; None
            spreads as many as that cap says, and without any cap 4 per worker run.
        max_rollouts_per_worker: a worker that has run so many is replaced.
        max_memory_mb: a worker whose resident memory is larger when a rollout ends is replaced.
        max_restarts: how often a rollout whose worker was lost through no fault of its own runs
            again, from its beginning. What it had asked the policy before is not in its samples.
        grace_sec: seconds for a rollout to end by itself after its deadline or a cancel. Then its
            worker is killed, or where only this rollout does not listen, left by all others.

    Raises:
        ConfigError: an argument is wrong, or a class or config cannot be sent to a worker.
    """

    is_elsewhere = True

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        max_concurrent_per_worker: int | None = None,
        max_rollouts_per_worker: int | None = None,
        max_memory_mb: float | None = None,
        max_restarts: int = 1,
        grace_sec: float = 5.0,
        **options: Any,
    ) -> None:
        if worker.is_serving:
            text = "a worker imports the script that builds this ProcessBackend, and would build"
            mend = 'put what the script does under `if __name__ == "__main__":`'
            raise ConfigError(f"{text} it again; {mend}")
        _check_counts(
            1,
            num_workers=num_workers,
            max_concurrent_per_worker=max_concurrent_per_worker,
            max_rollouts_per_worker=max_rollouts_per_worker,
        )
        _check_counts(0, max_restarts=max_restarts)
        most_mb = inf if max_memory_mb is None else max_memory_mb
        _check_amounts(grace_sec=grace_sec, max_memory_mb=most_mb)
        self.num_workers = num_workers or _processors()
        self.default_concurrency = self.num_workers * (max_concurrent_per_worker or _PER_WORKER)
        super().__init__(**options)
        if max_concurrent_per_worker is not None:
            most = self.num_workers * max_concurrent_per_worker
            self._limiter = ConcurrencyLimiter(min(self.max_concurrency or most, most))
        self._max_restarts = max_restarts
        self._pool = Pool(
            Parcel.of(self.program),
            self.artifacts_root / "workers",
            self.num_workers,
            grace_sec,
            max_rollouts_per_worker,
            max_memory_mb,
        )
        self._lone = ConcurrencyLimiter(self.num_workers)
        weakref.finalize(self, self._pool.kill)

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Send the phase to a worker, and once more if that was lost for another's sake."""
        placed, began, restarts_left = self._beside_others, time.monotonic(), self._max_restarts
        while True:
            try:
                return await placed(run, phase)
            except WorkerLostError as lost:
                is_final = lost.blame in _CATEGORIES or run.cutoff.cancelled or not restarts_left
                if is_final:
                    return _lost(phase, lost, time.monotonic() - began)
                if lost.blame == "one of many":
                    placed = self._alone
            restarts_left -= 1
            phase = replace(phase, spent_sec=time.monotonic() - run.submitted_at)

    async def _beside_others(self, run: Run, phase: Phase) -> ExecutionResult:
        chosen = self._pool.pick()
        try:
            return await chosen.run(run, phase, _limit_sec(phase))
        finally:
            self._pool.recycle(chosen)

    async def _alone(self, run: Run, phase: Phase) -> ExecutionResult:
        limit_sec, has_slot = _limit_sec(phase), False
        deadline = None if limit_sec is None else time.monotonic() + limit_sec
        try:
            async with run.cutoff.until(deadline, _late_text(phase)):
                await self._lone.acquire()
                has_slot = True
            own = self._pool.start()
            own.is_active = False
            return await own.run(run, phase, _limit_sec(phase))
        finally:
            if has_slot:
                self._lone.release()

    def health(self) -> dict[str, Any]:
        """As every backend, and `workers`: process, phases that run, workflows so far, memory."""
        workers = [
            {
                "pid": one.pid,
                "running": len(one.phases),
                "workflows": one.workflows,
                "memory_mb": round(one.memory_mb, 1),
            }
            for one in self._pool.workers
            if not one.is_over
        ]
        return {**super().health(), "workers": workers}

    async def shutdown(self) -> None:
        """Cancel what runs and end the workers; they start again when they are needed again."""
        await super().shutdown()
        await self._pool.close()


def _check_counts(least: int, **numbers: object) -> None:
    for name, number in numbers.items():
        if number is not None and not (type(number) is int and number >= least):
            mend = f"give a whole number of at least {least}"
            raise ConfigError(f"{name} is {number!r}; {mend}")


def _check_amounts(**numbers: object) -> None:
    for name, number in numbers.items():
        if type(number) not in (int, float) or not cast(float, number) > 0:
            raise ConfigError(f"{name} is {number!r}; give a number above 0")


def _processors() -> int:
    """Those that this process may use; where that cannot be asked, all of them."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _limit_sec(phase: Phase) -> float | None:
    """Seconds that the phase has left."""
    if phase.samples is not None:
        return phase.request.grader_timeout_sec
    timeout_sec = phase.request.agent_timeout_sec
    return None if timeout_sec is None else timeout_sec - phase.spent_sec


def _late_text(phase: Phase) -> str:
    if phase.samples is not None:
        return late_text("grader", phase.request.grader_timeout_sec, 0.0)
    return late_text("workflow", phase.request.agent_timeout_sec, phase.spent_sec)


def _lost(phase: Phase, lost: WorkerLostError, duration_sec: float) -> ExecutionResult:
    """The failure of a rollout whose worker is gone."""
    text, category = str(lost), _CATEGORIES.get(lost.blame, RolloutErrorCategory.INTERNAL_ERROR)
    if lost.blame == "late":
        text = f"{_late_text(phase)}; {text}"
    result = failed(BackendError(text, category=category), phase.samples or {})
    times = {"grading_sec": round(duration_sec, 6)}
    if phase.samples is None:
        times = {"queued_sec": round(phase.spent_sec, 6), "duration_sec": round(duration_sec, 6)}
    return replace(result, extra_fields=times)
