"""Rollouts do not feel each other, and leave nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from osmosis_core.active import get_rollout_context
from osmosis_core.context import RolloutContext
from osmosis_core.errors import BackendError
from osmosis_core.testing import conformance_travellers as travellers
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    Reported,
    in_flight,
    is_empty,
    request,
    rewards,
    run,
    said,
    until,
)
from osmosis_core.types import (
    RolloutStatus,
)


class Isolation(BackendSuite):
    """Rollouts do not feel each other, and leave nothing behind."""

    async def test_input_of_a_workflow_is_its_own_copy(self) -> None:
        """What a workflow does to prompt, config and metadata reaches nobody else.

        If this fails, run the workflow through `run_workflow`, with the backend's own config.
        """
        one = request(metadata={"list": []})
        async with self.opened(programs.ChangesItsInput, None, programs.TOOLS) as backend:
            heard = [said((await run(backend, one)).workflow) for _ in range(2)]
        assert heard == [f"{one.prompt} ['add'] {{'list': []}}"] * 2
        assert "spoiled" not in f"{one} {programs.TOOLS}"

    async def test_metadata_of_a_grader_is_its_own_copy(self) -> None:
        """What a grader does to its metadata reaches nobody else.

        If this fails, run the grader through `run_grader`.
        """
        one = request(metadata={"list": []})
        reported = await self.ran(one, programs.Answers, programs.GraderChangesItsInput)
        assert reported.grader.status is RolloutStatus.SUCCESS
        assert one.metadata == {"list": []}

    async def test_every_rollout_sees_its_own_context(self) -> None:
        """Many rollouts at once, each with its own id in the active RolloutContext.

        If this fails, run every rollout in a task, thread or process of its own.
        """
        names = [f"r-{number}" for number in range(self.crowd)]
        async with self.opened(programs.NamesItsRollout, None, programs.UNLIMITED) as backend:
            done = await asyncio.gather(*(run(backend, request(name)) for name in names))
        assert [said(one.workflow) for one in done] == names

    async def test_context_variables_are_each_rollout_s_own(self) -> None:
        """What one rollout sets is not seen by those after or beside it.

        If this fails, run every rollout in a task, thread or process of its own.
        """
        async with self.opened(travellers.SeesVariable) as backend:
            for _ in range(2):
                names = [f"r-{number}" for number in range(4)]
                done = await asyncio.gather(*(run(backend, request(name)) for name in names))
                assert {said(one.workflow) for one in done} == {"nothing"}

    async def test_grader_sees_no_active_rollout(self) -> None:
        """A grader cannot call the policy by accident.

        If this fails, run the grader through `run_grader`.
        """
        reported = await self.ran(request(), programs.Answers, programs.SeesNoRollout)
        assert rewards(reported.grader) == [1.0]

    async def test_active_rollout_of_the_caller_is_restored(self) -> None:
        """`execute` leaves the caller's RolloutContext active, and adds nothing to it.

        If this fails, open the rollout's context with `with`, inside `execute`.
        """
        with RolloutContext("http://127.0.0.1:9/v1", rollout_id="outer") as outer:
            await self.ran(request(), programs.TwoAgents, programs.Rewards)
            assert get_rollout_context() is outer
            assert await outer.get_samples() == {}

    async def test_artifacts_directory_is_shared_by_workflow_and_grader_only(self) -> None:
        """Every rollout has its own; the grader finds what the workflow wrote.

        If this fails, give `run_workflow` and `run_grader` the same directory, one per rollout.
        """
        async with self.opened(programs.WritesArtifact, programs.ReadsArtifact) as backend:
            done = [await run(backend, request(name)) for name in ("a", "b")]
        assert [rewards(one.grader) for one in done] == [[1.0], [1.0]]
        assert said(done[0].workflow) != said(done[1].workflow)

    async def test_artifacts_directory_is_created_on_demand(self) -> None:
        """Rollouts that write nothing leave no directories.

        If this fails, pass the path on and let `ctx.artifacts_dir` create it.
        """
        with tempfile.TemporaryDirectory() as root:
            backend = self.create_backend(workflow=programs.Answers, artifacts_root=Path(root))
            await run(backend, request())
            await backend.shutdown()
            assert is_empty(Path(root))

    async def test_running_id_is_refused(self) -> None:
        """Two rollouts with one id would mix their samples; the first one is not disturbed.

        If this fails, raise BackendError when the id is in flight.
        """
        async with (
            self.opened(programs.Hangs, None, programs.TWO_AT_A_TIME) as backend,
            in_flight(backend, request()),
        ):
            again = await asyncio.gather(run(backend, request()), return_exceptions=True)
            assert isinstance(again[0], BackendError)
            assert backend.rollout_status("r-1") is RolloutStatus.RUNNING

    async def test_finished_id_can_be_used_again(self) -> None:
        """A controller may retry a rollout.

        If this fails, forget a rollout when `execute` ends.
        """
        async with self.opened(programs.Answers) as backend:
            done = [await run(backend, request()) for _ in range(2)]
        assert [said(one.workflow) for one in done] == ["42", "42"]

    async def test_cancelled_caller_gets_its_cancellation_and_the_slot_is_freed(self) -> None:
        """Cancelling the caller's task is not a cancelled rollout: nothing is reported.

        If this fails, let CancelledError through and free the slot in a `finally`.
        """
        hang, reported = request("first", metadata={"hang": True}), Reported()
        async with self.opened(programs.HangsIfTold, None, programs.ONE_AT_A_TIME) as backend:
            execution = backend.execute(hang, reported.on_workflow_complete)
            task = asyncio.ensure_future(execution)
            await until(lambda: backend.rollout_status("first") is RolloutStatus.RUNNING)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() and reported.results == []
            assert said((await run(backend, request())).workflow) == "42"

    async def test_cancelled_caller_leaves_the_queue(self) -> None:
        """A queued rollout whose caller is gone neither runs nor takes the slot.

        If this fails, let rollouts be cancelled while they wait for a slot.
        """
        hang = request("first", metadata={"hang": True})
        async with (
            self.opened(programs.HangsIfTold, None, programs.ONE_AT_A_TIME) as backend,
            in_flight(backend, hang),
        ):
            async with in_flight(backend, request("gone"), status=RolloutStatus.QUEUED):
                pass
            assert backend.rollout_status("gone") is None
            await backend.cancel_rollouts(ids=["first"])
            assert said((await run(backend, request())).workflow) == "42"
