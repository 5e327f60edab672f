"""Looks at what an event loop runs, and tells a step that blocks from a machine that is busy."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from osmosis_core import get_rollout_context

LOOK_SEC = 0.017
_BLOCKED_SEC = 0.0305
"""Seen for so long in a row, a step has run for up to 17 ms more: before the first look of it."""
_COUNTS_WAITS = hasattr(resource, "RUSAGE_THREAD")
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
_collected = 0


def note_collection(phase: str, info: dict[str, int]) -> None:
    """For `gc.callbacks`: a full collection stops whatever runs, which is not to blame."""
    global _collected
    _collected += info["generation"] == _OLDEST


def sleep_until_look() -> float:
    """Sleep until the next look; seconds of its delay for which one C call kept the interpreter.

    Who waits for the interpreter wakes up once in every switch interval to ask for it, and more
    often when others hand it around. An account that fits neither says that the machine was busy.
    """
    asked, now = _waits(), time.monotonic()
    due_at = now - now % LOOK_SEC + LOOK_SEC
    time.sleep(due_at - now)
    late_sec, interval_sec = time.monotonic() - due_at, sys.getswitchinterval()
    in_vain_sec = (_waits() - asked - 2) * interval_sec
    is_held = 0.8 * late_sec - interval_sec <= in_vain_sec <= late_sec
    return max(0.0, in_vain_sec) if is_held else 0.0


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_WAITS else 0


class RunDelay:
    """How long the thread that creates it has waited for a processor; 0 where nobody counts."""

    def __init__(self) -> None:
        self._path = Path(f"/proc/self/task/{threading.get_native_id()}")
        try:
            self._file = os.open(self._path / "schedstat", os.O_RDONLY)
        except OSError:
            self._file = None

    def total_sec(self) -> float:
        """Since the thread began; what it waits just now is counted when it runs again."""
        return int(os.pread(self._file, 80, 0).split()[1]) / 1e9 if self._file else 0.0

    def is_runnable(self) -> bool:
        """The thread runs or waits for a processor: it does not sleep."""
        if self._file is None:
            return False
        return (self._path / "stat").read_text().rpartition(")")[2].split()[0] == "R"

    def close(self) -> None:
        """To be called once."""
        if self._file is not None:
            os.close(self._file)


class LoopWatch:
    """The steps (callbacks, turns of a task) of the loop that runs in the creating thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rollouts: dict[int, tuple[str, asyncio.Task[object]]] = {}
        self.delay = RunDelay()
        self._loop, self._thread = loop, threading.get_ident()
        has_clock = hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(self._thread) if has_clock else None
        self._step: FrameType | None = None
        self._looked_at, self._cpu_sec = time.monotonic(), self._cpu()
        self._delay_sec, self._collected = self.delay.total_sec(), _collected
        self._blocked_sec = self._ran_sec = 0.0

    def _cpu(self) -> float:
        return time.clock_gettime(self._clock) if self._clock is not None else 0.0

    def is_over(self) -> bool:
        """No rollout runs. One that was cancelled is never reported as finished: ask its task."""
        while self.rollouts:
            key, (_, task) = next(iter(self.rollouts.items()))
            if not task.done():
                return not self._loop.is_running()
            del self.rollouts[key]
        return True

    def step(self) -> list[FrameType]:
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

    def look(self, stack: list[FrameType], held_sec: float) -> None:
        """Add to the time of the step that runs, and report it once it is too long.

        A C call held the interpreter for `held_sec` before: this thread's if it ran meanwhile.
        A look that comes far too late proves no more than the time that this thread ran.
        """
        step, now = stack[-1] if stack and self.rollouts else None, time.monotonic()
        cpu_sec = self._cpu()
        ran_sec, gap_sec = cpu_sec - self._cpu_sec, now - self._looked_at
        collected, self._collected = self._collected, _collected
        if collected != self._collected:
            self._blocked_sec = self._ran_sec = 0.0
        elif step is not self._step:
            self._blocked_sec = self._ran_sec = min(held_sec, ran_sec)
        else:
            self._blocked_sec += gap_sec if gap_sec < 1.5 * LOOK_SEC else ran_sec
            self._ran_sec += ran_sec
        self._step, self._looked_at, self._cpu_sec = step, now, cpu_sec
        if step is None:
            self._delay_sec = self.delay.total_sec()
        elif self._blocked_sec >= _BLOCKED_SEC:
            warning = self._warning(stack)
            if self._is_proven():
                self._blocked_sec = -math.inf
                _tell(*warning)

    def _is_proven(self) -> bool:
        """The step ran for so long, or slept: it was not the machine that was busy."""
        if self._ran_sec >= _BLOCKED_SEC:
            return True
        before, self._delay_sec = self._delay_sec, self.delay.total_sec()
        self._blocked_sec -= self._delay_sec - before
        return self._blocked_sec >= _BLOCKED_SEC and not self.delay.is_runnable()

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
