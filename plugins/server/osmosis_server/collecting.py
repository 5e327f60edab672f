"""Garbage collections that stay short while thousands of rollouts wait in one process."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Self

_LONG_SEC = 0.02
_THAW_SEC = 600.0
_LOOK_SEC = 1.0


class ShortCollections:
    """Freezes what a long full collection has looked at, so that the next one need not.

    Reference counts free frozen objects as ever; rings among them are found when everything is
    looked at again: when nothing runs, or after `thaw_sec` at the latest.

    Args:
        is_idle: whether a long collection holds up nobody.
        long_sec: what is long.
    """

    def __init__(
        self, is_idle: Callable[[], bool], long_sec: float = _LONG_SEC, thaw_sec: float = _THAW_SEC
    ) -> None:
        self._is_idle = is_idle
        self._long_sec = long_sec
        self._thaw_sec = thaw_sec
        self._began = 0.0
        self._frozen_at: float | None = None

    def __enter__(self) -> Self:
        gc.freeze()  # what was imported need not be searched at each collection
        gc.callbacks.append(self._watch)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._watch)

    def _watch(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._began = now
        elif info["generation"] == 2 and now - self._began >= self._long_sec:
            gc.freeze()
            self._frozen_at = self._frozen_at or now

    async def keep(self) -> None:
        """Look at everything again from time to time, for as long as the server runs."""
        while True:
            await asyncio.sleep(_LOOK_SEC)
            self.thaw_when_due()

    def thaw_when_due(self) -> None:
        """Collect what was frozen too, if now is the moment."""
        now, frozen_at = time.monotonic(), self._frozen_at
        if frozen_at is None or not (self._is_idle() or now >= frozen_at + self._thaw_sec):
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._frozen_at = None if self._is_idle() else now
