"""A reward is a finite number that a grader gave."""

from __future__ import annotations

from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    request,
    rewards,
    run,
)
from osmosis_core.types import (
    RolloutErrorCategory,
    RolloutStatus,
)


class Rewards(BackendSuite):
    """A reward is a finite number that a grader gave."""

    async def test_nan_reward_fails_the_grading(self) -> None:
        """A reward is a finite number, and after a failure no sample keeps one.

        If this fails, report what `run_grader` returns as it is.
        """
        judged = request(metadata={"judge": "nan"})
        result = (await self.ran(judged, programs.TwoAgents, programs.RewardsSolver)).grader
        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert rewards(result) == [None, None]

    async def test_missing_reward_names_the_sample(self) -> None:
        """A sample that the grader forgot is a failure that says which.

        If this fails, report what `run_grader` returns as it is.
        """
        judged = request(metadata={"judge": "forget"})
        result = (await self.ran(judged, programs.TwoAgents, programs.RewardsSolver)).grader
        assert result.status is RolloutStatus.FAILURE
        assert "judge" in (result.err_message or "")
        assert "solver" not in (result.err_message or "")
        assert rewards(result) == [None, None]

    async def test_removed_and_helper_samples_need_no_reward(self) -> None:
        """`remove_sample` and `trainable=False` keep a sample out of training.

        If this fails, report what `run_grader` returns as it is, with those flags.
        """
        async with self.opened(programs.TwoAgents, programs.RewardsSolver) as backend:
            removed = (await run(backend, request(metadata={"judge": "remove"}))).grader
            helper = (await run(backend, request(metadata={"judge": "helper"}))).grader
        assert [removed.status, helper.status] == [RolloutStatus.SUCCESS] * 2
        assert removed.samples["judge"].remove_sample
        assert rewards(removed) == rewards(helper) == [1.0, None]
