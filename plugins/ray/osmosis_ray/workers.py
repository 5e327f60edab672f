"""The workers of one backend: requested, waited for, handed out to the least loaded, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayActorError

from osmosis_core import BackendError
from osmosis_core.errors import describe, one_line
from osmosis_ray.actor import Started
from osmosis_ray.cluster import misfit
from osmosis_ray.untyped import ray

type Shape = tuple[tuple[str, float], ...]
"""What a worker reserves on its node, as sorted items."""

_LOST_STARTS = 3
"""How often in a row workers are requested again when all were lost before they were there."""


class Worker:
    """One actor, as the host sees it."""

    def __init__(self, actor: Any, shape: Shape) -> None:
        self.actor = actor
        self.shape = shape
        self.running = 0
        self.is_stuck = False
        self.started: Future[Started] = actor.start.remote().future()

    @property
    def is_starting(self) -> bool:
        """Requested, and not there yet."""
        return not self.started.done()

    @property
    def problem(self) -> str | None:
        """Why it did not start; None while it is starting, and when it is there."""
        if self.is_starting:
            return None
        if error := self.started.exception():
            return f"a Ray worker did not start: {reason(error)}"
        found = self.started.result()
        return found.problem and f"a Ray worker ({found.where}) did not start: {found.problem}"

    @property
    def is_lost(self) -> bool:
        """Its process or node went away before it was there."""
        return not self.is_starting and isinstance(self.started.exception(), RayActorError)

    @property
    def where(self) -> str:
        """Host and process, for people."""
        return self.started.result().where

    def kill(self) -> None:
        """End its process; what runs there is lost."""
        with contextlib.suppress(Exception):  # Ray raises anything when the cluster is gone
            ray.kill(self.actor)


class Workers:
    """Up to `size` workers for each set of resources that is asked for.

    Args:
        create: makes the actor of a worker with these resources.
        size: workers of each kind.
        per_worker: rollouts at once in each.
        placement_sec: how long to wait for a node that could host a worker.
    """

    def __init__(
        self, create: Callable[[Shape], Any], size: int, per_worker: int, placement_sec: float
    ) -> None:
        self._create = create
        self._size = size
        self.per_worker = per_worker
        self._placement_sec = placement_sec
        self._all: list[Worker] = []
        self._alone = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failure: str | None = None
        self._may_refill = False
        self._lost_starts = 0

    @property
    def waiting(self) -> int:
        """Rollouts that wait for a worker."""
        return len(self._waiting)

    def counts(self) -> dict[str, int]:
        """How many there are, and how many were requested and are not there yet."""
        starting = sum(worker.is_starting for worker in self._all)
        return {"ready": len(self._all) - starting, "starting": starting}

    async def acquire(self, shape: Shape, *, alone: bool = False) -> Worker:
        """A slot in the least loaded worker, or `alone` all of them; release it in the same way.

        Raises:
            BackendError: no node could host a worker, or those that were requested did not start.
        """
        self._fill(shape)
        self._alone += alone
        patience = time.monotonic() + self._placement_sec
        try:
            while (worker := self._free(shape, alone=alone)) is None:
                self._check_hope(shape)
                if time.monotonic() >= patience:
                    self._check_fits(shape)
                    patience = time.monotonic() + self._placement_sec
                await self._change(patience - time.monotonic())
        finally:
            self._alone -= alone
        worker.running += self.per_worker if alone else 1
        self._lost_starts = 0
        return worker

    def release(self, worker: Worker, *, alone: bool = False) -> None:
        """Give a slot back."""
        worker.running -= self.per_worker if alone else 1
        self._wake(None if self._alone or alone else 1)

    def discard(self, worker: Worker) -> None:
        """Kill a worker; another one takes its place when there is work for it."""
        worker.kill()
        if worker in self._all:
            self._all.remove(worker)
            if self._waiting:
                self._fill(worker.shape)

    async def close(self, grace_sec: float) -> None:
        """Wait for what is ending, then kill all workers."""
        until = time.monotonic() + grace_sec
        while any(worker.running for worker in self._all) and time.monotonic() < until:
            await self._change(until - time.monotonic())
        self._failure, ended = "the backend was shut down", self._all
        self._all, self._size = [], 0
        there = [w for w in ended if not w.is_starting and w.problem is None]
        closing = [asyncio.wrap_future(w.actor.close.remote().future()) for w in there]
        if closing:
            await asyncio.wait(closing, timeout=grace_sec)
        for worker in ended:
            worker.kill()
        self._wake(None)

    def _free(self, shape: Shape, *, alone: bool) -> Worker | None:
        """While a rollout waits to be alone, the least loaded worker is left to become empty."""
        self._drop_failed()
        ready = [w for w in self._all if w.shape == shape and not w.is_starting]
        ready.sort(key=lambda worker: worker.running)
        most = 0 if alone else self.per_worker - 1
        left = ready if alone or not self._alone else ready[1:]
        return left[0] if left and left[0].running <= most else None

    def _drop_failed(self) -> None:
        for worker in [worker for worker in self._all if worker.problem]:
            self._failure, self._may_refill = worker.problem, worker.is_lost
            worker.kill()
            self._all.remove(worker)

    def _fill(self, shape: Shape) -> None:
        there = sum(worker.shape == shape for worker in self._all)
        loop = asyncio.get_running_loop()
        for _ in range(self._size - there):
            worker = Worker(self._create(shape), shape)
            self._all.append(worker)
            worker.started.add_done_callback(lambda _: self._tell(loop))

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed; the next acquire looks
            loop.call_soon_threadsafe(self._wake, None)

    def _wake(self, count: int | None) -> None:
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self, timeout_sec: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_sec):
                await waiter
        except TimeoutError:
            pass
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _check_hope(self, shape: Shape) -> None:
        if any(worker.shape == shape for worker in self._all):
            return
        if self._may_refill and self._lost_starts < _LOST_STARTS:
            self._lost_starts += 1
            self._fill(shape)
        if not any(worker.shape == shape for worker in self._all):
            raise BackendError(self._failure or "all Ray workers were lost")

    def _check_fits(self, shape: Shape) -> None:
        is_there = any(not worker.is_starting for worker in self._all if worker.shape == shape)
        if not is_there and (why := misfit(dict(shape))):
            raise BackendError(f"after {self._placement_sec:g} s {why}")


def reason(error: BaseException) -> str:
    """Why Ray lost or refused something, on one line."""
    cause = getattr(error, "cause", None)
    text = describe(cause if isinstance(cause, BaseException) else error)
    return one_line(text.strip().splitlines()[-1] if "\n" in text else text, 300)


def shape_of(resources: Mapping[str, float]) -> Shape:
    """Resources as a value to compare."""
    return tuple(sorted((name, float(amount)) for name, amount in resources.items()))
