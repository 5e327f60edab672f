"""One load, in whichever interpreter runs it: ours or the peer's. Prints one JSON object."""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

try:
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
except ImportError:
    from osmosis_ai.rollout import (
        AgentWorkflow,
        AgentWorkflowConfig,
        ExecutionRequest,
        Grader,
        LocalBackend,
        RolloutSample,
        get_rollout_context,
    )
    from osmosis_ai.rollout.context import SampleSource

PROMPT = [{"role": "user", "content": "What is 6 * 7?"}]
CONFIG = AgentWorkflowConfig(name="bench")
gate = asyncio.Event()


class Said(SampleSource):
    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[*PROMPT, {"role": "assistant", "content": "42"}])


class NoOp(AgentWorkflow):
    async def run(self, ctx):
        pass


class OneSample(AgentWorkflow):
    async def run(self, ctx):
        get_rollout_context().register_sample_source("agent", Said())


class Waits(AgentWorkflow):
    async def run(self, ctx):
        await gate.wait()


class Gives(Grader):
    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


async def ignore(result):
    assert str(result.status).endswith("success"), result


async def throughput(workflow, count):
    backend = LocalBackend(workflow=workflow, workflow_config=CONFIG, grader=Gives)
    graded = None if workflow is NoOp else ignore

    async def one(number):
        request = ExecutionRequest(id=f"r{number}", prompt=PROMPT, label="42")
        await backend.execute(request, ignore, graded)

    await asyncio.gather(*(one(f"warm{i}") for i in range(100)))
    began = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(count)))
    return {"per_sec": count / (time.perf_counter() - began)}


async def memory(count):
    backend = LocalBackend(workflow=Waits, workflow_config=CONFIG)

    async def one(number):
        await backend.execute(ExecutionRequest(id=f"r{number}", prompt=PROMPT), ignore)

    warm = [asyncio.ensure_future(one(f"warm{i}")) for i in range(100)]
    await asyncio.sleep(0.1)
    before = resident()
    tasks = [asyncio.ensure_future(one(i)) for i in range(count)]
    while backend.health()["concurrency"]["running"] < count + 100:
        await asyncio.sleep(0.05)
    used = resident() - before
    gate.set()
    await asyncio.gather(*tasks, *warm)
    return {"bytes_each": used / count}


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


LOADS = {
    "noop": lambda: throughput(NoOp, 5000),
    "graded": lambda: throughput(OneSample, 5000),
    "memory": lambda: memory(10_000),
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(LOADS[sys.argv[1]]())))
