"""Strands' cancel signal, noticed while the policy has not answered yet.

The signal is a `threading.Event`, which an event loop can only look at. One timer per loop looks
at those of all waiting calls.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any

_LOOK_EVERY_SEC = 0.05


class _Waiting:
    """One await that ends when its signal is set; the mechanics are those of asyncio.timeout."""

    def __init__(self, signal: threading.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._signal, self._task = signal, task
        self._cancelling = task.cancelling()
        self._is_ended = False

    def look(self) -> None:
        if self._signal.is_set() and not self._is_ended:
            self._is_ended = True
            self._task.cancel()

    def close(self) -> bool:
        """True when the cancellation that arrived is the one for the signal, and no other."""
        is_ended, self._is_ended = self._is_ended, False
        return is_ended and self._task.uncancel() <= self._cancelling


class _Watch:
    """The waiting calls of one event loop."""

    def __init__(self) -> None:
        self._waiting: set[_Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiting: _Waiting) -> None:
        self._waiting.add(waiting)
        if self._timer is None:
            self._look_later()

    def remove(self, waiting: _Waiting) -> None:
        self._waiting.discard(waiting)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_SEC, self._look)

    def _look(self) -> None:
        self._timer = None
        for waiting in list(self._waiting):
            waiting.look()
        if self._waiting:
            self._look_later()


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = weakref.WeakKeyDictionary()


async def until_set(
    events: AsyncGenerator[Any], signal: threading.Event | None
) -> AsyncGenerator[Any]:
    """The events, ending early when the signal is set while the next one is awaited."""
    while True:
        try:
            event = await _next(events, signal)
        except StopAsyncIteration:
            return
        yield event


async def _next(events: AsyncGenerator[Any], signal: threading.Event | None) -> Any:
    if signal is None:
        return await anext(events)
    watch = _watches.setdefault(asyncio.get_running_loop(), _Watch())
    waiting = _Waiting(signal)
    watch.add(waiting)
    try:
        return await anext(events)
    except asyncio.CancelledError:
        if waiting.close():
            raise StopAsyncIteration from None
        raise
    finally:
        watch.remove(waiting)
        waiting.close()
