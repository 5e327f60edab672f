"""Listening, and the end: admission stops, polls are still answered, what runs has its grace."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from osmosis_core import ConfigError
from osmosis_server.collecting import ShortCollections
from osmosis_server.security import is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from osmosis_server.service import RolloutService

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_KEEP_ALIVE_SEC = 2160
"""Long polls pass load balancers that keep connections for half an hour (protocol.md 2.9)."""
_FLUSH_SEC = 5
_ACCEPTORS = 32
"""uvloop accepts one connection per listening handle in each turn of the loop, so that with one
handle hundreds of new controllers would wait for seconds for a busy server."""
_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


def listen(host: str, port: int, *, has_key: bool, is_insecure: bool) -> socket.socket:
    """A listening socket; what connects before the server runs waits in its backlog.

    Raises:
        ConfigError: the address is not loopback and neither a key nor `--insecure` was given, or
            it cannot be had.
    """
    if not (has_key or is_insecure or is_loopback(host)):
        raise ConfigError(
            f"{host!r} is not loopback, so anybody who can connect could run rollouts; set "
            "OSMOSIS_SERVER_API_KEY, or give --generate-key, or --insecure to allow it"
        )
    try:
        return _listening(host, port)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "that is no name of a host"
        raise ConfigError(f"cannot listen on {host}:{port}: {why}") from error


def _listening(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio sets TCP_NODELAY only where the protocol is named; without it answers take 40 ms.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def origin_of(listener: socket.socket) -> str:
    """`http://host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, listener: socket.socket, on_ready: Callable[[], None]) -> int:
    """Serve an app of `create_rollout_server` until a signal; 0 after SIGTERM, 130 after Ctrl-C.

    `on_ready` is called once the journal is open and recovery is done. The first signal drains:
    nothing more is admitted, polls are answered, running rollouts have their grace. The second one
    exits at once; the journal is made for that.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        serving = runner.get_loop().create_task(_serve(app, listener, on_ready))
        while True:
            try:
                return runner.run(_result(serving))
            except SystemExit:  # of a task that user code started; asyncio stops its loop for that
                if serving.done():
                    raise
                _log.error("a task of a rollout called sys.exit; the server goes on")


async def _result(serving: asyncio.Task[int]) -> int:
    return await serving


async def _serve(app: FastAPI, listener: socket.socket, on_ready: Callable[[], None]) -> int:
    async with app.router.lifespan_context(app) as state:
        server = _Server(app, state or {})
        ending = _Ending(server, app.state.service)
        with ending.on_signals(), ShortCollections(ending.is_idle) as collections:
            keeping = asyncio.create_task(collections.keep())
            on_ready()
            await server.serve([listener, *(listener.dup() for _ in range(_ACCEPTORS - 1))])
            keeping.cancel()
        return ending.exit_code


class _Server(uvicorn.Server):
    """uvicorn that leaves signals and the lifespan to its caller."""

    def __init__(self, app: FastAPI, state: Mapping[str, Any]) -> None:
        config = uvicorn.Config(
            _with_state(app, state) if state else app,
            lifespan="off",
            http="httptools",
            proxy_headers=False,  # nobody asks who called
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,  # paths name rollouts, and nobody asked
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SEC,
            timeout_graceful_shutdown=_FLUSH_SEC,
            server_header=False,
            date_header=False,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield


def _with_state(app: FastAPI, state: Mapping[str, Any]) -> ASGIApp:
    """What the user's lifespan yielded, for each request."""

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return with_state


class _Ending:
    """How the process was asked to end."""

    def __init__(self, server: uvicorn.Server, service: RolloutService) -> None:
        self.exit_code = 0
        self._server = server
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def on_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number, code in _EXIT_CODES.items():
            loop.add_signal_handler(number, self._ask, code)
        try:
            yield
        finally:
            for number in _EXIT_CODES:
                loop.remove_signal_handler(number)

    def is_idle(self) -> bool:
        """Whether no rollout waits or runs."""
        stats = self._service.stats()
        return not (stats.queued or stats.running)

    def _ask(self, code: int) -> None:
        if self._draining is not None:
            os._exit(code or 128 + signal.SIGTERM)
        self.exit_code = code
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        stats, grace_sec = self._service.stats(), self._service.settings.drain_grace_sec
        _log.info(
            "draining: %d rollouts have up to %g s; a second signal exits at once",
            stats.queued + stats.running,
            grace_sec,
        )
        try:
            await self._service.drain(grace_sec)
        finally:
            self._server.should_exit = True
