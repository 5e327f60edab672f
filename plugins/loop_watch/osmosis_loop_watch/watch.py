"""Notes when each step of an event loop begins; a thread looks at those that take too long."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from contextlib import suppress
from threading import get_ident
from time import monotonic, sleep
from types import CodeType, FrameType

from osmosis_core import get_rollout_context
from osmosis_loop_watch.clocks import ThreadCounts, Timer

_BLOCKED_SEC = 0.05
_AGAIN_SEC = 0.005
"""The timer is set so often at most, and a suspect looked at."""
_LATE_SEC = 0.01
_PLACES = 100
_NAMED = 3
_OLDEST = 2
_MONITORING_TOOL = 4
_START_THREAD = threading.Thread.start.__code__
"""Waits until the machine has a processor for the new thread."""
_RUN_STEP = asyncio.Handle._run.__code__  # pyright: ignore[reportPrivateUsage] - no step is without it
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - for startswith()
_WARNING = (
    "event loop blocked for 50 ms or more %s: %s, in %s%s; every rollout of the loop waits: await "
    "it, or run it with asyncio.to_thread()"
)
_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_told: set[tuple[str, str]] = set()
_watches: dict[int, LoopWatch] = {}
"""By the loop's thread."""


def watch_for(key: int, rollout_id: str, task: asyncio.Task[object]) -> None:
    """Watch the loop that runs in this thread for one more rollout, which `task` runs."""
    loop = task.get_loop()
    with _lock:
        watch = _watches.get(get_ident())
        if watch is None or watch.loop is not loop:
            if os.environ.get("OSMOSIS_LOOP_WATCH") == "0":
                return
            _listen(on=True)
            watch = _watches[get_ident()] = LoopWatch(loop)
        watch.rollouts[key] = rollout_id, task
    task.add_done_callback(lambda _: finished(key))  # a cancelled rollout is not reported


def finished(key: int) -> None:
    """Of the loop that runs in this thread; the thread that looks ends soon after the last."""
    watch = _watches.get(get_ident())
    if watch is not None and watch.rollouts.pop(key, None) and not watch.rollouts:
        watch.set_timer(monotonic())


def end_all() -> None:
    """For a forked child: it has neither the threads nor timers of its own, perhaps a held lock."""
    global _lock
    _lock = threading.Lock()
    if _watches:
        _watches.clear()
        _listen(on=False)


def _listen(*, on: bool) -> None:
    event, tool = sys.monitoring.events.PY_START, _MONITORING_TOOL
    if sys.monitoring.get_tool(tool) != __name__:
        sys.monitoring.use_tool_id(tool, __name__)
        sys.monitoring.register_callback(tool, event, _step_begins)
    sys.monitoring.set_local_events(tool, _RUN_STEP, event if on else 0)


def _step_begins(_code: CodeType, _offset: int) -> None:
    watch = _watches.get(get_ident())
    if watch is not None:
        watch.began_at = monotonic()
        if watch.rollouts:
            watch.set_timer(watch.began_at)


class LoopWatch:
    """The steps (callbacks, turns of a task) of the loop that runs in the creating thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rollouts: dict[int, tuple[str, asyncio.Task[object]]] = {}
        self.loop, self._thread = loop, get_ident()
        self._counts, self._timer = ThreadCounts(), Timer(_BLOCKED_SEC)
        self.began_at, self._set_at = monotonic(), 0.0
        self.set_timer(self.began_at)
        threading.Thread(target=self._look_on, name="osmosis-loop-watch", daemon=True).start()

    def set_timer(self, now: float) -> None:
        """Look in 50 ms from `now`, or from 5 ms before; what the thread had run by then."""
        if now - self._set_at > _AGAIN_SEC:
            self._set_at, self._before, self._collects = now, self._counts.now(), False
            self._timer.set()

    def _look_on(self) -> None:
        gc.callbacks.append(self._note_collection)
        due_at = self._timer.wait()
        while not self._is_over():
            with suppress(OSError):  # the loop's thread has ended
                self._look(due_at)
            due_at = self._timer.wait()
        gc.callbacks.remove(self._note_collection)

    def _is_over(self) -> bool:
        with _lock:
            if _watches.get(self._thread) is not self:
                return True
            if self.rollouts and self.loop.is_running():
                return False
            del _watches[self._thread]
            _listen(on=bool(_watches))
            return True

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        """A full collection stops whatever runs, which is not to blame."""
        self._collects = self._collects or info["generation"] == _OLDEST

    def _look(self, due_at: float) -> None:
        """Look at the running step until it ends, or is proven to block."""
        began_at, lost_sec = self.began_at, 0.0
        while True:
            late_sec = monotonic() - due_at
            lost_sec += late_sec if late_sec > _LATE_SEC else 0  # another thread may have run
            stack = self._stack()
            if not stack or began_at != self.began_at or not self.rollouts or self._collects:
                return
            warning = self._warning(stack)
            if self._is_proven(lost_sec):
                return _tell(*warning)
            due_at = monotonic() + _AGAIN_SEC
            sleep(_AGAIN_SEC)

    def _is_proven(self, lost_sec: float) -> bool:
        """The step ran for so long, or slept: it was not the machine that was busy."""
        sec = monotonic() - self.began_at
        ran_sec, delay_sec = (n - b for n, b in zip(self._counts.now(), self._before, strict=True))
        if sec < _BLOCKED_SEC or ran_sec >= _BLOCKED_SEC:
            return sec >= _BLOCKED_SEC
        return sec - delay_sec - lost_sec >= _BLOCKED_SEC and not self._counts.is_runnable()

    def _stack(self) -> list[FrameType]:
        """The running step's frames, innermost first; none when it waits, imports or collects."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
        frame, stack = frames.get(self._thread), list[FrameType]()
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            if frame.f_code in (_START_THREAD, LoopWatch._note_collection.__code__):
                break
            stack.append(frame)
            if frame.f_code is _RUN_STEP:
                return stack
            frame = frame.f_back
        return []

    def _warning(self, stack: list[FrameType]) -> tuple[tuple[str, str], str]:
        """Warn about the innermost frame outside of the standard library, once for each caller."""
        foreign = [f for f in stack if not _is_stdlib(f.f_code.co_filename)] or stack
        own = [f for f in foreign if "-packages" not in f.f_code.co_filename] or foreign
        place = own[0].f_code.co_filename, own[0].f_code.co_qualname
        module = str(foreign[0].f_globals.get("__name__", "?")).partition(".")[0]
        called_by = f", called by {_name(own[0])}" if own[0] is not foreign[0] else ""
        return place, _WARNING % (self._where(), module, _name(foreign[0]), called_by)

    def _where(self) -> str:
        running, task = list(self.rollouts.values()), asyncio.current_task(self.loop)
        ids = [rollout_id for rollout_id, _ in running]
        here = [rollout_id for rollout_id, owner in running if owner is task]
        if task is not None and not here:  # a task that the rollout started
            context = task.get_context().copy().run(get_rollout_context)
            here = [context.rollout_id] if context and context.rollout_id in ids else []
        if here:
            return f"in rollout {here[0]!r}"
        rest = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        return f"beside rollouts {', '.join(map(repr, ids[:_NAMED]))}{rest}"


def _tell(place: tuple[str, str], warning: str) -> None:
    if place not in _told and len(_told) < _PLACES:
        _told.add(place)
        _logger.warning("%s", warning)


def _is_stdlib(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STDLIB) and "-packages" not in file)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} at {code.co_filename}:{frame.f_lineno}"
