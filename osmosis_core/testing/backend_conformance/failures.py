"""Categories of failures, policy failures, what a workflow may return."""

from __future__ import annotations

from osmosis_core.testing import conformance_travellers as travellers
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    CATEGORIES,
    FAST_RETRY,
    BackendSuite,
    request,
    rewards,
    run,
    said,
    unreachable,
)
from osmosis_core.testing.scripted import ScriptedPolicy, Status
from osmosis_core.types import (
    RolloutErrorCategory,
    RolloutStatus,
)


class Failures(BackendSuite):
    """Categories of failures, policy failures, what a workflow may return."""

    async def test_errors_of_the_workflow_have_their_category(self) -> None:
        """Whatever user code raises is a result with the error's text, `SystemExit` included.

        If this fails, report what `run_workflow` returns as it is.
        """
        async with self.opened(programs.Raises) as backend:
            for name, category in CATEGORIES.items():
                result = (await run(backend, request(metadata={"error": name}))).workflow
                assert (name, result.status) == (name, RolloutStatus.FAILURE)
                assert (name, result.err_category) == (name, category)
                assert "told to" in (result.err_message or ""), name

    async def test_errors_of_the_grader_have_their_category(self) -> None:
        """Whatever a grader raises is a result, and rewards that it gave before do not count.

        If this fails, report what `run_grader` returns as it is.
        """
        async with self.opened(programs.Answers, programs.GraderRaises) as backend:
            for name, category in CATEGORIES.items():
                result = (await run(backend, request(metadata={"error": name}))).grader
                assert (name, result.status) == (name, RolloutStatus.FAILURE)
                assert (name, result.err_category) == (name, category)
                assert rewards(result) == [None]

    async def test_odd_errors_are_results_too(self) -> None:
        """Errors that cannot be pickled or printed, groups, causes, and what is no `Exception`.

        If this fails, let only results travel, never exceptions.
        """
        async with self.opened(travellers.RaisesOddly, travellers.GraderRaisesOddly) as backend:
            for name, (_, text, category) in travellers.ODD_ERRORS.items():
                by_workflow = await run(backend, request(metadata={"error": name}))
                by_grader = await run(backend, request(metadata={"grader_error": name}))
                for result in (by_workflow.workflow, by_grader.grader):
                    assert (name, result.status) == (name, RolloutStatus.FAILURE)
                    assert (name, result.err_category) == (name, category)
                    assert text in (result.err_message or ""), name

    async def test_unreachable_policy_is_an_http_error(self) -> None:
        """The workflow failed, but its policy is to blame.

        If this fails, keep the category of the result of `run_workflow`.
        """
        with unreachable():
            reported = await self.ran(request(), programs.CallsPolicy)
        assert reported.workflow.status is RolloutStatus.FAILURE
        assert reported.workflow.err_category is RolloutErrorCategory.HTTP_ERROR

    async def test_policy_that_keeps_failing_is_an_http_error(self) -> None:
        """The failed call is still in the sample.

        If this fails, keep the category and the samples of the result of `run_workflow`.
        """
        with ScriptedPolicy(Status(500)) as policy, policy.rollout(retry=FAST_RETRY):
            reported = await self.ran(request(), programs.CallsPolicy)
        assert reported.workflow.err_category is RolloutErrorCategory.HTTP_ERROR
        assert [call.received for call in reported.workflow.samples["main"].calls] == [False]

    async def test_policy_calls_carry_the_rollout_and_are_recorded(self) -> None:
        """The policy sees the rollout id; the sample has the call and its conversation.

        If this fails, run the workflow within the RolloutContext that is active around `execute`.
        """
        with ScriptedPolicy("42") as policy, policy.rollout():
            reported = await self.ran(request(), programs.CallsPolicy)
        assert [received.rollout_id for received in policy.requests] == ["r-1"]
        assert said(reported.workflow) == "42"
        assert [call.rollout_id for call in reported.workflow.samples["main"].calls] == ["r-1"]

    async def test_workflow_without_output_succeeds_without_samples(self) -> None:
        """None is an answer, but there is nothing to grade then.

        If this fails, report what `run_workflow` and `run_grader` return as it is.
        """
        silent = request(metadata={"returns": "none"})
        reported = await self.ran(silent, programs.Returns, programs.Rewards)
        assert reported.workflow.status is RolloutStatus.SUCCESS
        assert reported.workflow.samples == {}
        assert reported.grader.status is RolloutStatus.FAILURE
        assert "no sample to grade" in (reported.grader.err_message or "")

    async def test_returned_messages_are_the_sample(self) -> None:
        """A bare list of messages is the conversation.

        If this fails, report what `run_workflow` returns as it is.
        """
        one = request()
        result = (await self.ran(one, programs.Answers)).workflow
        assert result.samples["main"].messages == [*one.prompt, programs.answer("42")]

    async def test_returned_output_is_the_sample(self) -> None:
        """Messages and metrics go to the sample, `info` to the result's extra fields.

        If this fails, report what `run_workflow` returns as it is, `extra_fields` included.
        """
        output = request(metadata={"returns": "output"})
        result = (await self.ran(output, programs.Returns)).workflow
        assert said(result) == "42"
        assert result.samples["main"].metrics["steps"] == 2.0
        assert result.extra_fields["info"] == {"note": "kept"}

    async def test_anything_else_returned_is_a_validation_error(self) -> None:
        """The message names the type that was returned.

        If this fails, report what `run_workflow` returns as it is.
        """
        nonsense = request(metadata={"returns": "a string"})
        result = (await self.ran(nonsense, programs.Returns)).workflow
        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert "str" in (result.err_message or "")
