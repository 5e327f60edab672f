"""LocalBackend where user code and callers do what they should not."""

import asyncio
import threading

import pytest

from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    Grader,
    LocalBackend,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)


class Quick(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": "hi"}]


class Slow(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.sleep(0.2)


class Deaf(AgentWorkflow):
    async def run(self, ctx):
        for _ in range(3):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue


class Kept(list):
    async def __call__(self, result):
        self.append(result)


def graded_by(grade):
    class By(Grader):
        async def grade(self, ctx):
            grade(ctx)

    return By


REQUEST = ExecutionRequest("r", [], label="x")


@pytest.mark.parametrize(
    "grade",
    [
        lambda ctx: ctx.samples.__setitem__("main", None),
        lambda ctx: ctx.samples.clear(),
        lambda ctx: ctx.samples.__setitem__("other", RolloutSample(id="other", reward=1.0)),
    ],
)
async def test_grader_cannot_lose_the_report(grade):
    results = Kept()
    backend = LocalBackend(workflow=Quick, grader=graded_by(grade))
    await backend.execute(REQUEST, results, results)
    assert [r.status for r in results] == [RolloutStatus.SUCCESS, RolloutStatus.FAILURE]
    assert list(results[1].samples) == ["main"]
    assert "gave no reward to main" in results[1].err_message


async def test_results_already_reported_do_not_change():
    results = Kept()
    backend = LocalBackend(workflow=Quick, grader=graded_by(lambda ctx: ctx.set_reward(1)))
    await backend.execute(REQUEST, results, results)
    assert [r.samples["main"].reward for r in results] == [None, 1.0]


async def test_swallowed_cancel_of_the_caller_is_still_a_cancel():
    results = Kept()
    task = asyncio.ensure_future(LocalBackend(workflow=Deaf).execute(REQUEST, results))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results == []


async def test_rollout_in_its_last_callback_is_not_found_by_a_cancel():
    found = []

    async def last(result):
        found.append(await backend.cancel_rollouts(all=True))

    backend = LocalBackend(workflow=Quick)
    await backend.execute(REQUEST, last)
    assert found == [{"r": "not_found"}]


async def test_cancel_between_workflow_and_grader_is_reported():
    results = Kept()

    async def between(result):
        found.update(await backend.cancel_rollouts(ids=["r"]))

    found = {}
    backend = LocalBackend(workflow=Quick, grader=graded_by(lambda ctx: ctx.set_reward(1)))
    await backend.execute(REQUEST, between, results)
    assert found == {"r": "cancelled_running"}
    assert [r.status for r in results] == [RolloutStatus.CANCELLED]


def test_backend_on_two_running_loops_says_so():
    backend, results = LocalBackend(workflow=Slow), Kept()

    async def ten(name):
        requests = [ExecutionRequest(f"{name}{i}", []) for i in range(10)]
        await asyncio.gather(*(backend.execute(r, results) for r in requests))

    threads = [threading.Thread(target=asyncio.run, args=(ten(name),)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    refused = [r.err_message for r in results if r.status is RolloutStatus.FAILURE]
    assert len(results) == 20
    assert refused and all("another event loop" in message for message in refused)


def test_backend_serves_one_loop_after_the_other():
    backend = LocalBackend(workflow=Slow)

    async def ten(name):
        requests = [ExecutionRequest(f"{name}{i}", []) for i in range(10)]
        await asyncio.gather(*(backend.execute(r, Kept()) for r in requests))

    for name in "ab":
        asyncio.run(ten(name))
    assert backend.health()["concurrency"] == {"max_concurrent": 4, "queued": 0, "running": 0}


async def test_timeout_in_a_task_group_is_a_timeout():
    class Grouped(AgentWorkflow):
        async def run(self, ctx):
            raise ExceptionGroup("group", [TimeoutError("too slow")])

    results = Kept()
    await LocalBackend(workflow=Grouped).execute(REQUEST, results)
    assert results[0].err_category is RolloutErrorCategory.TIMEOUT
    assert results[0].err_message == "too slow"


@pytest.mark.parametrize("nonsense", [42, "text", [1], [None], [{"a": 1}, 2]])
async def test_nonsense_that_a_workflow_returns_is_named_on_one_line(nonsense):
    class Returns(AgentWorkflow):
        async def run(self, ctx):
            return nonsense

    results = Kept()
    await LocalBackend(workflow=Returns).execute(REQUEST, results)
    assert results[0].err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert f"run() returned {type(nonsense).__name__}" in results[0].err_message
    assert "\n" not in results[0].err_message
