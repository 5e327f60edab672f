"""Runs admitted rollouts on the backend, as many at once as it takes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from osmosis_core import (
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    RolloutContext,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.errors import describe
from osmosis_core.execution import RolloutCancelled, failed, late_text
from osmosis_server.journal import Journal
from osmosis_server.registry import Registry, Rollout
from osmosis_server.reporter import Reporter, Stopped, internal_error
from osmosis_server.submissions import Submission

_SLICE = 32
_SMALL = 2048
_CHUNK = 100
_NO_WAIT_SEC = 0.001


class Runner:
    """The queue in front of a backend; first come, first served.

    A rollout is handed over when the backend has a slot for it, so that pausing holds everything
    that has not begun. What waits with a large request is read from the journal when it begins.
    """

    def __init__(
        self, backend: ExecutionBackend, journal: Journal, registry: Registry, reporter: Reporter
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._registry = registry
        self._reporter = reporter
        self._queue: OrderedDict[str, Rollout] = OrderedDict()
        self._is_scheduled = False
        self._chores: set[asyncio.Task[None]] = set()
        self.running: dict[int, Rollout] = {}
        """By number; an execution that ends after its rollout is still here."""
        self.is_paused = False

    async def close(self, seconds: float) -> None:
        """Cancel executions that outlived their rollouts, and wait a moment for them to end."""
        tasks = [rollout.task for rollout in self.running.values() if rollout.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    @property
    def queued(self) -> int:
        """How many wait for a slot."""
        return len(self._queue)

    def put(self, rollout: Rollout, submission: Submission, size: int) -> None:
        """Run a rollout as soon as there is a slot."""
        self._queue[rollout.id] = rollout
        begins_now = self.begins_now()
        if begins_now or size <= _SMALL:
            rollout.submission = submission
        timeout_sec = submission.request.agent_timeout_sec
        if timeout_sec is not None and not begins_now:
            loop = asyncio.get_running_loop()
            rollout.timer = loop.call_later(max(0.0, timeout_sec), self._late, rollout, timeout_sec)
        self._pump_soon()

    def begins_now(self, others: int = 0) -> bool:
        """Whether there are slots for all that wait, and for as many others."""
        return not self.is_paused and len(self._queue) + others <= self._free_slots()

    def resume(self) -> None:
        """Let rollouts begin again."""
        self.is_paused = False
        self._pump_soon()

    def withdraw(self, rollout: Rollout, result: ExecutionResult) -> bool:
        """End a rollout that waits; False when it does not."""
        if self._queue.pop(rollout.id, None) is None:
            return False
        self.end([rollout], result)
        return True

    def end(self, rollouts: Iterable[Rollout], result: ExecutionResult) -> None:
        """End rollouts that are not running, reading what was submitted where it is needed."""
        chore = asyncio.create_task(self._end(list(rollouts), result))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _end(self, rollouts: list[Rollout], result: ExecutionResult) -> None:
        for start in range(0, len(rollouts), _CHUNK):
            chunk = [r for r in rollouts[start : start + _CHUNK] if not r.is_ended]
            missing = [rollout.seq for rollout in chunk if rollout.submission is None]
            read = await self._journal.submissions(missing) if missing else {}
            for rollout in chunk:
                submission = rollout.submission or read.get(rollout.seq)
                if submission is not None:
                    self._reporter.end(rollout, submission, result)
            await asyncio.sleep(0)

    def _free_slots(self) -> float:
        return (self._backend.max_concurrency or float("inf")) - len(self.running)

    def _pump_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Begin what may begin, a slice at a time so that the event loop stays responsive."""
        self._is_scheduled = False
        begun = 0
        while self._queue and not self.is_paused and self._free_slots() > 0:
            if begun == _SLICE:
                self._pump_soon()
                return
            begun += 1
            _, rollout = self._queue.popitem(last=False)
            if rollout.timer is not None:
                rollout.timer.cancel()
            self.running[rollout.seq] = rollout
            self._registry.change(rollout, RolloutStatus.RUNNING)
            rollout.task = asyncio.create_task(self._run(rollout))

    def _late(self, rollout: Rollout, timeout_sec: float) -> None:
        late = late_text("workflow", timeout_sec, time.monotonic() - rollout.submitted_at)
        self.withdraw(rollout, _timeout(late))

    async def _run(self, rollout: Rollout) -> None:
        try:
            if not rollout.has_begun:
                await self._journal.begin(rollout.seq)
            if rollout.submission is None:
                read = await self._journal.submissions([rollout.seq])
                rollout.submission = read.get(rollout.seq)
            if rollout.submission is not None and not rollout.is_ended:
                await self._execute(rollout, rollout.submission)
        except Stopped:
            pass
        except asyncio.CancelledError:
            self.end([rollout], failed(RolloutCancelled(), {}))
        except BaseException as error:  # boundary: KeyboardInterrupt of user code, too
            self.end([rollout], internal_error(describe(error) or "Internal server error"))
        finally:
            del self.running[rollout.seq]
            rollout.task = None
            self._pump_soon()

    async def _execute(self, rollout: Rollout, submission: Submission) -> None:
        request, reporter = submission.request, self._reporter
        waited_sec = time.monotonic() - rollout.submitted_at
        timed = _TimedRequest(request, waited_sec)
        grades = request.grade and reporter.wants_grading(submission)

        async def on_workflow(result: ExecutionResult) -> None:
            result = timed.told(result)
            if grades and result.status is RolloutStatus.SUCCESS:
                await reporter.workflow_done(rollout, submission, result)
            else:
                reporter.end(rollout, submission, result)

        async def on_graded(result: ExecutionResult) -> None:
            reporter.end(rollout, submission, timed.told(result))

        with RolloutContext(
            submission.chat_completions_url, submission.llm_api_key or "", request.id
        ):
            await self._backend.execute(timed.request, on_workflow, on_graded if grades else None)
        if not rollout.is_ended:
            message = f"{type(self._backend).__name__} ended without a result"
            reporter.end(rollout, submission, internal_error(message))


class _TimedRequest:
    """A request with what is left of its time, and results in terms of the whole of it."""

    def __init__(self, request: ExecutionRequest, waited_sec: float) -> None:
        self.request = self._asked = request
        self._waited_sec = waited_sec
        timeout_sec = request.agent_timeout_sec
        if timeout_sec is not None and waited_sec > _NO_WAIT_SEC:
            left_sec = round(timeout_sec - waited_sec, 6)
            self.request = replace(request, agent_timeout_sec=left_sec)

    def told(self, result: ExecutionResult) -> ExecutionResult:
        if self.request is self._asked or result.err_category is not RolloutErrorCategory.TIMEOUT:
            return result
        left = f"workflow exceeded its {self.request.agent_timeout_sec}s deadline"
        if left not in (result.err_message or ""):
            return result
        late = late_text("workflow", self._asked.agent_timeout_sec, self._waited_sec)
        return replace(result, err_message=late)


def _timeout(message: str) -> ExecutionResult:
    return ExecutionResult(
        RolloutStatus.FAILURE, err_message=message, err_category=RolloutErrorCategory.TIMEOUT
    )
