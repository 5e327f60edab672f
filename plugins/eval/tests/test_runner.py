import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from osmosis_core import (
    BackendError,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    ResultCallback,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_eval.datasets import Row
from osmosis_eval.runner import Outcome, Plan, run_rollouts

LIMIT_SEC = 20.0
OK = ExecutionResult(RolloutStatus.SUCCESS, {"main": RolloutSample(id="main", reward=1.0)})
LATE = ExecutionResult(RolloutStatus.FAILURE, {}, "late", RolloutErrorCategory.TIMEOUT)


class FakeBackend(ExecutionBackend):
    """Does what a function of the request says, and counts what is alive."""

    def __init__(self, behave: Callable[[ExecutionRequest], Awaitable[Any]] | None = None) -> None:
        self.behave = behave
        self.requests: list[ExecutionRequest] = []
        self.alive = self.most_alive = 0
        self.most_tasks = 0

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        self.requests.append(request)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        self.most_tasks = max(self.most_tasks, len(asyncio.all_tasks()))
        try:
            result = await self.behave(request) if self.behave else OK
            if result is not None:
                await on_workflow_complete(result)
                if on_grader_complete:
                    await on_grader_complete(result)
        finally:
            self.alive -= 1


def plan(rows: int = 3, *, per_row: int = 1, concurrency: int = 4, has_grader: bool = True) -> Plan:
    found = [Row(i, i + 1, [{"role": "user", "content": "q"}], "l", {"i": i}) for i in range(rows)]
    return Plan("name", found, per_row, concurrency, 5.0, 2.0, has_grader)


async def finished(backend: FakeBackend, wanted: Plan, **options: Any) -> list[Outcome]:
    outcomes: list[Outcome] = []
    stop = options.pop("stop", None) or asyncio.Event()
    report = options.pop("report", outcomes.append)
    async with asyncio.timeout(LIMIT_SEC):
        await run_rollouts(backend, wanted, report, stop, **options)
    return outcomes


async def test_each_row_is_rolled_out_as_often_as_asked() -> None:
    outcomes = await finished(FakeBackend(), plan(2, per_row=3))
    found = {(o.row.index, o.run_index): o.rollout_id for o in outcomes}
    assert found == {(r, k): f"name-row-{r}-run-{k}" for r in range(2) for k in range(3)}


async def test_request_carries_the_row_and_the_limits() -> None:
    backend = FakeBackend()
    await finished(backend, plan(1))
    request = backend.requests[0]
    assert (request.label, request.metadata, request.grade) == ("l", {"i": 0}, True)
    assert (request.agent_timeout_sec, request.grader_timeout_sec) == (5.0, 2.0)
    assert request.extra_fields == {"row_index": 0, "run_index": 0}


async def test_without_grader_only_samples_are_asked_for() -> None:
    backend = FakeBackend()
    outcomes = await finished(backend, plan(1, has_grader=False))
    assert not backend.requests[0].grade
    assert outcomes[0].result.status is RolloutStatus.SUCCESS


async def test_no_more_tasks_than_slots_are_alive_for_many_rows() -> None:
    async def pause(request: ExecutionRequest) -> ExecutionResult:
        await asyncio.sleep(0)
        return OK

    backend = FakeBackend(pause)
    outcomes = await finished(backend, plan(5_000, concurrency=8))
    assert (len(outcomes), backend.most_alive) == (5_000, 8)
    assert backend.most_tasks <= 2 * 8 + 4


async def test_slots_stay_full_while_one_rollout_is_slow() -> None:
    others = asyncio.Event()

    async def first_waits(request: ExecutionRequest) -> ExecutionResult:
        if request.id.endswith("row-0-run-0"):
            await others.wait()
        if request.id.endswith("row-9-run-0"):
            others.set()
        return OK

    outcomes = await finished(FakeBackend(first_waits), plan(10, concurrency=2))
    assert outcomes[-1].row.index == 0


async def test_context_variables_do_not_pass_from_one_rollout_to_the_next() -> None:
    mark = contextvars.ContextVar("mark", default=0)
    seen: list[int] = []

    async def leave_mark(request: ExecutionRequest) -> ExecutionResult:
        seen.append(mark.get())
        mark.set(1)
        return OK

    await finished(FakeBackend(leave_mark), plan(4, concurrency=1))
    assert seen == [0, 0, 0, 0]


async def test_failed_workflow_is_reported_with_its_own_message() -> None:
    class Both(FakeBackend):
        async def execute(
            self,
            request: ExecutionRequest,
            on_workflow_complete: ResultCallback,
            on_grader_complete: ResultCallback | None = None,
        ) -> None:
            await on_workflow_complete(LATE)
            assert on_grader_complete
            refusal = ExecutionResult(RolloutStatus.FAILURE, {}, "grading did not run: late")
            await on_grader_complete(refusal)

    assert (await finished(Both(), plan(1)))[0].result is LATE


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (RuntimeError("lost"), RolloutErrorCategory.INTERNAL_ERROR),
        (BackendError("lost", category=RolloutErrorCategory.TIMEOUT), RolloutErrorCategory.TIMEOUT),
    ],
)
async def test_backend_that_raises_fails_its_rollout_only(
    error: Exception, category: RolloutErrorCategory
) -> None:
    async def second_raises(request: ExecutionRequest) -> ExecutionResult:
        if "row-1" in request.id:
            raise error
        return OK

    by_row = {o.row.index: o.result for o in await finished(FakeBackend(second_raises), plan())}
    assert by_row[1].err_message == "the backend raised: lost"
    assert by_row[1].err_category is category
    assert by_row[0] is by_row[2] is OK


async def test_backend_that_reports_nothing_is_a_failure() -> None:
    async def nothing(request: ExecutionRequest) -> None:
        return None

    result = (await finished(FakeBackend(nothing), plan(1)))[0].result
    assert result.err_message == "the backend reported no result"


async def test_code_that_cancels_its_own_task_fails_that_rollout_only() -> None:
    async def cancel_itself(request: ExecutionRequest) -> ExecutionResult:
        task = asyncio.current_task()
        if task and "row-0" in request.id:
            task.cancel()
        await asyncio.sleep(0)
        return OK

    outcomes = await finished(FakeBackend(cancel_itself), plan(3, concurrency=1))
    assert outcomes[0].result.err_message == "the rollout's own code cancelled its task"
    assert [o.result.status for o in outcomes[1:]] == [RolloutStatus.SUCCESS] * 2


async def test_report_that_raises_ends_everything() -> None:
    def full(outcome: Outcome) -> None:
        raise OSError("disk full")

    backend = FakeBackend()
    with pytest.raises(OSError, match="disk full"):
        await finished(backend, plan(1_000), report=full)
    assert len(backend.requests) <= 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stop_cancels_what_runs_and_reports_only_what_finished() -> None:
    stop = asyncio.Event()

    async def third_waits(request: ExecutionRequest) -> ExecutionResult:
        if len(backend.requests) > 2:
            stop.set()
            await asyncio.sleep(LIMIT_SEC)
        return OK

    backend = FakeBackend(third_waits)
    outcomes = await finished(backend, plan(9, concurrency=2), stop=stop)
    assert (len(outcomes), backend.alive) == (2, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_rollout_that_ignores_its_cancellation_is_left_behind() -> None:
    stop, release = asyncio.Event(), asyncio.Event()

    async def stubborn(request: ExecutionRequest) -> ExecutionResult:
        stop.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return OK

    backend = FakeBackend(stubborn)
    outcomes = await finished(backend, plan(3, concurrency=1), stop=stop, grace_sec=0.05)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    release.set()
    await asyncio.wait(left, timeout=LIMIT_SEC)
    assert (outcomes, len(backend.requests), backend.alive) == ([], 1, 0)
