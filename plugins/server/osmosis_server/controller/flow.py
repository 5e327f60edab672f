"""Many requests through few slots: results as they come, requests as slots get free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable

from osmosis_core import ExecutionRequest, ExecutionResult

type Requests = Iterable[ExecutionRequest] | AsyncIterable[ExecutionRequest]
type Run = Callable[[ExecutionRequest], Awaitable[ExecutionResult]]
type _Ended = tuple[ExecutionRequest, asyncio.Task[ExecutionResult]]


async def flow(
    requests: Requests, slots: int, run: Run
) -> AsyncGenerator[tuple[ExecutionRequest, ExecutionResult]]:
    """Run every request, `slots` at once; a slot is free again when its result was taken."""
    ended: asyncio.Queue[_Ended | None] = asyncio.Queue()
    free, running = asyncio.Semaphore(slots), set[asyncio.Task[ExecutionResult]]()

    def start(request: ExecutionRequest) -> None:
        task = asyncio.ensure_future(run(request))
        running.add(task)
        task.add_done_callback(lambda task: ended.put_nowait((request, task)))

    feeder = asyncio.create_task(_feed(requests, free, start))
    feeder.add_done_callback(lambda _: ended.put_nowait(None))
    try:
        while running or not feeder.done():
            pair = await ended.get()
            if pair is None:
                feeder.result()
                continue
            request, task = pair
            running.discard(task)
            yield request, task.result()
            free.release()
    finally:
        for task in (feeder, *running):
            task.cancel()
        await asyncio.gather(feeder, *running, return_exceptions=True)


async def _feed(
    requests: Requests, free: asyncio.Semaphore, start: Callable[[ExecutionRequest], None]
) -> None:
    if isinstance(requests, AsyncIterable):
        await free.acquire()
        async for request in requests:
            start(request)
            await free.acquire()
        return
    await free.acquire()
    for request in requests:
        start(request)
        await free.acquire()
