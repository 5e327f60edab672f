"""One phase of a rollout in a worker: sent, watched, ended when it must, and taken back."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from osmosis_core import BackendError, ExecutionResult, RolloutError, RolloutErrorCategory
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import Run
from osmosis_core.errors import describe
from osmosis_core.execution import RolloutCancelled, late_text
from osmosis_ray.artifacts import pack, unpack
from osmosis_ray.untyped import cloudpickle
from osmosis_ray.workers import Worker, reason

_LOST = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
_keys = itertools.count()


class WorkerLostError(Exception):
    """A worker went away with a phase; the text says why."""

    def __init__(self, text: str, *, is_crash: bool) -> None:
        super().__init__(text)
        self.is_crash = is_crash
        """Its process ended, perhaps for what one of its rollouts did."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Runs phases in workers."""

    discard: Callable[[Worker], None]
    """Kills a worker that does not listen."""
    grace_sec: float
    artifacts_limit: int

    async def run(self, worker: Worker, run: Run, phase: Phase) -> ExecutionResult:
        """What `phase.run()` returned in the worker; its new artifacts are here then.

        Raises:
            WorkerLostError: the worker died.
            RolloutError: it was killed because it did not end the phase in time, or something
                cannot travel.
        """
        key, call = next(_keys), await self._packed(phase)
        if run.cutoff.cancelled:
            raise RolloutCancelled
        future = _followed(worker.actor.run.remote(key, *call))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience_sec(phase)) as limit:

                def stop() -> None:
                    if not future.done():
                        worker.actor.cancel.remote(key).future()
                        with suppress(RuntimeError):  # the wait has ended already
                            limit.reschedule(loop.time() + self.grace_sec)

                run.stop = stop
                await asyncio.wait([future])
        except TimeoutError:
            self._kill(worker)
            raise _overdue(run, phase) from None
        except asyncio.CancelledError:
            await self._end(worker, key, future)
            raise
        return await self._received(future, worker, phase)

    async def _packed(self, phase: Phase) -> tuple[bytes, bytes]:
        files, directory = b"", phase.artifacts_dir
        if phase.samples is not None and directory is not None and directory.exists():
            files, _ = await asyncio.to_thread(pack, directory, self.artifacts_limit)
        try:
            return cloudpickle.dumps(phase), files
        except Exception as error:  # boundary: prompts and samples hold anything
            raise BackendError(
                f"the rollout cannot be sent to a Ray worker: {describe(error)}; keep plain data "
                "in prompts, metadata and samples",
                category=RolloutErrorCategory.VALIDATION_ERROR,
            ) from error

    def _patience_sec(self, phase: Phase) -> float | None:
        """Seconds until the worker is taken for stuck."""
        if phase.samples is not None:
            timeout_sec = phase.request.grader_timeout_sec
            return None if timeout_sec is None else max(timeout_sec, 0.0) + self.grace_sec
        timeout_sec = phase.request.agent_timeout_sec
        return None if timeout_sec is None else timeout_sec - phase.spent_sec + self.grace_sec

    async def _end(self, worker: Worker, key: int, future: asyncio.Future[Any]) -> None:
        """End a phase whose caller is gone, before its slot is given to another one."""
        worker.actor.cancel.remote(key).future()
        try:
            await asyncio.wait([future], timeout=self.grace_sec)
        finally:
            if not future.done():
                self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        worker.is_stuck = True
        self.discard(worker)

    async def _received(
        self, future: asyncio.Future[Any], worker: Worker, phase: Phase
    ) -> ExecutionResult:
        assert phase.artifacts_dir is not None
        try:
            pickled, files = cast(tuple[bytes, bytes], future.result())
        except _LOST as error:
            text = f"its Ray worker ({worker.where}) was lost: {reason(error)}"
            is_crash = not worker.is_stuck and "Worker exit type" in str(error)
            self.discard(worker)
            raise WorkerLostError(text, is_crash=is_crash) from error
        except RayTaskError as error:
            raise BackendError(f"Ray worker ({worker.where}): {reason(error)}") from error
        if files:
            await asyncio.to_thread(unpack, files, phase.artifacts_dir)
        return cast(ExecutionResult, pickle.loads(pickled))


def _overdue(run: Run, phase: Phase) -> RolloutError:
    if run.cutoff.cancelled:
        return RolloutCancelled()
    is_workflow, request = phase.samples is None, phase.request
    timeout_sec = request.agent_timeout_sec if is_workflow else request.grader_timeout_sec
    late = late_text("workflow" if is_workflow else "grader", timeout_sec, 0.0)
    text = f"{late} and did not end then, so its Ray worker was killed"
    return RolloutError(text, category=RolloutErrorCategory.TIMEOUT)


def _followed(reference: Any) -> asyncio.Future[Any]:
    """The future of a call; one that nobody awaits any more fails without a word."""
    future: asyncio.Future[Any] = asyncio.wrap_future(reference.future())
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future
