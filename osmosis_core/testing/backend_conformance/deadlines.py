"""What comes after a deadline is a timeout."""

from __future__ import annotations

from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    assert_timeout,
    in_flight,
    request,
    rewards,
    run,
)
from osmosis_core.types import (
    RolloutErrorCategory,
    RolloutStatus,
)


class Deadlines(BackendSuite):
    """What comes after a deadline is a timeout."""

    async def test_running_workflow_is_ended_at_its_deadline(self) -> None:
        """A workflow that hangs is a timeout, and is not graded.

        If this fails, enforce `request.agent_timeout_sec`.
        """
        late = request(agent_timeout_sec=0.1)
        reported = await self.ran(late, programs.Hangs, programs.Rewards)
        assert_timeout(reported.workflow)
        assert reported.grader.err_category is RolloutErrorCategory.TIMEOUT

    async def test_time_spent_queued_counts(self) -> None:
        """A rollout whose deadline passes in the queue is reported while the slot is still taken.

        If this fails, count `agent_timeout_sec` from the moment that `execute` is called.
        """
        async with (
            self.opened(programs.Hangs, None, programs.ONE_AT_A_TIME) as backend,
            in_flight(backend, request("first")),
        ):
            reported = await run(backend, request("second", agent_timeout_sec=0.1))
            assert backend.rollout_status("first") is RolloutStatus.RUNNING
        assert_timeout(reported.workflow)

    async def test_swallowed_cancellation_is_a_timeout(self) -> None:
        """A workflow that answers after it was cancelled at its deadline has not succeeded.

        If this fails, look at the clock after the workflow has returned.
        """
        late = request(agent_timeout_sec=0.1)
        reported = await self.ran(late, programs.SwallowsCancellation)
        assert_timeout(reported.workflow)

    async def test_blocking_code_that_returns_late_is_a_timeout(self) -> None:
        """Code that blocks its thread cannot be interrupted, but it cannot succeed late either.

        If this fails, look at the clock after the workflow has returned.
        """
        late = request(agent_timeout_sec=0.05, metadata={"sec": 0.2})
        reported = await self.ran(late, programs.Blocks)
        assert_timeout(reported.workflow)

    async def test_expired_timeout_is_a_timeout_at_once(self) -> None:
        """A budget of zero or less is used up before the workflow begins.

        If this fails, check the deadline before starting the workflow.
        """
        for timeout_sec in (0, -1.0):
            expired = request(agent_timeout_sec=timeout_sec)
            reported = await self.ran(expired, programs.Answers, programs.Rewards)
            assert_timeout(reported.workflow)
            assert reported.workflow.samples == {}

    async def test_grader_is_ended_at_its_deadline(self) -> None:
        """A grader that hangs is a timeout of the grading; rewards it gave do not count.

        If this fails, enforce `request.grader_timeout_sec` and drop the rewards.
        """
        late = request(grader_timeout_sec=0.1)
        reported = await self.ran(late, programs.Answers, programs.GraderHangs)
        assert reported.workflow.status is RolloutStatus.SUCCESS
        assert_timeout(reported.grader)
        assert rewards(reported.grader) == [None]

    async def test_expired_grader_timeout_is_a_timeout_at_once(self) -> None:
        """A budget of zero is used up before grading begins.

        If this fails, check the deadline before starting the grader.
        """
        reported = await self.ran(request(grader_timeout_sec=0), programs.Answers, programs.Rewards)
        assert_timeout(reported.grader)
