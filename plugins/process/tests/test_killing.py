"""What blocks, crashes or does not let go ends where it is, and nobody else feels it."""

import asyncio

import pytest
import rude

from osmosis_core import RolloutErrorCategory, RolloutStatus
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    assert_timeout,
    in_flight,
    request,
    rewards,
    run,
    said,
    until,
)

BLOCKS = sorted(rude.BLOCKS)
RUDE = ({"crash": "segfault"}, {"block": "spin"}, {"crash": "exit"}, {"block": "c"})


def pids(backend):
    return [worker["pid"] for worker in backend.health()["workers"]]


async def warm(backend):
    """Have a worker ready, so that deadlines are not spent on its start."""
    return int(said((await run(backend, request("warm"))).workflow))


@pytest.mark.parametrize("block", BLOCKS)
async def test_code_that_blocks_is_killed_after_its_deadline(create, is_alive, block):
    backend = create(rude.Rude)
    pid = await warm(backend)
    late = request(agent_timeout_sec=0.2, metadata={"block": block})
    result = (await run(backend, late)).workflow
    assert_timeout(result)
    assert f"its worker (process {pid}) did not answer for 0.5 s" in result.err_message
    assert "workflow exceeded its 0.2s deadline" in result.err_message
    await until(lambda: not is_alive(pid))
    assert await warm(backend) != pid


async def test_log_of_a_killed_worker_says_where_it_was(create, tmp_path):
    backend = create(rude.Rude)
    await warm(backend)
    late = request(agent_timeout_sec=0.2, metadata={"block": "spin"})
    text = (await run(backend, late)).workflow.err_message
    (log,) = (tmp_path / "workers").iterdir()
    assert str(log) in text and "in spin" in log.read_text()


async def test_code_that_blocks_is_killed_after_a_cancel(create, is_alive, block="c"):
    backend = create(rude.Rude)
    pid = await warm(backend)
    async with in_flight(backend, request(metadata={"block": block})) as (task,):
        await asyncio.sleep(0.1)
        assert await backend.cancel_rollouts(all=True) == {"r-1": "cancelled_running"}
        assert (await task).workflow.status is RolloutStatus.CANCELLED
    await until(lambda: not is_alive(pid))


async def test_code_that_blocks_is_killed_when_its_caller_is_gone(create, is_alive):
    backend = create(rude.Rude)
    pid = await warm(backend)
    async with in_flight(backend, request(metadata={"block": "sleep"})):
        await asyncio.sleep(0.1)
    await until(lambda: not is_alive(pid))


async def test_grader_that_blocks_is_killed_after_its_deadline(create):
    backend = create(programs.Answers, grader=rude.BlocksGrading)
    reported = await run(backend, request(grader_timeout_sec=0.2))
    assert reported.workflow.status is RolloutStatus.SUCCESS
    assert_timeout(reported.grader)
    assert rewards(reported.grader) == [None]
    assert "grading_sec" in reported.grader.extra_fields


@pytest.mark.parametrize(
    ("crash", "reason"),
    [
        ("exit", "exited with code 3"),
        ("segfault", "was ended by SIGSEGV"),
        ("abort", "was ended by SIGABRT"),
        ("killed", "was ended by SIGKILL, perhaps because memory ran out"),
    ],
)
async def test_crash_is_an_error_of_its_rollout_with_the_reason(create, crash, reason):
    backend = create(rude.Rude, grader=programs.Rewards)
    reported = await run(backend, request(metadata={"crash": crash}))
    assert reported.workflow.err_category is RolloutErrorCategory.AGENT_ERROR
    assert reason in reported.workflow.err_message
    assert len(reported.results) == 2
    assert await warm(backend) > 0


async def crowd(backend, **culprit):
    """Four rollouts in one worker, of which the last one is rude; the results of each."""
    rows = [request(f"r-{n}", metadata={"together": 4}) for n in range(3)]
    limit = {"agent_timeout_sec": 2.0} if "block" in culprit else {}
    rows.append(request("bad", metadata={"together": 4, **culprit}, **limit))
    await run(backend, request("warm", metadata={"together": 0}))
    return [one.results for one in await asyncio.gather(*(run(backend, row) for row in rows))]


async def test_rollouts_beside_a_crash_run_again_each_in_a_worker_of_its_own(create):
    backend = create(rude.Crowded, grader=programs.Rewards, num_workers=1)
    *others, bad = await crowd(backend, crash="segfault")
    assert [rewards(graded) for _, graded in others] == [[1.0]] * 3
    assert len({said(workflow) for workflow, _ in others}) == 3
    assert [result.status for result in bad] == [RolloutStatus.FAILURE] * 2
    assert "SIGSEGV" in bad[0].err_message


async def test_rollouts_beside_one_that_blocks_run_again(create):
    backend = create(rude.Crowded)
    *others, bad = await crowd(backend, block="sleep")
    assert [result.status for result, _ in others] == [RolloutStatus.SUCCESS] * 3
    assert_timeout(bad[0])


@pytest.mark.parametrize("rude_one", [{"crash": "exit"}, {"block": "sleep"}])
async def test_without_restarts_they_fail_with_the_reason(create, rude_one):
    backend = create(rude.Crowded, max_restarts=0)
    *others, _ = await crowd(backend, **rude_one)
    for result, _ in others:
        assert result.err_category is RolloutErrorCategory.INTERNAL_ERROR
        assert "its worker (process" in result.err_message


async def test_rollout_that_never_ends_is_left_without_harm_to_the_others(create, is_alive):
    backend = create(rude.Undying)
    pid = await warm(backend)
    undying = request("undying", agent_timeout_sec=0.1, metadata={"die": "never"})
    late, good = await asyncio.gather(run(backend, undying), run(backend, request("good")))
    assert_timeout(late.workflow)
    assert "went on with it" in late.workflow.err_message
    assert said(good.workflow) == str(pid)
    await until(lambda: not is_alive(pid))


async def test_shutdown_ends_what_blocks_and_leaves_no_process(create, is_alive, block="c"):
    backend = create(rude.Rude)
    pid = await warm(backend)
    async with in_flight(backend, request(metadata={"block": block})) as (task,):
        await asyncio.sleep(0.1)
        await backend.shutdown()
        assert (await task).workflow.status is RolloutStatus.CANCELLED
    assert not is_alive(pid)


async def test_children_of_a_worker_end_with_it(create, is_alive):
    backend = create(rude.Leaves)
    child = int(said((await run(backend, request())).workflow))
    assert is_alive(child)
    await backend.shutdown()
    await until(lambda: not is_alive(child))


async def test_exit_in_a_task_that_was_left_behind_is_nobody_s_end(create):
    backend = create(rude.Leaves)
    for name in ("a", "b"):
        assert (await run(backend, request(name))).workflow.status is RolloutStatus.SUCCESS
    assert len(pids(backend)) == 1


async def test_time_that_a_worker_takes_to_start_counts(create):
    backend = create(rude.Rude, grace_sec=30.0)
    assert_timeout((await run(backend, request(agent_timeout_sec=0.05))).workflow)


async def test_deadline_that_passes_while_the_worker_starts_is_a_timeout(create):
    backend = create(rude.Rude, grace_sec=0.05)
    result = (await run(backend, request(agent_timeout_sec=0.02))).workflow
    assert_timeout(result)
    assert (await run(backend, request())).workflow.status is RolloutStatus.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("again", range(3))
@pytest.mark.parametrize("block", BLOCKS)
async def test_code_that_blocks_is_killed_every_time(create, is_alive, tmp_path, block, again):
    await test_code_that_blocks_is_killed_after_its_deadline(create, is_alive, block)
    await test_code_that_blocks_is_killed_after_a_cancel(create, is_alive, block)
    await test_shutdown_ends_what_blocks_and_leaves_no_process(create, is_alive, block)


@pytest.mark.slow
@pytest.mark.parametrize("again", range(3))
@pytest.mark.parametrize("crash", ["segfault", "killed"])
async def test_only_the_culprit_of_a_crash_fails_every_time(create, crash, again):
    *others, bad = await crowd(create(rude.Crowded, num_workers=2), crash=crash)
    assert [result.status for result, _ in others] == [RolloutStatus.SUCCESS] * 3
    assert bad[0].err_category is RolloutErrorCategory.AGENT_ERROR


@pytest.mark.slow
async def test_nothing_is_lost_or_told_twice_while_workers_are_killed(create):
    backend = create(rude.Rude, num_workers=2, max_concurrent=12, max_restarts=9)
    rows = [request(f"r-{n}", metadata={"sec": 0.05}) for n in range(200)]
    for n, rudeness in zip(range(0, 200, 25), 2 * list(RUDE), strict=True):
        rows[n] = request(f"r-{n}", metadata={"sec": 0.1, **rudeness}, agent_timeout_sec=9.0)
    done = await asyncio.gather(*(run(backend, row) for row in rows))
    assert {len(one.results) for one in done} == {2}
    failed = [n for n, one in enumerate(done) if one.workflow.status is RolloutStatus.FAILURE]
    assert failed == list(range(0, 200, 25))
