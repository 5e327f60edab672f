"""Notices a loop that is late, and tells a step that blocks it from a machine that is busy."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import sys
import threading
import time
from types import FrameType

from osmosis_core import get_rollout_context
from osmosis_loop_watch.clocks import ThreadCounts, Timer

_BEAT_SEC = 0.01
_LATE_SEC = 0.02
"""Since the last beat, a block has lasted for 10 ms less at most."""
_LOOK_SEC = 0.0205
_AGAIN_SEC = 0.0055
_BLOCKED_SEC = 0.0305
"""Seen for so long, after the loop was late, a step is reported."""
_IDLE_BEATS = 100
_PLACES = 100
_NAMED = 3
_OLDEST = 2
_RUN_STEP = asyncio.Handle._run.__code__  # pyright: ignore[reportPrivateUsage] - no step is without it
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - for startswith()
_WARNING = (
    "event loop blocked for 50 ms or more %s: %s, in %s%s; every rollout of the loop waits: await "
    "it, or run it with asyncio.to_thread()"
)
_logger = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()
watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}


class LoopWatch:
    """Beats on the loop that runs in the creating thread; a thread of its own sees it late."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rollouts: dict[int, tuple[str, asyncio.Task[object]]] = {}
        self._loop, self._thread, self._counts = loop, threading.get_ident(), ThreadCounts()
        self._timer = Timer(_LATE_SEC, _LOOK_SEC)
        self._seen = self._counts.now()
        self._step: FrameType | None = None
        self._blocked_sec = self._ran_sec = 0.0
        self._is_over = self._collects = False
        self._idle_beats = 0
        self._beat()
        watches[loop] = self
        gc.callbacks.append(self._note_collection)
        threading.Thread(target=self._look_on, name="osmosis-loop-watch", daemon=True).start()

    def end(self) -> None:
        """The thread sees it when the timer expires, for the last time."""
        self._is_over = True
        del watches[self._loop]
        gc.callbacks.remove(self._note_collection)

    def _beat(self) -> None:
        self._idle_beats = self._idle_beats + 1 if self._is_idle() else 0
        if self._idle_beats > _IDLE_BEATS and not self._is_over:
            self.end()
        if not self._is_over:
            self._heard = self._counts.now()
            self._timer.put_off()
            self._loop.call_later(_BEAT_SEC, self._beat)

    def _is_idle(self) -> bool:
        """No rollout runs. One that was cancelled is never reported as finished: ask its task."""
        while self.rollouts:
            key, (_, task) = next(iter(self.rollouts.items()))
            if not task.done():
                return False
            del self.rollouts[key]
        return True

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        """A full collection stops whatever runs, which is not to blame."""
        self._collects = self._collects or info["generation"] == _OLDEST

    def _look_on(self) -> None:
        own = ThreadCounts()
        waited_sec = own.now().delay
        while not self._is_over:
            self._timer.wait()
            before, waited_sec = waited_sec, own.now().delay
            if self._loop.is_running():
                self._look(waited_sec - before)
                while _LOOK_SEC / 2 < self._blocked_sec < _BLOCKED_SEC:
                    time.sleep(_AGAIN_SEC)
                    self._look(0)
            elif not self._is_over:
                self.end()

    def _look(self, waited_sec: float) -> None:
        """Add to the time of the step that runs, and report it once it is too long.

        A look that comes far too late, and not for the `waited_sec` that this thread had no
        processor, was held up by a C call that kept the interpreter: of the loop, if that ran.
        """
        stack = self._stack()
        step = stack[-1] if stack and self.rollouts else None
        before, now = max(self._heard, self._seen), self._counts.now()
        gap_sec, ran_sec = now.at - before.at, now.ran - before.ran
        if step is not self._step or before is self._heard:
            asleep_sec = _LATE_SEC if before is self._heard else _LOOK_SEC
            held_sec = ran_sec - asleep_sec - waited_sec - sys.getswitchinterval()
            self._blocked_sec = self._ran_sec = max(0.0, held_sec)
        else:
            is_late = gap_sec > 1.5 * _LOOK_SEC
            self._blocked_sec += ran_sec if is_late else gap_sec - now.delay + before.delay
            self._ran_sec += ran_sec
        if self._collects:
            self._blocked_sec = self._ran_sec = 0.0
        self._step, self._seen, self._collects = step, now, False
        if step is not None and self._blocked_sec >= _BLOCKED_SEC:
            warning = self._warning(stack)
            if self._ran_sec >= _BLOCKED_SEC or not self._counts.is_runnable():
                self._blocked_sec = -math.inf
                _tell(*warning)

    def _stack(self) -> list[FrameType]:
        """The running step's frames, innermost first; none when the loop waits or imports.

        The last one is the loop's call of it, the same object as long as the step is the same.
        """
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
        frame, stack = frames.get(self._thread), list[FrameType]()
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
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
        running, task = list(self.rollouts.values()), asyncio.current_task(self._loop)
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
