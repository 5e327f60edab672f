"""Listening: loopback unless told, in a thread of its own or until interrupted."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address

import uvicorn
from starlette.types import ASGIApp

from osmosis_core import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_SEC = 75
_STOP_SEC = 5.0


def listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    """A socket that takes connections; what comes before a server runs waits in its backlog.

    Raises:
        ConfigError: the host is not loopback and that was not allowed, or it cannot be had.
    """
    if not allow_remote and not _is_loopback(host):
        raise ConfigError(
            f"{host!r} is not loopback, so other machines could call the policy; give 127.0.0.1, "
            "or allow_remote=True (--allow-remote) if they should"
        )
    if not 0 <= port <= 65535:  # getaddrinfo takes the lower 16 bits
        raise ConfigError(f"there is no port {port}; give one from 0 to 65535, where 0 is any")
    try:
        return _listening(host, port)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


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


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def origin_of(listener: socket.socket) -> str:
    """`http://host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,  # paths name rollouts, and nobody asked
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SEC,
        timeout_graceful_shutdown=int(_STOP_SEC),
        server_header=False,
        date_header=False,
    )
    return uvicorn.Server(config)


async def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until a signal comes, then raise it again."""
    await _server(app).serve([listener])


class ServerThread:
    """A server on a daemon thread, so callers that block their event loop are answered too."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self.origin = origin_of(listener)
        self._server = _server(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="osmosis-gateway", daemon=True
        )
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where it answers."""
        return self._loop

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve([listener]))

    def stop(self) -> None:
        """Stop listening, and end what is in flight after a few seconds."""
        self._server.should_exit = True
        self._thread.join(2 * _STOP_SEC)
