"""Cancel by id, prefix or all, in every phase; live status."""

from __future__ import annotations

from typing import Any

from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    in_flight,
    request,
    rewards,
    run,
    until,
)
from osmosis_core.types import ExecutionResult, RolloutStatus


class Cancelling(BackendSuite):
    """Cancel by id, prefix or all, in every phase; live status."""

    async def test_cancel_ends_a_running_rollout(self) -> None:
        """A cancelled rollout still reports, with status `cancelled`, to both callbacks.

        If this fails, turn the cancellation into a result instead of an exception.
        """
        async with (
            self.opened(programs.Hangs, programs.Rewards) as backend,
            in_flight(backend, request()) as (task,),
        ):
            assert await backend.cancel_rollouts(ids=["r-1"]) == {"r-1": "cancelled_running"}
            reported = await task
        statuses = [result.status for result in reported.results]
        assert statuses == [RolloutStatus.CANCELLED] * 2

    async def test_cancel_ends_a_queued_rollout(self) -> None:
        """It reports `cancelled` without waiting for a slot, and nobody else is touched.

        If this fails, let rollouts be cancelled while they wait for a slot.
        """
        async with (
            self.opened(programs.Hangs, None, programs.ONE_AT_A_TIME) as backend,
            in_flight(backend, request("first")),
            in_flight(backend, request("next"), status=RolloutStatus.QUEUED) as (task,),
        ):
            assert await backend.cancel_rollouts(ids=["next"]) == {"next": "cancelled_queued"}
            assert (await task).workflow.status is RolloutStatus.CANCELLED
            assert backend.rollout_status("first") is RolloutStatus.RUNNING

    async def test_cancel_ends_grading(self) -> None:
        """The workflow has succeeded; the grading is `cancelled`, without rewards.

        If this fails, let rollouts be cancelled while they are graded.
        """
        grading = RolloutStatus.GRADING
        async with (
            self.opened(programs.Answers, programs.GraderHangs) as backend,
            in_flight(backend, request(), status=grading) as (task,),
        ):
            await backend.cancel_rollouts(ids=["r-1"])
            reported = await task
        assert reported.workflow.status is RolloutStatus.SUCCESS
        assert reported.grader.status is RolloutStatus.CANCELLED
        assert rewards(reported.grader) == [None]

    async def test_cancel_between_the_phases_is_reported(self) -> None:
        """The workflow was reported; a cancel in its callback ends the grading before it begins.

        If this fails, look before grading whether the rollout was cancelled.
        """
        grades: list[ExecutionResult] = []
        found: list[object] = []
        async with self.opened(programs.Answers, programs.Rewards) as backend:

            async def between(result: ExecutionResult) -> None:
                found.append(await backend.cancel_rollouts(ids=["r-1"]))

            async def graded(result: ExecutionResult) -> None:
                grades.append(result)

            await backend.execute(request(), between, graded)
        assert found == [{"r-1": "cancelled_running"}]
        assert [grade.status for grade in grades] == [RolloutStatus.CANCELLED]

    async def test_cancel_in_the_last_callback_comes_too_late(self) -> None:
        """What was reported stays so.

        If this fails, answer `not_found` once the last result is known.
        """
        found: list[object] = []
        async with self.opened(programs.Answers) as backend:

            async def last(result: ExecutionResult) -> None:
                found.append(await backend.cancel_rollouts(all=True))

            await backend.execute(request(), last)
        assert found == [{"r-1": "not_found"}]

    async def test_cancel_by_prefix_ends_those_rollouts_only(self) -> None:
        """Only ids that begin with the prefix are selected.

        If this fails, select with `select_rollouts`.
        """
        both = (request("a-1"), request("b-1"))
        async with (
            self.opened(programs.Hangs, None, programs.TWO_AT_A_TIME) as backend,
            in_flight(backend, *both) as tasks,
        ):
            assert await backend.cancel_rollouts(prefix="a-") == {"a-1": "cancelled_running"}
            assert (await tasks[0]).workflow.status is RolloutStatus.CANCELLED
            assert backend.rollout_status("b-1") is RolloutStatus.RUNNING

    async def test_cancel_all_ends_running_and_queued_rollouts(self) -> None:
        """Everything in flight is selected and told apart.

        If this fails, remember rollouts from the moment that `execute` is called.
        """
        async with (
            self.opened(programs.Hangs, None, programs.ONE_AT_A_TIME) as backend,
            in_flight(backend, request("a")) as (first,),
            in_flight(backend, request("b"), status=RolloutStatus.QUEUED) as (second,),
        ):
            found = await backend.cancel_rollouts(all=True)
            ended = [(await task).workflow.status for task in (first, second)]
        assert found == {"a": "cancelled_running", "b": "cancelled_queued"}
        assert ended == [RolloutStatus.CANCELLED] * 2

    async def test_cancel_does_not_find_unknown_and_finished_rollouts(self) -> None:
        """Named ids that are not in flight are answered, not ignored.

        If this fails, answer `not_found` for every named id that is not in flight.
        """
        async with self.opened(programs.Answers) as backend:
            await run(backend, request("done"))
            found = await backend.cancel_rollouts(ids=["done", "never"])
        assert found == {"done": "not_found", "never": "not_found"}

    async def test_cancel_wants_exactly_one_selector(self) -> None:
        """Two selectors contradict each other, and none would be a guess.

        If this fails, select with `select_rollouts`.
        """
        selectors: list[dict[str, Any]] = [{}, {"ids": ["r-1"], "all": True}]
        selectors.append({"ids": ["r-1"], "prefix": "r"})
        async with self.opened(programs.Answers) as backend:
            for selector in selectors:
                try:
                    await backend.cancel_rollouts(**selector)
                except ValueError:
                    continue
                raise AssertionError(f"no ValueError for {selector}")

    async def test_shutdown_cancels_running_rollouts(self) -> None:
        """Nobody waits for ever for a backend that was shut down.

        If this fails, cancel everything in flight in `shutdown`.
        """
        async with (
            self.opened(programs.Hangs) as backend,
            in_flight(backend, request()) as (task,),
        ):
            await backend.shutdown()
            assert (await task).workflow.status is RolloutStatus.CANCELLED

    async def test_status_is_queued_then_running_then_grading(self) -> None:
        """Callers can see where a rollout is.

        If this fails, keep the status of every rollout in flight.
        """
        running, queued = RolloutStatus.RUNNING, RolloutStatus.QUEUED
        hang = request("first", metadata={"hang": True})
        hangs = (programs.HangsIfTold, programs.GraderHangs, programs.ONE_AT_A_TIME)
        async with (
            self.opened(*hangs) as backend,
            in_flight(backend, hang, status=running),
            in_flight(backend, request("second"), status=queued),
        ):
            await backend.cancel_rollouts(ids=["first"])
            await until(lambda: backend.rollout_status("second") is RolloutStatus.GRADING)

    async def test_status_of_unknown_and_finished_rollouts_is_none(self) -> None:
        """Only rollouts in flight have a status.

        If this fails, forget a rollout when `execute` ends.
        """
        async with self.opened(programs.Answers) as backend:
            await run(backend, request("done"))
            assert backend.rollout_status("done") is None
            assert backend.rollout_status("never") is None
