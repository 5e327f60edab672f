"""Names the code that blocks the event loop of running rollouts: all of them wait meanwhile.

A heartbeat on the loop and one thread that listens to it, both only while rollouts run, and not at
all with `OSMOSIS_LOOP_WATCH=0`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

LATE_SEC = 0.05
_BEAT_SEC = 0.025
_IDLE_BEATS = 20
_STDLIB = (os.path.dirname(os.__file__) + os.sep, "<frozen")  # noqa: PTH120 - for startswith()
_logger = logging.getLogger(__name__)
_rollout: ContextVar[str | None] = ContextVar("osmosis_watched_rollout", default=None)
_lock = threading.Lock()
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
_listener: threading.Thread | None = None
_told: set[tuple[str, str]] = set()


@contextmanager
def watched_loop(rollout_id: str) -> Generator[None]:
    """Watch the running loop for this rollout; any number of rollouts share a loop's watch."""
    global _listener
    if os.environ.get("OSMOSIS_LOOP_WATCH") == "0":
        yield
        return
    loop, outer = asyncio.get_running_loop(), _rollout.get()
    with _lock:
        watch = _watches.get(loop) or _watches.setdefault(loop, _Watch(loop))
        watch.users += 1
        if _listener is None or not _listener.is_alive():
            _listener = threading.Thread(target=_listen, name="osmosis-loop-watch", daemon=True)
            _listener.start()
    _rollout.set(rollout_id)
    try:
        yield
    finally:
        _rollout.set(outer)
        with _lock:
            watch.users -= 1
            if not watch.users:
                watch.timer.cancel()
                _watches.pop(loop, None)


def _listen() -> None:
    """The thread's work; it ends soon after the last rollout, not with it: the next may follow."""
    global _listener
    idle = 0
    while True:
        time.sleep(_BEAT_SEC)
        with _lock:
            watches = list(_watches.values())
            idle = 0 if watches else idle + 1
            if idle > _IDLE_BEATS:
                _listener = None
                return
        for watch in watches:
            watch.look()


class _Watch:
    """The heartbeat of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._loop, self._thread = loop, threading.get_ident()
        self._beat()

    def _beat(self) -> None:
        self._suspect: asyncio.Task[object] | None = None
        self._due_at = time.monotonic() + _BEAT_SEC
        self.timer = self._loop.call_later(_BEAT_SEC, self._beat)

    def look(self) -> None:
        """Report the task that the loop is in if it is late and was in it at the last look."""
        late_sec = time.monotonic() - self._due_at
        task = asyncio.current_task(self._loop) if late_sec > 0 else None
        rollout_id = task.get_context().get(_rollout) if task else None
        if late_sec >= LATE_SEC and task is self._suspect and rollout_id is not None:
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
            _tell(rollout_id, frames.get(self._thread))
        self._suspect = task


def _tell(rollout_id: str, frame: FrameType | None) -> None:
    """Warn about the innermost frame outside of the standard library, once."""
    while frame is not None and _is_stdlib(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or (frame.f_code.co_filename, frame.f_code.co_qualname) in _told:
        return
    file, name = place = (frame.f_code.co_filename, frame.f_code.co_qualname)
    _told.add(place)
    plugin = str(frame.f_globals.get("__name__", "?")).partition(".")[0]
    late = f"more than {LATE_SEC * 1000:.0f} ms"
    what = "rollout %r blocks the event loop, and every rollout on it, for %s: %s, in %s at %s:%d"
    how = "; await it, or use asyncio.to_thread()"
    _logger.warning(what + how, rollout_id, late, plugin, name, file, frame.f_lineno)


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "site-packages" not in file
