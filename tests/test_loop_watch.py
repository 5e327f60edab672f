"""A rollout that blocks its event loop is named once, and watching costs next to nothing."""

import asyncio
import logging
import threading
import time

import pytest

from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    Grader,
    LocalBackend,
    RolloutSample,
    SampleSource,
    get_rollout_context,
    loop_watch,
)

LONG_SEC = 0.8


def sleeps_without_awaiting():
    time.sleep(LONG_SEC)


def computes():
    ends = time.monotonic() + LONG_SEC
    while time.monotonic() < ends:
        sum(range(1000))


@pytest.fixture(autouse=True)
def nothing_told():
    loop_watch._told.clear()


@pytest.fixture
def said(caplog):
    """What is logged while a workflow runs through a LocalBackend."""

    async def said(work, *, grade=None, count=1):
        class Works(AgentWorkflow):
            async def run(self, ctx):
                await work()

        class Grades(Grader):
            async def grade(self, ctx):
                grade()

        backend = LocalBackend(workflow=Works, grader=Grades if grade else None, max_concurrent=64)
        caplog.clear()

        async def ignore(result):
            pass

        async def one(number):
            request = ExecutionRequest(id=f"r{number}", prompt=[], label="x")
            await backend.execute(request, ignore, ignore if grade else None)

        with caplog.at_level(logging.WARNING, logger="osmosis_core.loop_watch"):
            await asyncio.gather(*(one(number) for number in range(count)))
        return [record.getMessage() for record in caplog.records]

    return said


def watch_threads():
    return [t for t in threading.enumerate() if t.name == "osmosis-loop-watch"]


@pytest.mark.parametrize("block", [sleeps_without_awaiting, computes])
async def test_blocking_code_is_named_with_its_rollout_module_and_place(said, block):
    async def work():
        block()

    (text,) = await said(work)
    assert text.startswith("rollout 'r0' blocks the event loop")
    assert f"in {block.__name__} at {__file__}:" in text
    assert f": {__name__.partition('.')[0]}, in " in text


async def test_a_place_is_named_once(said):
    async def work():
        sleeps_without_awaiting()

    assert len(await said(work, count=3)) == 1
    assert await said(work) == []


async def test_standard_library_is_blamed_on_its_caller(said):
    async def work():
        waits_for_a_thread()

    def waits_for_a_thread():
        threading.Event().wait(LONG_SEC)

    (text,) = await said(work)
    assert "waits_for_a_thread at " in text


async def test_task_of_a_rollout_is_told_apart_from_its_neighbours(said):
    numbers = iter(range(3))

    async def work():
        if next(numbers) == 1:
            await asyncio.gather(asyncio.to_thread(int), blocking())
        await asyncio.sleep(LONG_SEC / 4)

    async def blocking():
        sleeps_without_awaiting()

    (text,) = await said(work, count=3)
    assert text.startswith("rollout 'r1' ")


async def test_blocking_grader_is_named(said):
    async def work():
        get_rollout_context().register_sample_source("a", Empty())

    class Empty(SampleSource):
        async def get_sample(self, sample_id):
            return RolloutSample(id=sample_id)

    (text,) = await said(work, grade=sleeps_without_awaiting)
    assert "rollout 'r0'" in text and "sleeps_without_awaiting" in text


async def test_what_awaits_or_runs_in_a_thread_is_not_named(said):
    async def work():
        await asyncio.sleep(LONG_SEC / 2)
        await asyncio.to_thread(time.sleep, LONG_SEC / 2)

    assert await said(work, count=8) == []


async def test_a_busy_loop_of_short_steps_is_not_named(said):
    async def work():
        for _ in range(20):
            time.sleep(0.002)
            await asyncio.sleep(0)

    assert await said(work, count=40) == []


async def test_code_outside_a_rollout_is_not_named(said):
    async def outside():
        await asyncio.sleep(0.05)
        sleeps_without_awaiting()

    async def work():
        await asyncio.sleep(LONG_SEC * 1.5)

    neighbour = asyncio.ensure_future(outside())
    assert await said(work) == []
    await neighbour


async def test_it_can_be_turned_off(said, monkeypatch):
    async def work():
        sleeps_without_awaiting()

    monkeypatch.setenv("OSMOSIS_LOOP_WATCH", "0")
    assert await said(work) == []


async def test_one_thread_while_rollouts_run_and_none_when_idle(said):
    async def work():
        seen.append(len(watch_threads()))
        await asyncio.sleep(0.05)

    seen = []
    await said(work, count=8)
    assert set(seen) == {1}
    ends = time.monotonic() + 20
    while watch_threads() and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    assert not watch_threads() and not loop_watch._watches


def test_loops_in_parallel_threads_are_watched_apart(said):
    async def quiet():
        await asyncio.sleep(LONG_SEC * 2)

    async def blocking():
        sleeps_without_awaiting()

    threads = [threading.Thread(target=asyncio.run, args=(said(quiet),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    texts = asyncio.run(said(blocking))
    for thread in threads:
        thread.join()
    assert sum("sleeps_without_awaiting" in text for text in texts) == 1
