"""What a rollout in a Ray worker is, beyond the contract of every backend."""

import asyncio
import functools
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    ConfigError,
    Grader,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    in_flight,
    request,
    rewards,
    run,
    said,
    until,
)
from osmosis_ray import RayBackend

pytestmark = pytest.mark.usefixtures("cluster")
UNLIMITED = AgentWorkflowConfig(name="unlimited")


class SaysWhere(AgentWorkflow):
    """Naps, then says which process it is in."""

    async def run(self, ctx):
        await asyncio.sleep(0.2)
        return [{"role": "assistant", "content": str(os.getpid())}]


class DiesOnce(AgentWorkflow):
    """Ends its process when it is the first to come here; `metadata` has a file to tell by."""

    async def run(self, ctx):
        with suppress(FileExistsError):
            os.close(os.open(ctx.metadata["marker"], os.O_CREAT | os.O_EXCL))
            os._exit(7)
        return [{"role": "assistant", "content": "alive"}]


class Dies(AgentWorkflow):
    async def run(self, ctx):
        os._exit(7)


class GraderDies(Grader):
    async def grade(self, ctx):
        os._exit(7)


class BlocksIfTold(AgentWorkflow):
    """Blocks its whole process for the seconds that `metadata` says, or answers after a while."""

    async def run(self, ctx):
        if ctx.metadata:
            time.sleep(ctx.metadata["sec"])  # noqa: ASYNC251 - blocking is what is tested
        await asyncio.sleep(0.5)
        return [{"role": "assistant", "content": "42"}]


class LeavesFiles(AgentWorkflow):
    async def run(self, ctx):
        folder = ctx.artifacts_dir / "logs"
        folder.mkdir()
        (folder / "run.txt").write_text("fine")
        (folder / "passwd").symlink_to("/etc/passwd")
        (ctx.artifacts_dir / "etc").symlink_to("/etc")
        os.mkfifo(ctx.artifacts_dir / "pipe")
        (ctx.artifacts_dir / "big").write_bytes(b"x" * 100_000)


class ReturnsLock(AgentWorkflow):
    async def run(self, ctx):
        return AgentWorkflowOutput(messages=[{"role": "assistant", "lock": threading.Lock()}])


def fresh(workflow, grader=None, kind=RayBackend, **options):
    given = {"num_workers": 1, "workflow_config": UNLIMITED, "grace_sec": 0.5, **options}
    return kind(workflow=workflow, grader=grader, **given)


@pytest.fixture
def backend(kept_processes):
    """For tests that lose no worker and import no code anew."""
    return functools.partial(fresh, kind=kept_processes)


async def ran(one_backend, one):
    try:
        return await run(one_backend, one)
    finally:
        await one_backend.shutdown()


async def all_of(one_backend, count):
    runs = (run(one_backend, request(f"r-{number}")) for number in range(count))
    return await asyncio.gather(*runs)


async def test_rollouts_go_to_the_least_loaded_worker(backend):
    several = backend(SaysWhere, num_workers=2)
    await all_of(several, 1)
    await until(lambda: not several.health()["workers"]["starting"], 90)
    places = [said(done.workflow) for done in await all_of(several, 10)]
    await several.shutdown()
    assert sorted(places.count(place) for place in set(places)) == [5, 5]


async def test_no_worker_has_more_rollouts_than_it_may_and_the_rest_is_queued(backend):
    one = backend(programs.Hangs, max_concurrent_per_worker=2, max_queued=1)
    assert one.max_concurrency == 2
    async with in_flight(one, request("a"), request("b")):
        assert one.has_capacity()
        async with in_flight(one, request("c"), status=RolloutStatus.QUEUED):
            assert not one.has_capacity()
    await one.shutdown()


def test_without_a_number_there_are_as_many_workers_as_cpus():
    one = RayBackend(workflow=programs.Answers, max_concurrent_per_worker=3)
    assert one.max_concurrency == 8 * 3
    asyncio.run(one.shutdown())


@pytest.mark.slow
async def test_workers_that_find_no_place_do_not_hold_up_those_that_did():
    """The cluster has 4 seats."""
    many = fresh(SaysWhere, num_workers=6, resources={"seat": 1}, max_concurrent_per_worker=1)
    places = {said(done.workflow) for done in await all_of(many, 12)}
    workers = many.health()["workers"]
    await many.shutdown()
    assert len(places) <= 4 and workers["starting"] >= 2
    assert workers["ready"] + workers["starting"] == 6


async def test_rollout_of_a_lost_worker_is_run_anew(tmp_path):
    one = request(metadata={"marker": str(tmp_path / "marker")})
    done = await ran(fresh(DiesOnce, programs.Rewards), one)
    assert said(done.workflow) == "alive" and done.workflow.extra_fields["restarts"] == 1
    assert len(done.results) == 2 and rewards(done.grader) == [1.0]


class DiesIfTold(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.sleep(0.3)
        if ctx.metadata:
            os._exit(7)
        return [{"role": "assistant", "content": "42"}]


@pytest.mark.slow
async def test_rollout_that_kills_its_workers_takes_no_other_one_with_it():
    shared = fresh(DiesIfTold, max_restarts=1)
    await run(shared, request("first"))
    others = asyncio.create_task(all_of(shared, 6))
    result = (await run(shared, request("dies", metadata={"die": True}))).workflow
    answers = [said(done.workflow) for done in await others]
    await shared.shutdown()
    assert answers == ["42"] * 6
    assert "not finished, after 1 restart: its Ray worker (" in result.err_message


@pytest.mark.slow
async def test_rollout_that_loses_every_worker_fails_with_the_reason():
    result = (await ran(fresh(Dies, max_restarts=1), request())).workflow
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert "not finished, after 1 restart: its Ray worker (" in result.err_message
    assert "exit" in result.err_message and "\n" not in result.err_message


@pytest.mark.slow
async def test_grading_whose_worker_is_lost_is_run_anew_without_the_workflow():
    done = await ran(fresh(programs.Answers, GraderDies, max_restarts=1), request())
    assert [result.status for result in done.results] == ["success", "failure"]
    assert "grading was not finished, after 1 restart: its Ray" in done.grader.err_message
    assert rewards(done.grader) == [None]


async def test_blocked_worker_is_killed_and_its_other_rollouts_run_elsewhere():
    shared = fresh(BlocksIfTold)
    await run(shared, request("first"))
    blocks = request("blocks", agent_timeout_sec=0.2, metadata={"sec": 600})
    late, other = await asyncio.gather(run(shared, blocks), run(shared, request("other")))
    await shared.shutdown()
    assert late.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert "so its Ray worker was killed" in late.workflow.err_message
    assert said(other.workflow) == "42" and other.workflow.extra_fields["restarts"] == 1


@pytest.mark.slow
async def test_cancel_of_blocking_code_kills_its_worker():
    one = fresh(BlocksIfTold)
    async with in_flight(one, request(metadata={"sec": 600})) as (task,):
        assert await one.cancel_rollouts(ids=["r-1"]) == {"r-1": "cancelled_running"}
        assert (await task).workflow.status is RolloutStatus.CANCELLED
    assert said((await run(one, request("next"))).workflow) == "42"
    await one.shutdown()


@pytest.mark.slow
async def test_caller_that_gives_up_on_blocking_code_frees_the_slot():
    one = fresh(BlocksIfTold, max_concurrent=1)
    async with in_flight(one, request(metadata={"sec": 600})):
        pass
    assert said((await run(one, request("next"))).workflow) == "42"
    await one.shutdown()


async def test_artifacts_come_back_without_links_and_with_a_limit(backend, tmp_path):
    one = backend(LeavesFiles, artifacts_root=tmp_path, max_artifacts_bytes=50_000)
    done = await ran(one, request())
    folder = tmp_path / "r-1" / "artifacts"
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "logs/run.txt"]
    left_out = done.workflow.extra_fields["artifacts_left_out"]
    assert [entry.split(" ")[0] for entry in left_out] == ["big", "etc", "pipe", "logs/passwd"]
    assert left_in_workers("r-1") == []


def left_in_workers(rollout_id):
    return list(Path(tempfile.gettempdir()).glob(f"osmosis-ray-*/rollouts/{rollout_id}"))


async def test_grader_has_the_artifacts_of_its_rollout(backend, tmp_path):
    one = backend(programs.WritesArtifact, programs.ReadsArtifact, artifacts_root=tmp_path)
    assert rewards((await ran(one, request())).grader) == [1.0]
    assert (tmp_path / "r-1" / "artifacts" / "prompt.txt").exists()


@pytest.mark.slow
async def test_rollout_may_ask_for_resources_of_its_own():
    """Its workers come beside those of the others."""
    one = fresh(SaysWhere)
    seated = request("seated", extra_fields={"ray_resources": {"seat": 1}})
    order = request("a"), seated, request("b")
    places = [said((await run(one, each)).workflow) for each in order]
    await one.shutdown()
    assert places[0] == places[2] != places[1]


async def test_resources_that_are_no_amounts_are_refused(backend):
    wrong = request(extra_fields={"ray_resources": {"seat": "one"}})
    result = (await ran(backend(programs.Answers), wrong)).workflow
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "give amounts by name" in result.err_message
    with pytest.raises(ConfigError, match="resources is"):
        backend(programs.Answers, resources={"CPU": -1})


async def test_resources_that_no_node_has_fail_the_rollouts_that_wait():
    one = fresh(programs.Answers, resources={"GPU": 2}, placement_timeout_sec=0.2)
    result = (await ran(one, request())).workflow
    assert result.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert "no node of the Ray cluster has what a worker reserves (GPU 2)" in result.err_message


async def test_result_that_cannot_travel_says_so(backend):
    result = (await ran(backend(ReturnsLock), request())).workflow
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "sample 'main' cannot be sent back: cannot pickle" in result.err_message
    assert result.samples["main"].messages == []


async def test_request_that_cannot_travel_says_so(backend):
    locked = request(metadata={"lock": threading.Lock()})
    result = (await ran(backend(programs.Answers), locked)).workflow
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "cannot be sent to a Ray worker: cannot pickle" in result.err_message


async def test_sample_of_megabytes_travels(backend):
    class Long(AgentWorkflow):
        async def run(self, ctx):
            return [{"role": "assistant", "content": "x" * 5_000_000}]

    assert len(said((await ran(backend(Long), request())).workflow)) == 5_000_000


async def test_work_after_a_shutdown_is_refused(backend):
    one = backend(programs.Answers)
    await one.shutdown()
    await one.shutdown()
    assert "the backend was shut down" in (await run(one, request())).workflow.err_message
