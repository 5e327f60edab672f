"""The workers of one backend: as many as there are work for, up to a number."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from osmosis_process.handle import Worker
from osmosis_process.program import Parcel

_serial = count(1)


@dataclass(slots=True)
class Pool:
    """Workers of one event loop at a time; those of a loop before it are killed."""

    parcel: Parcel
    logs: Path
    size: int
    grace_sec: float
    max_rollouts: int | None = None
    max_memory_mb: float | None = None
    workers: list[Worker] = field(default_factory=list[Worker])
    """All that have not ended, also those that take no more."""
    _loop: asyncio.AbstractEventLoop | None = None

    def pick(self) -> Worker:
        """The worker with the least to do, a new one while all are busy and there is room."""
        known = self._known()
        active = [w for w in known if w.is_active and not self._has_run_enough(w)]
        idlest = min(active, key=lambda worker: len(worker.phases), default=None)
        if idlest is None or (idlest.phases and len(active) < self.size):
            return self.start()
        return idlest

    def start(self) -> Worker:
        """A new worker."""
        log = self.logs / f"{os.getpid()}-{next(_serial)}.log"
        worker = Worker(self.parcel, log, self.grace_sec)
        self._known().append(worker)
        return worker

    def recycle(self, worker: Worker) -> None:
        """Let a worker that has run enough, or holds too much memory, end."""
        is_large = self.max_memory_mb is not None and worker.memory_mb > self.max_memory_mb
        if is_large or self._has_run_enough(worker):
            worker.retire()

    def _has_run_enough(self, worker: Worker) -> bool:
        return self.max_rollouts is not None and worker.workflows >= self.max_rollouts

    async def close(self) -> None:
        """End all workers and wait for them."""
        await asyncio.gather(*(worker.close() for worker in self._known()))
        self.workers.clear()

    def kill(self) -> None:
        """End all workers now, from anywhere."""
        for worker in self.workers:
            worker.kill()

    def _known(self) -> list[Worker]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.kill()
            self.workers, self._loop = [], loop
        self.workers[:] = [worker for worker in self.workers if not worker.is_over]
        return self.workers
