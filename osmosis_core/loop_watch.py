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
_LOOK_SEC = 0.01
_LOOKS = 3
_STARVED_SEC = 0.03
_IDLE_LOOKS = 50
_STDLIB = (os.path.dirname(os.__file__) + os.sep, "<frozen")  # noqa: PTH120 - for startswith()
_logger = logging.getLogger(__name__)
_WARNING = (
    "rollout %r blocks the event loop, and every rollout on it, for more than 50 ms: %s, in %s at "
    "%s:%d; await it, or use asyncio.to_thread()"
)
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
        time.sleep(_LOOK_SEC)
        with _lock:
            watches = list(_watches.values())
            idle = 0 if watches else idle + 1
            if idle > _IDLE_LOOKS:
                _listener = None
                return
        for watch in watches:
            watch.look()


class _Watch:
    """The heartbeat of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._loop, self._thread = loop, threading.get_ident()
        self._looked_at, self._looks = 0.0, 0
        self._beat()

    def _beat(self) -> None:
        self._suspect: asyncio.Task[object] | None = None
        self._due_at = time.monotonic() + _BEAT_SEC
        self.timer = self._loop.call_later(_BEAT_SEC, self._beat)

    def look(self) -> None:
        """Report the task that a late loop is in, seen there several times in a row.

        A look that is late itself does not count: the machine is starved then, not the loop.
        """
        now = time.monotonic()
        late_sec, gap_sec = now - self._due_at, now - self._looked_at
        self._looked_at = now
        task = asyncio.current_task(self._loop) if late_sec > 0 else None
        is_same = task is not None and task is self._suspect and gap_sec <= _STARVED_SEC
        self._suspect, self._looks = task, self._looks + 1 if is_same else 1
        if task is None or self._looks < _LOOKS or late_sec < LATE_SEC:
            return
        rollout_id = task.get_context().get(_rollout)
        if rollout_id is not None:
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
            _tell(rollout_id, frames.get(self._thread))


def _tell(rollout_id: str, frame: FrameType | None) -> None:
    """Warn about the innermost frame outside of the standard library, once; imports pass."""
    while frame is not None and _is_stdlib(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return
        frame = frame.f_back
    if frame is None or frame.f_code.co_name == "<module>":
        return
    file, name = place = (frame.f_code.co_filename, frame.f_code.co_qualname)
    if place not in _told:
        _told.add(place)
        plugin = str(frame.f_globals.get("__name__", "?")).partition(".")[0]
        _logger.warning(_WARNING, rollout_id, plugin, name, file, frame.f_lineno)


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "site-packages" not in file
