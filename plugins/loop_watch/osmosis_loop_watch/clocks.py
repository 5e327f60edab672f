"""A timer that is put off without waking who sleeps on it, and what the system counts of a thread.

Foreign calls keep the interpreter: a busy thread that lets go of it waits to get it back.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None
_START = ctypes.c_long(0)


class Timer:
    """Expires `first_sec` after it was last put off, and every `next_sec` from then on."""

    def __init__(self, first_sec: float, next_sec: float) -> None:
        self._first_sec, self._next_sec, self._put_off_at = first_sec, next_sec, 0.0
        # struct itimerspec: seconds and nanoseconds of the interval, then of the first time
        self._spec = (ctypes.c_long * 4)(0, int(next_sec * 1e9), 0, int(first_sec * 1e9))
        self._fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC) if _libc else -1
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)

    def put_off(self) -> None:
        """From any thread; the one that waits sleeps on."""
        self._put_off_at = time.monotonic()
        if _libc and self._fd >= 0:
            _libc.timerfd_settime(self._fd, 0, self._spec, None)

    def wait(self) -> None:
        """Sleep until it expires; where there is no such timer, wake up to see whether it has."""
        if self._fd >= 0:
            os.read(self._fd, 8)
            return
        time.sleep(self._next_sec)
        while (sec := self._put_off_at + self._first_sec - time.monotonic()) > 0:
            time.sleep(sec)


class Counts(NamedTuple):
    """Seconds: the time, what a thread has run, what it has waited for a processor."""

    at: float
    ran: float
    delay: float


class ThreadCounts:
    """Of the thread that creates it; 0 where nobody counts."""

    def __init__(self) -> None:
        self._path = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._text, self._fd = ctypes.create_string_buffer(b"0 0", 80), -1
        has_clock = hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(threading.get_ident()) if has_clock else None
        with suppress(OSError):
            self._fd = os.open(self._path / "schedstat", os.O_RDONLY)
            weakref.finalize(self, os.close, self._fd)

    def now(self) -> Counts:
        """What it waits for a processor just now is counted when it runs again."""
        if _libc and self._fd >= 0:
            _libc.pread(self._fd, self._text, 79, _START)
        ran = time.clock_gettime(self._clock) if self._clock is not None else 0.0
        return Counts(time.monotonic(), ran, int(self._text.value.split()[1]) / 1e9)

    def is_runnable(self) -> bool:
        """The thread runs or waits for a processor: it does not sleep."""
        if self._fd < 0:
            return False
        return (self._path / "stat").read_text().rpartition(")")[2].split()[0] == "R"
