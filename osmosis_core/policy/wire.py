"""One aiohttp session per event loop, and a background loop for synchronous callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

_sessions: dict[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession]] = {}
_ready: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}


async def session() -> aiohttp.ClientSession:
    """The running loop's session; it closes itself when the loop shuts down."""
    loop = asyncio.get_running_loop()
    found = _ready.get(loop)
    if found is None:
        for closed in [other for other in list(_ready) if other.is_closed()]:
            _sessions.pop(closed, None)
            _ready.pop(closed, None)
        _sessions[loop] = holder = _hold_session(loop)
        found = await anext(holder)
    return found


async def _hold_session(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession]:
    """Loops close their running async generators last, so the session ends with its loop."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as opened:
        _ready[loop] = opened
        try:
            yield opened
        finally:
            _ready.pop(loop, None)
            _sessions.pop(loop, None)


class _LoopThread:
    """An event loop in a daemon thread, started when a synchronous client first calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._loop, self._lock = None, threading.Lock()

    def run[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="osmosis-policy", daemon=True
                ).start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_loop_thread = _LoopThread()


def run_blocking[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it."""
    return _loop_thread.run(coroutine)
