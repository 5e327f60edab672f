"""What is reported, when, and that nothing else is."""

from __future__ import annotations

import asyncio

from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    CallbackRaised,
    Reported,
    request,
    rewards,
    run,
    said,
)
from osmosis_core.types import (
    RolloutErrorCategory,
    RolloutStatus,
)


class Reporting(BackendSuite):
    """What is reported, when, and that nothing else is."""

    async def test_each_callback_is_awaited_once_and_in_order(self) -> None:
        """The workflow is reported, its callback ends, then the grader is reported.

        If this fails, await `on_workflow_complete` once, before grading begins.
        """
        reported = await self.ran(request(), programs.Answers, programs.Rewards)
        phases = ["workflow begins", "workflow ends", "grader begins", "grader ends"]
        assert reported.order == phases

    async def test_rollout_without_a_grader_callback_is_reported_once(self) -> None:
        """`on_grader_complete` is optional.

        If this fails, do not grade when `on_grader_complete` is None.
        """
        reported = Reported()
        async with self.opened(programs.Answers, programs.Rewards) as backend:
            await backend.execute(request(), reported.on_workflow_complete)
        assert len(reported.results) == 1 and rewards(reported.workflow) == [None]

    async def test_grader_is_not_reported_when_the_request_says_no(self) -> None:
        """`request.grade` is False: only the samples are asked for.

        If this fails, look at `request.grade` before grading.
        """
        reported = await self.ran(request(grade=False), programs.Answers, programs.Rewards)
        assert len(reported.results) == 1 and rewards(reported.workflow) == [None]

    async def test_error_of_the_workflow_callback_is_raised(self) -> None:
        """The caller's own errors come back to the caller, and end the rollout.

        If this fails, let exceptions of callbacks leave `execute`, and do not grade after them.
        """
        async with self.opened(programs.Answers, programs.Rewards) as backend:
            task = asyncio.create_task(run(backend, request(), raising="workflow"))
            await asyncio.wait([task])
            assert isinstance(task.exception(), CallbackRaised)
            assert backend.rollout_status("r-1") is None

    async def test_error_of_the_grader_callback_is_raised(self) -> None:
        """The caller's own errors come back to the caller.

        If this fails, let exceptions of callbacks leave `execute`.
        """
        async with self.opened(programs.Answers, programs.Rewards) as backend:
            task = asyncio.create_task(run(backend, request(), raising="grader"))
            await asyncio.wait([task])
            assert isinstance(task.exception(), CallbackRaised)

    async def test_error_of_a_callback_leaves_other_rollouts_alone(self) -> None:
        """One rollout's caller raises while another rollout runs.

        If this fails, tie a rollout's callbacks to nothing but that rollout.
        """
        async with self.opened(programs.TimesItself, programs.Rewards) as backend:
            outcomes = await asyncio.gather(
                run(backend, request("bad"), raising="workflow"),
                run(backend, request("good")),
                return_exceptions=True,
            )
        assert isinstance(outcomes[0], CallbackRaised)
        assert isinstance(outcomes[1], Reported) and rewards(outcomes[1].grader) == [1.0]

    async def test_results_carry_samples(self) -> None:
        """Both results hold the conversation; the grader's holds the reward too.

        If this fails, pass the samples of `run_workflow` and `run_grader` on.
        """
        reported = await self.ran(request(), programs.Answers, programs.Rewards)
        assert [result.status for result in reported.results] == [RolloutStatus.SUCCESS] * 2
        assert [said(result) for result in reported.results] == ["42", "42"]
        assert rewards(reported.grader) == [1.0]

    async def test_every_agent_has_its_sample(self) -> None:
        """A workflow that returns None is read through the agents that it registered.

        If this fails, run the workflow through `run_workflow`, which collects them.
        """
        reported = await self.ran(request(), programs.TwoAgents, programs.Rewards)
        assert sorted(reported.workflow.samples) == ["judge", "solver"]
        assert rewards(reported.grader) == [1.0, 1.0]

    async def test_samples_carry_the_label(self) -> None:
        """The row's label is in the sample that the controller gets.

        If this fails, report what `run_workflow` returns as it is.
        """
        reported = await self.ran(request(label="forty-two"), programs.Answers)
        assert reported.workflow.sample is not None
        assert reported.workflow.sample.label == "forty-two"

    async def test_failed_workflow_keeps_its_samples(self) -> None:
        """What was collected before a failure is there for debugging.

        If this fails, keep the samples of failed results.
        """
        failing = request(metadata={"fail": True})
        reported = await self.ran(failing, programs.TwoAgents, programs.Rewards)
        assert reported.workflow.status is RolloutStatus.FAILURE
        assert sorted(reported.workflow.samples) == ["judge", "solver"]

    async def test_missing_grader_is_a_failure_that_says_so(self) -> None:
        """Grading was asked for, but the backend has no grader.

        If this fails, report what `grading_refusal` returns.
        """
        reported = await self.ran(request(), programs.Answers)
        assert reported.workflow.status is RolloutStatus.SUCCESS
        assert reported.grader.status is RolloutStatus.FAILURE
        assert "no grader" in (reported.grader.err_message or "")

    async def test_row_without_label_and_metadata_is_a_failure_that_says_so(self) -> None:
        """There is nothing to grade against.

        If this fails, report what `grading_refusal` returns.
        """
        bare = request(label=None)
        reported = await self.ran(bare, programs.Answers, programs.Rewards)
        assert reported.grader.status is RolloutStatus.FAILURE
        assert "neither a label nor metadata" in (reported.grader.err_message or "")
        assert rewards(reported.grader) == [None]

    async def test_metadata_or_an_empty_label_is_enough_to_grade(self) -> None:
        """Only None counts as missing.

        If this fails, compare label and metadata with None instead of testing their truth.
        """
        for row in (request(label=""), request(label=None, metadata={})):
            reported = await self.ran(row, programs.Answers, programs.Rewards)
            assert rewards(reported.grader) == [1.0], row

    async def test_failed_workflow_is_not_graded(self) -> None:
        """The grader's report says why the workflow failed, with the same category.

        If this fails, report what `grading_refusal` returns.
        """
        failing = request(metadata={"error": "ValueError"})
        reported = await self.ran(failing, programs.Raises, programs.Rewards)
        assert reported.grader.status is RolloutStatus.FAILURE
        assert "told to" in (reported.grader.err_message or "")
        assert reported.grader.err_category is RolloutErrorCategory.VALIDATION_ERROR
