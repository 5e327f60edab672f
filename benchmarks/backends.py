"""What a place to run costs: every installed backend beside LocalBackend: `make bench`.

`python benchmarks/backends.py [NAME...]` measures some of them only.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import backend_loads

from osmosis_core import ExecutionRequest, OsmosisError, RolloutStatus
from osmosis_core.plugins import get_plugins

PROMPT = [{"role": "user", "content": "?"}]
REPEATS = 3


@dataclass
class Setup:
    """How a backend is measured."""

    options: dict[str, Any] = field(default_factory=dict)
    rollouts: int = 1000
    """No-op rollouts in a row, and as many again with `at_once` in flight."""
    at_once: int = 64
    computing: int = 40
    """CPU-bound rollouts; 0: not measured."""
    crowd: int = 2000
    """Rollouts that all wait at once; 0: not measured."""
    crowd_options: dict[str, Any] = field(default_factory=dict)


TASK = Path(__file__).parent / "harbor_task"
FEW: dict[str, Any] = {"rollouts": 4, "at_once": 2, "computing": 0, "crowd": 0}
SETUPS = {
    "local": Setup(),
    "process": Setup({"num_workers": 2}, crowd_options={"num_workers": 4}),
    "ray": Setup(
        {"num_workers": 2, "max_concurrent_per_worker": 500, "resources": {"CPU": 0.5}},
        crowd_options={"num_workers": 4},
    ),
    "harbor": Setup({"task_dir": TASK}, **FEW),
    "harbor light": Setup({"task_dir": TASK, "environment": "light"}, **FEW),
}


class Results(list):
    """The last result of every rollout."""

    async def keep(self, result):
        self.append(result)

    async def pass_over(self, result): ...


@asynccontextmanager
async def opened(name, workflow, options):
    with tempfile.TemporaryDirectory() as root:
        backend = get_plugins().backend(name.partition(" ")[0])(
            workflow=workflow,
            workflow_config=backend_loads.UNLIMITED,
            grader=backend_loads.Grades,
            artifacts_root=root,
            **options,
        )
        try:
            yield backend
        finally:
            await backend.shutdown()


async def rolled_out(backend, count, at_once):
    """Seconds that so many graded rollouts take; all must succeed."""
    results, numbers = Results(), iter(range(count))

    async def work():
        for number in numbers:
            request = ExecutionRequest(f"r-{number}", PROMPT, label="")
            await backend.execute(request, results.pass_over, results.keep)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    taken = time.perf_counter() - began
    lost = count - sum(result.status is RolloutStatus.SUCCESS for result in results)
    if lost or len({id(result) for result in results}) != count:
        raise SystemExit(f"{lost} of {count} rollouts lost: {results[-1].err_message}")
    return taken


async def cold_start(name, setup):
    """Seconds from building the backend to the first result."""
    began = time.perf_counter()
    async with opened(name, backend_loads.NoOp, setup.options) as backend:
        await rolled_out(backend, 1, 1)
        return time.perf_counter() - began


async def per_rollout(name, setup):
    """Seconds per rollout once it is warm: one after the other, and many in flight."""
    async with opened(name, backend_loads.NoOp, setup.options) as backend:
        await rolled_out(backend, setup.at_once * 4, setup.at_once)
        alone, beside = [], []
        for _ in range(REPEATS):
            alone.append(await rolled_out(backend, setup.rollouts, 1) / setup.rollouts)
            taken = await rolled_out(backend, setup.rollouts, setup.at_once)
            beside.append(taken / setup.rollouts)
    return statistics.median(alone), statistics.median(beside)


async def computing(name, setup):
    """Seconds that the CPU-bound rollouts take once the backend is warm."""
    async with opened(name, backend_loads.Computes, setup.options) as backend:
        await rolled_out(backend, 8, 8)
        taken = [await rolled_out(backend, setup.computing, 8) for _ in range(REPEATS)]
    return statistics.median(taken)


async def crowd(name, setup):
    """Seconds until the last of many rollouts that wait a second at once has ended."""
    async with opened(name, backend_loads.Waits, setup.options | setup.crowd_options) as backend:
        await rolled_out(backend, 8, 8)
        return await rolled_out(backend, setup.crowd, setup.crowd)


def milliseconds(sec):
    return f"{sec * 1000:,.2f} ms" if sec < 0.1 else f"{sec:,.2f} s"


async def measure(name, setup, local):
    """One row; `local` holds the figures of the first one."""
    start = await cold_start(name, setup)
    alone, beside = await per_rollout(name, setup)
    cpu = await computing(name, setup) if setup.computing else None
    many = await crowd(name, setup) if setup.crowd else None
    local = local or {"alone": alone, "beside": beside, "cpu": cpu}
    cells = [
        milliseconds(start),
        f"{milliseconds(alone)} (+ {milliseconds(alone - local['alone'])})",
        f"{milliseconds(beside)} (+ {milliseconds(beside - local['beside'])})",
        f"{cpu:.2f} s ({local['cpu'] / cpu:.2f} x)" if cpu else "-",
        f"{setup.crowd:,} in {many:.1f} s, none lost" if many else "-",
    ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return local


def main():
    os.environ["OSMOSIS_LOOP_WATCH"] = "0"  # computing on the loop is what is measured
    asked, local = sys.argv[1:], None
    titles = ["backend", "cold start", "rollout in a row", "of 64 in flight", "CPU-bound", "crowd"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name, setup in SETUPS.items():
        if name != "local" and asked and name.partition(" ")[0] not in asked:
            continue
        try:
            local = asyncio.run(measure(name, setup, local))
        except OsmosisError as error:
            print(f"| {name} | {error} |{' |' * (len(titles) - 2)}", flush=True)


if __name__ == "__main__":
    main()
