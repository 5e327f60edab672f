"""What the loop watch costs: loads with and without it, in turns in one process: `make bench`."""

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from osmosis_core import ExecutionRequest, LocalBackend, plugins

PAIRS = 10
SIDES = {True: "call-log", False: "call-log,loop-watch"}
"""Whether the loop is watched, and which plugins are switched off then."""

ENDING_SEC = 1.0
"""The watching thread has ended by then."""

Load = Callable[[], Awaitable[object]]


async def cpu_ms(load: Load, watched: bool) -> float:
    plugins._plugins = plugins.PluginManager(disabled=SIDES[watched])
    gc.collect()
    gc.disable()  # a full collection more or less would be 3 %
    began = time.process_time()
    await load()
    taken = time.process_time() - began
    gc.enable()
    await asyncio.sleep(ENDING_SEC)
    return 1000 * taken


async def side_by_side(title: str, load: Load, pairs: int = PAIRS) -> None:
    """Median CPU of each side, and of the differences within pairs, with their quartiles."""
    await load()
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        for watched in (True, False) if number % 2 else (False, True):
            taken[watched].append(await cpu_ms(load, watched))
    watched, bare = statistics.median(taken[True]), statistics.median(taken[False])
    more = [w - b for w, b in zip(taken[True], taken[False], strict=True)]
    low, middle, high = statistics.quantiles(more, n=4)
    cells = f"{watched:,.0f} ms | {bare:,.0f} ms | {middle:+.0f} ms ({low:+.0f} to {high:+.0f})"
    print(f"| {title} | {cells} | {100 * middle / bare:+.1f} % |", flush=True)


async def compare(root: str) -> None:
    sys.argv[1:] = ["rollouts", root]  # what transport_load reads
    import kernel_load
    import transport_load

    rollouts, _ = transport_load.rollouts()
    noop = LocalBackend(workflow=kernel_load.NoOp, workflow_config=kernel_load.CONFIG)

    async def one(number: int) -> None:
        request = ExecutionRequest(id=f"r{number}", prompt=kernel_load.PROMPT)
        await noop.execute(request, kernel_load.ignore)

    async def noops() -> None:
        await asyncio.gather(*(one(number) for number in range(10_000)))

    async def waits() -> None:
        waiting = LocalBackend(workflow=kernel_load.Waits, workflow_config=kernel_load.CONFIG)
        kernel_load.gate.clear()
        asyncio.get_running_loop().call_later(4, kernel_load.gate.set)
        await waiting.execute(ExecutionRequest(id="r", prompt=[]), kernel_load.ignore)

    print("| load, CPU | watched | not watched | difference (quartiles) | |")
    print("|---|---|---|---|---|")
    await side_by_side("64 Strands rollouts x 5 calls x 200 streamed tokens", rollouts)
    await side_by_side("10,000 no-op rollouts through LocalBackend", noops)
    await side_by_side("one rollout that waits for 4 s", waits, pairs=4)


def main() -> None:
    from transport import stub

    with tempfile.TemporaryDirectory() as home, stub() as root:
        os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = home
        asyncio.run(compare(root))


if __name__ == "__main__":
    main()
