"""Nothing is left behind, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from osmosis_core.backend import ExecutionBackend
from osmosis_core.plugins import get_plugins
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    in_flight,
    request,
    run,
    until,
)


class Leftovers(BackendSuite):
    """Nothing is left behind, and nothing grows."""

    async def test_no_task_is_left_behind(self) -> None:
        """After a success, a timeout, a cancel and a shutdown, every task has ended.

        If this fails, await or cancel the tasks that the backend creates.
        """
        before = asyncio.all_tasks()
        await self._run_every_way()
        await until(lambda: asyncio.all_tasks() <= before)

    async def test_no_process_is_left_behind(self) -> None:
        """Nor anything else that `leftovers` knows.

        If this fails, end and reap in `shutdown` what the backend has started.
        """
        before = self.leftovers()
        await self._run_every_way()
        await until(lambda: self.leftovers() <= before)

    async def test_no_file_handle_is_left_behind(self) -> None:
        """Sockets and pipes are closed when the backend is shut down.

        If this fails, close in `shutdown` what the backend has opened.
        """
        with _unobserved():
            await self._run_every_way()  # what is opened once and for all
            before = _open_files()
            await self._run_every_way()
            await until(lambda: _open_files() <= before)

    async def _run_every_way(self) -> None:
        hang = {"hang": True}
        async with self.opened(programs.HangsIfTold, programs.Rewards) as backend:
            await run(backend, request())
            await run(backend, request(agent_timeout_sec=0.05, metadata=hang))
            async with in_flight(backend, request(metadata=hang)):
                await backend.cancel_rollouts(all=True)

    async def test_many_executions_do_not_grow(self) -> None:
        """Rollouts that are over take no memory, task, thread or file; `many` says how many.

        If this fails, forget a rollout when `execute` ends.
        """
        with _unobserved():
            async with self.opened(programs.Answers, programs.Rewards) as backend:
                await self._execute(backend, min(self.many, 100))
                before = _footprint()
                await self._execute(backend, self.many)
                after = _footprint()
        grown = {name: after[name] - before[name] for name in before}
        assert grown.pop("objects") <= max(self.many, 500), grown
        assert all(growth <= 0 for growth in grown.values()), grown

    async def _execute(self, backend: ExecutionBackend, count: int) -> None:
        for start in range(0, count, self.crowd):
            names = [f"r-{n}" for n in range(start, min(start + self.crowd, count))]
            await asyncio.gather(*(run(backend, request(name)) for name in names))


@contextmanager
def _unobserved() -> Generator[None]:
    """Without the plugins of this process, which may hold files and threads of their own."""
    plugins = get_plugins()
    was, plugins.is_silent = plugins.is_silent, True
    try:
        yield
    finally:
        plugins.is_silent = was


def _footprint() -> dict[str, int]:
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": _open_files(),
    }


def _open_files() -> int:
    """Of this process, where the system tells; else 0."""
    handles = Path("/proc/self/fd")
    return len(list(handles.iterdir())) if handles.exists() else 0
