"""Ctrl-C: the first one asks the evaluation to stop, a second one ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
_LAST_SEC = 20.0
"""Code that ignores its cancellation delays the end of the process by no more than this."""


@contextmanager
def stop_on_sigint() -> Generator[asyncio.Event]:
    """Yield an event that the first Ctrl-C sets.

    After it a second Ctrl-C, or user code that does not end in time, exits the process at once.
    Outside the main thread signals cannot be caught, and the event stays unset.
    """
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    loop = asyncio.get_running_loop()

    def on_sigint(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: _exit_now())
        watchdog = threading.Timer(_LAST_SEC, _exit_now)
        watchdog.daemon = True
        watchdog.start()
        loop.call_soon_threadsafe(stop.set)

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield stop
    finally:
        if not stop.is_set():
            signal.signal(signal.SIGINT, before)


def _exit_now() -> None:
    os._exit(EXIT_CODE)
