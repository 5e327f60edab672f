"""Workflows that no event loop can stop, and worse."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    Grader,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)


def spin():
    while True:
        pass


def hold_the_interpreter():
    while True:  # a signal wakes it up
        ctypes.PyDLL(None).sleep(3600)


BLOCKS = {"sleep": lambda: time.sleep(3600), "spin": spin, "c": hold_the_interpreter}
CRASHES = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def answer(text):
    return [{"role": "assistant", "content": str(text)}]


class Rude(AgentWorkflow):
    """Does what the metadata says, else answers with its process after `sec` seconds."""

    async def run(self, ctx):
        told = ctx.metadata or {}
        await asyncio.sleep(told.get("sec", 0))
        if "block" in told:
            BLOCKS[told["block"]]()
        if "crash" in told:
            CRASHES[told["crash"]]()
        return answer(os.getpid())


class Crowded(AgentWorkflow):
    """Waits for `together` of its kind in this process, for a moment, and then does as told."""

    here = 0

    async def run(self, ctx):
        Crowded.here += 1
        for _ in range(40):
            if Crowded.here >= ctx.metadata["together"]:
                break
            await asyncio.sleep(0.01)
        if "crash" in ctx.metadata:
            CRASHES[ctx.metadata["crash"]]()
        if "block" in ctx.metadata:
            BLOCKS[ctx.metadata["block"]]()
        await asyncio.sleep(0.2)
        return answer(os.getpid())


class Undying(AgentWorkflow):
    """Swallows every cancellation when told to; else answers with its process."""

    async def run(self, ctx):
        while ctx.metadata:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
        await asyncio.sleep(0.3)
        return answer(os.getpid())


class Leaves(AgentWorkflow):
    """Leaves a child process and a task that exits behind, and answers with the child."""

    async def run(self, ctx):
        child = subprocess.Popen(["sleep", "3600"])
        Leaves.task = asyncio.ensure_future(leave())
        await asyncio.sleep(0.05)
        return answer(child.pid)


async def leave():
    sys.exit(4)


class Prints(AgentWorkflow):
    """Prints in its own name, in turns with the others."""

    async def run(self, ctx):
        context = get_rollout_context()
        name = context.rollout_id
        for turn in range(3):
            print(f"{name} {turn}")
            print(f"{name} err", file=sys.stderr)
            await asyncio.sleep(0.01)
        print(context.api_key)
        sys.stdout.buffer.write(b"bytes\n")
        await asyncio.to_thread(print, f"{name} thread")
        threading.Thread(target=print, args=["stray"]).start()
        subprocess.run(["echo", "child"], check=True)
        return answer("")


class Stuck(SampleSource):
    def __init__(self, field):
        self.field = field

    async def get_sample(self, sample_id):
        held = {"messages": [{"role": "user", "lock": threading.Lock()}]}
        if self.field != "messages":
            held = {self.field: {"lock": threading.Lock()}}
        return RolloutSample(id=sample_id, **held)


class HoldsLock(AgentWorkflow):
    async def run(self, ctx):
        get_rollout_context().register_sample_source("holder", Stuck(ctx.metadata["field"]))


class Raises(AgentWorkflow):
    """Raises what neither pickles nor prints."""

    async def run(self, ctx):
        class LocalError(Exception):
            def __init__(self, lock):
                super().__init__("held")
                self.lock = lock

        kinds = {"lock": lambda: LocalError(threading.Lock()), "ctrl-c": KeyboardInterrupt}
        kinds |= {"closed": GeneratorExit, "cancelled": asyncio.CancelledError}
        raise kinds[ctx.metadata["error"]]()


HOARD = []


class Hoards(AgentWorkflow):
    async def run(self, ctx):
        HOARD.append(bytearray(ctx.metadata["mb"] * 2**20))
        return answer(os.getpid())


class UsesClient(AgentWorkflow):
    async def run(self, ctx):
        return answer(type(ctx.config.client).__name__)


CONFIG_WITH_LOCK = AgentWorkflowConfig(name="w", client=threading.Lock())


class BlocksGrading(Grader):
    async def grade(self, ctx):
        BLOCKS["sleep"]()


class TellsItsProcess(AgentWorkflow):
    """Writes down where it is and blocks."""

    async def run(self, ctx):
        with open(os.environ["PIDS"], "a") as file:  # noqa: PTH123
            print(os.getpid(), file=file)
        await asyncio.sleep(0.1)
        BLOCKS["sleep"]()
