"""What blocks the loop of a rollout is named once; what waits, or is starved, is not."""

import asyncio
import gc
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ExecutionRequest,
    Grader,
    LocalBackend,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_loop_watch import watch

LONG_SEC = 1.0


def sleeps():
    time.sleep(LONG_SEC)


def computes():
    ends = time.thread_time() + LONG_SEC
    while time.thread_time() < ends:
        sum(range(1000))


def calls_into_c():
    sum(range(20_000_000))


def waits_for_a_thread():
    threading.Event().wait(LONG_SEC)


class Empty(SampleSource):
    async def get_sample(self, sample_id):
        return RolloutSample(id=sample_id)


class Log(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


async def ignore(result):
    assert result.status == "success", result


async def rolled_out(work, *, grade=None, count=1):
    class Works(AgentWorkflow):
        async def run(self, ctx):
            await work()

    class Grades(Grader):
        async def grade(self, ctx):
            grade()
            ctx.set_reward(1)

    backend = LocalBackend(
        workflow=Works,
        workflow_config=AgentWorkflowConfig(name="any"),
        grader=Grades if grade else None,
    )
    requests = [ExecutionRequest(f"r{number}", [], label="x") for number in range(count)]
    done = ignore if grade else None
    await asyncio.gather(*(backend.execute(request, ignore, done) for request in requests))


@pytest.fixture
def said(monkeypatch):
    """What was logged, the same place again in every test."""
    log = Log()
    watch._told.clear()
    monkeypatch.delenv("OSMOSIS_LOOP_WATCH", raising=False)
    watch._logger.addHandler(log)
    yield log.lines
    watch._logger.removeHandler(log)


def async_(block):
    async def work():
        block()

    return work


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="C calls are seen on Linux only")


@pytest.mark.parametrize("block", [sleeps, computes])
async def test_blocking_code_is_named_with_its_rollout_module_and_place(said, block):
    await rolled_out(async_(block))
    (line,) = said
    assert "in rollout 'r0': " in line
    assert f": {__name__.partition('.')[0]}, in {block.__name__} at {__file__}:" in line
    assert line.endswith("asyncio.to_thread()")


@linux_only
async def test_c_call_that_keeps_the_interpreter_is_named(said):
    async def work():
        for _ in range(60):  # a starved machine hides some
            if not said:
                await asyncio.sleep(0)
                calls_into_c()

    await rolled_out(work)
    assert "in rollout 'r0': " in said[0]
    assert "in calls_into_c at " in said[0]


async def test_a_place_is_named_once(said):
    await rolled_out(async_(sleeps), count=2)
    await rolled_out(async_(sleeps))
    assert len(said) == 1


async def test_standard_library_is_blamed_on_its_caller(said):
    await rolled_out(async_(waits_for_a_thread))
    assert "in waits_for_a_thread at " in said[0]


async def test_frame_of_an_installed_package_is_named_with_its_caller(said, tmp_path):
    file = tmp_path / "site-packages" / "osmosis_acme.py"
    file.parent.mkdir()
    file.write_text("import time\n\n\ndef fetch():\n    time.sleep(1)\n")
    spec = importlib.util.spec_from_file_location("osmosis_acme", file)
    acme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(acme)

    def asks():
        acme.fetch()

    await rolled_out(async_(asks))
    assert f": osmosis_acme, in fetch at {file}:5, called by " in said[0]
    assert f"asks at {__file__}:" in said[0]


async def test_task_that_a_rollout_started_is_the_rollouts(said):
    numbers = iter(range(3))

    async def work():
        if next(numbers) == 1:
            await asyncio.gather(asyncio.sleep(0.1), blocking())
        await asyncio.sleep(0.3)

    async def blocking():
        await asyncio.sleep(0.1)
        sleeps()

    await rolled_out(work, count=3)
    assert "in rollout 'r1': " in said[0]


async def test_blocking_grader_is_named(said):
    async def work():
        get_rollout_context().register_sample_source("a", Empty())

    await rolled_out(work, grade=sleeps)
    assert "in rollout 'r0': " in said[0]
    assert "in sleeps at " in said[0]


async def test_callback_is_named_with_the_rollouts_that_wait(said):
    asyncio.get_running_loop().call_later(0.2, sleeps)
    await rolled_out(lambda: asyncio.sleep(0.4), count=5)
    assert "beside rollouts 'r0', 'r1', 'r2' and 2 more: " in said[0]
    assert "in sleeps at " in said[0]


async def test_waits_that_are_awaited_are_not_named(said):
    async def work():
        await asyncio.sleep(0.3)
        await asyncio.to_thread(time.sleep, 0.3)

    await rolled_out(work, count=8)
    assert said == []


async def test_many_short_steps_are_not_named(said):
    async def work():
        for _ in range(10):
            computes_for(0.002)
            await asyncio.sleep(0)

    await rolled_out(work, count=100)
    assert said == []


async def test_steps_of_25_ms_in_a_row_are_not_named(said):
    async def work():
        for _ in range(40):
            computes_for(0.025)
            await asyncio.sleep(0)

    await rolled_out(work)
    assert said == []


def computes_for(sec):
    ends = time.thread_time() + sec
    while time.thread_time() < ends:
        pass


@linux_only
async def test_c_call_of_another_thread_is_not_blamed_on_the_loop(said):
    async def work():
        other = asyncio.to_thread(calls_into_c)
        await asyncio.gather(other, *(asyncio.sleep(n / 100) for n in range(50)))

    await rolled_out(work)
    assert said == []


async def test_first_import_is_not_named(said, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    await rolled_out(async_(lambda: __import__("slow_to_import")))
    assert said == []


async def test_full_garbage_collection_is_not_blamed_on_whoever_runs(said):
    garbage = [[] for _ in range(2_000_000)]

    async def work():
        for _ in range(5):
            gc.collect()
            await asyncio.sleep(0.01)

    await rolled_out(work)
    assert garbage and said == []


async def test_code_is_not_watched_when_no_rollout_runs(said):
    await rolled_out(lambda: asyncio.sleep(0))
    sleeps()
    assert said == []


async def test_rollout_whose_caller_was_cancelled_is_not_watched_for(said):
    task = asyncio.ensure_future(rolled_out(lambda: asyncio.sleep(60)))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    await ends(lambda: not watch._watches)


async def ends(is_over):
    async with asyncio.timeout(60):
        while not is_over():  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(0.01)


async def test_environment_turns_it_off(said, monkeypatch):
    monkeypatch.setenv("OSMOSIS_LOOP_WATCH", "0")
    await ends(lambda: not watch._watches)
    await rolled_out(async_(sleeps))
    assert said == []


async def test_one_thread_while_rollouts_run_and_none_when_idle(said):
    def threads():
        return sum(thread.name == "osmosis-loop-watch" for thread in threading.enumerate())

    async def work():
        seen.append(threads())
        await asyncio.sleep(0.05)

    seen = []
    await rolled_out(work, count=8)
    assert set(seen) == {1}
    await ends(lambda: not threads())
    assert watch._watches == {}


def test_loops_of_several_threads_are_watched_apart(said):
    async def quiet():
        await asyncio.sleep(1.5 * LONG_SEC)

    works = [quiet, async_(sleeps), async_(waits_for_a_thread)]
    threads = [threading.Thread(target=asyncio.run, args=(rolled_out(work),)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.partition(", in ")[2].split()[0] for line in said) == [
        "sleeps",
        "waits_for_a_thread",
    ]


SCRIPT = """
import asyncio, multiprocessing, os, time
from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend

class Blocks(AgentWorkflow):
    async def run(self, ctx):
        time.sleep(1)

async def ignore(result):
    pass

def roll_out():
    asyncio.run(LocalBackend(workflow=Blocks).execute(ExecutionRequest("r0", []), ignore))
"""


def stderr_of(code, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OSMOSIS_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + code],
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_installed_is_on():
    assert "in rollout 'r0': __main__, in Blocks.run at <string>:" in stderr_of("roll_out()")


@pytest.mark.parametrize(
    "variable", ["OSMOSIS_DISABLED_PLUGINS=loop-watch", "OSMOSIS_LOOP_WATCH=0"]
)
def test_it_can_be_turned_off(variable):
    name, _, value = variable.partition("=")
    assert stderr_of("roll_out()", **{name: value}) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_watches_its_own_loop():
    fork = """
blocks, Blocks.run = Blocks.run, lambda self, ctx: asyncio.sleep(0.1)
roll_out()
child = os.fork()
if child == 0:
    Blocks.run = blocks
    roll_out()
    os._exit(0)
os.waitpid(child, 0)
"""
    lines = [line for line in stderr_of(fork, PYTHONWARNINGS="ignore").splitlines() if line]
    assert len(lines) == 1 and "in rollout 'r0': " in lines[0]
