"""Clusters of several nodes on one machine; nodes and workers come and go while rollouts run."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from osmosis_core import AgentWorkflow, Grader
from osmosis_core.testing.backend_conformance.kit import request, run, said, until
from osmosis_ray import RayBackend

ROOT = Path(__file__).parents[3]
OSMOSIS = Path(sys.executable).with_name("osmosis")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class SaysWhere(AgentWorkflow):
    """Naps for the seconds that `metadata` says, then says which process it is in."""

    async def run(self, ctx):
        await asyncio.sleep(ctx.metadata["sec"])
        return [{"role": "assistant", "content": str(os.getpid())}]


class IsFine(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)


class WaitsForOthers(AgentWorkflow):
    """With `metadata` ends when as many as that says are in this process at once."""

    here = 0
    all_here = asyncio.Event()

    async def run(self, ctx):
        if ctx.metadata:
            WaitsForOthers.here += 1
            if WaitsForOthers.here == ctx.metadata["crowd"]:
                self.all_here.set()
            await self.all_here.wait()
        return [{"role": "assistant", "content": str(os.getpid())}]


def backend(workflow=SaysWhere, **options):
    given = {"max_concurrent_per_worker": 16, "max_restarts": 10, "grace_sec": 1.0, **options}
    return RayBackend(workflow=workflow, grader=IsFine, **given)


def rollouts(one, count, prefix="r"):
    naps = random.Random(count)
    return [
        asyncio.create_task(
            run(one, request(f"{prefix}-{number}", metadata={"sec": naps.uniform(0.2, 1.0)}))
        )
        for number in range(count)
    ]


async def check_each_once(tasks):
    """Every rollout reported its workflow and its grading once, with a reward."""
    for reported in await asyncio.gather(*tasks):
        statuses = [result.status for result in reported.results]
        assert statuses == ["success", "success"], reported.workflow.err_message
        assert reported.grader.sample.reward == 1.0
        yield reported


def workers_of(node):
    raylet = node.all_processes["raylet"][0].process.pid
    return Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()


async def test_killed_node_loses_and_doubles_nothing(nodes):
    """A machine that dies takes its workers with it; alone, they would go on for seconds."""
    first, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)
    one = backend(num_workers=2)
    await run(one, request("first", metadata={"sec": 0}))
    await until(lambda: one.health()["workers"]["ready"] == 2, 120)
    tasks = rollouts(one, 400)
    await until(lambda: any(task.done() for task in tasks), 120)
    workers = workers_of(first)
    nodes.remove_node(first, allow_graceful=False)
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(int(worker), signal.SIGKILL)
    nodes.add_node(num_cpus=1)
    done = [reported async for reported in check_each_once(tasks)]
    await one.shutdown()
    places = Counter(said(reported.workflow) for reported in done)
    assert len(done) == 400 and len(places) >= 2
    assert any("restarts" in reported.workflow.extra_fields for reported in done)


async def test_killed_workers_lose_and_double_nothing(nodes):
    nodes.add_node(num_cpus=2)
    one = backend(num_workers=2)
    tasks = rollouts(one, 100)
    for _ in range(3):
        ended = sum(task.done() for task in tasks)
        await until(lambda ended=ended: sum(task.done() for task in tasks) > ended + 5, 120)
        alive = [task for task in tasks if task.done()]
        with suppress(ProcessLookupError):
            os.kill(int(said(alive[-1].result().workflow)), signal.SIGKILL)
    done = [reported async for reported in check_each_once(tasks)]
    await one.shutdown()
    assert len(done) == 100
    assert any("restarts" in reported.workflow.extra_fields for reported in done)


async def test_worker_that_is_lost_while_it_starts_is_requested_again(nodes, monkeypatch):
    nodes.add_node(num_cpus=1)
    create, lost = RayBackend._create_actor, []

    def loses_two(self, shape):
        actor = create(self, shape)
        if len(lost) < 2:
            lost.append(ray.kill(actor))
        return actor

    monkeypatch.setattr(RayBackend, "_create_actor", loses_two)
    one = backend(num_workers=1)
    (reported,) = [reported async for reported in check_each_once(rollouts(one, 1))]
    await one.shutdown()
    assert len(lost) == 2 and "restarts" not in reported.workflow.extra_fields


async def test_rollouts_wait_for_a_node_that_comes_later(nodes):
    one = backend(num_workers=1)
    tasks = rollouts(one, 3)
    late = await run(one, request("late", agent_timeout_sec=0.5, metadata={"sec": 0}))
    assert "0.5s deadline" in late.workflow.err_message
    assert "no Ray worker was free" in late.workflow.err_message
    nodes.add_node(num_cpus=1)
    assert len([reported async for reported in check_each_once(tasks)]) == 3
    await one.shutdown()


async def test_two_thousand_rollouts_at_once_in_four_workers(nodes):
    """All of them are there at the same time: each waits for the other 499 of its worker."""
    nodes.add_node(num_cpus=4)
    one = backend(WaitsForOthers, num_workers=4, max_concurrent_per_worker=500)
    await run(one, request("first"))
    await until(lambda: not one.health()["workers"]["starting"], 120)
    requests = [request(f"r-{number}", metadata={"crowd": 500}) for number in range(2000)]
    tasks = [asyncio.create_task(run(one, each)) for each in requests]
    done = [reported async for reported in check_each_once(tasks)]
    await one.shutdown()
    places = Counter(said(reported.workflow) for reported in done)
    assert sorted(places.values()) == [500] * 4


async def test_eval_on_a_cluster_gives_the_rewards_of_eval_here(nodes, tmp_path):
    nodes.add_node(num_cpus=1)
    place = ["--backend", "ray", "--ray-address", nodes.address, "--ray-num-workers", "1"]
    there, here = await rewards_of_example(tmp_path, *place), await rewards_of_example(tmp_path)
    assert there == here and there["graded"] == 8


async def rewards_of_example(folder, *place):
    """Rewards that `osmosis eval run` counts for the Strands example."""
    example = ROOT / "examples/strands_math"
    command = [OSMOSIS, "eval", "run", example / "workflow.py", "--dataset", example / "rows.jsonl"]
    options = ["--policy", "demo", "--limit", "8", "--json", "--quiet", "--output"]
    output = folder / f"out-{len(place)}"
    process = await asyncio.create_subprocess_exec(
        *command, *options, output, *place, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == 0, err.decode()
    return json.loads(out)["rewards"]
