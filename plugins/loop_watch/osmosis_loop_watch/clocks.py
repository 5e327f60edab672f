"""A timer that is set again without waking who sleeps on it, and what the system counts.

Foreign calls here keep the interpreter: a thread that lets go of it may wait to get it back.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from pathlib import Path

_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None
_START = ctypes.c_long(0)
_POLL_SEC = 0.01


class Timer:
    """Expires once, `sec` after it was last set."""

    def __init__(self, sec: float) -> None:
        self._sec, self._due_at = sec, 0.0
        # struct itimerspec: seconds and nanoseconds of the interval, then of the first time
        self._spec = (ctypes.c_long * 4)(0, 0, 0, int(sec * 1e9))
        self._fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC) if _libc else -1
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)

    def set(self) -> None:
        """From any thread; the one that waits sleeps on."""
        self._due_at = time.monotonic() + self._sec
        if _libc:
            _libc.timerfd_settime(self._fd, 0, self._spec, None)

    def wait(self) -> float:
        """Sleep until it expires; when that was to be. Not on Linux: wake up to see whether."""
        if self._fd >= 0:
            os.read(self._fd, 8)
            return self._due_at
        time.sleep(_POLL_SEC)
        while (sec := self._due_at - time.monotonic()) > 0:
            time.sleep(sec)
        return time.monotonic()


class ThreadCounts:
    """Of the thread that creates it; 0 where nobody counts."""

    def __init__(self) -> None:
        self._path = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._text, self._fd, self._clock = ctypes.create_string_buffer(b"0 0", 80), -1, None
        if _libc:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self._fd = os.open(self._path / "schedstat", os.O_RDONLY)
            weakref.finalize(self, os.close, self._fd)

    def now(self) -> tuple[float, float]:
        """Seconds it has run, and waited for a processor; a wait is counted when it ends."""
        if _libc is None or self._clock is None:
            return 0, 0
        _libc.pread(self._fd, self._text, 79, _START)
        delay = int(self._text.value.split()[1]) / 1e9
        return time.clock_gettime(self._clock), delay

    def is_runnable(self) -> bool:
        """The thread runs or waits for a processor: it does not sleep."""
        stat = (self._path / "stat").read_text() if _libc else ")?"
        return stat.rpartition(")")[2].split()[0] == "R"
