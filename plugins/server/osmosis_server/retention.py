"""Forgets rollouts whose results need not be kept any longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from osmosis_server.journal import Journal
from osmosis_server.registry import Registry
from osmosis_server.stats import Stats

_EVERY_SEC = 1.0
_PAUSE_SEC = 0.005


class Retention:
    """Purges the journal bit by bit while the server runs.

    Args:
        retention_sec: how long a result is kept after its rollout ended.
        max_bytes: what the journal may use; beyond it the oldest results go sooner.
        kept: numbers of rollouts whose ids are not free yet.
    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        stats: Stats,
        retention_sec: float,
        max_bytes: int,
        kept: Callable[[], Iterable[int]],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._stats = stats
        self._retention_sec = retention_sec
        self._max_bytes = max_bytes
        self._kept = kept
        self._task: asyncio.Task[None] | None = None
        self.is_full = False
        """More is used than may be, and nothing can be forgotten."""

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            before = time.time() - self._retention_sec
            self._registry.forget(before)
            purged = await self._journal.purge(before, self._max_bytes, self._kept())
            self._stats.journal_bytes = purged.used_bytes
            self.is_full = purged.used_bytes > self._max_bytes and not purged.forgotten
            await asyncio.sleep(_PAUSE_SEC if purged.forgotten else _EVERY_SEC)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
