"""Rollout servers as a controller sees them: what they answer, how busy they are, which is next."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from osmosis_core import BackendError, RolloutErrorCategory
from osmosis_core.errors import describe, one_line
from osmosis_server.controller.limits import check_url

type Json = dict[str, Any]

_CONNECT_SEC = 10.0
_KEEPALIVE_SEC = 2.0
"""Below the 5 s of uvicorn, so that no kept connection closes under a submission."""
_MAX_HOLD_SEC = 60.0
_MIN_HOLD_SEC = 0.05
_MAX_BACKOFF_SEC = 8.0


class Unsent(Exception):
    """No connection: the server has seen nothing of the request."""


class Lost(Exception):
    """The request may have been handled; its answer did not come."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: Any
    """Decoded JSON; None when it is none."""
    sent_at: float
    """`time.monotonic()` when the request was sent."""

    @property
    def object(self) -> Json:
        """The body if it is an object, else an empty one."""
        return self.body if isinstance(self.body, dict) else {}  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]

    @property
    def detail(self) -> str:
        """The server's own words, on one line."""
        return one_line(str(self.object.get("detail") or "no reason given"), 300)

    @property
    def retry_after_sec(self) -> float:
        """Seconds of `Retry-After`, from 0.05 to 60; 1 without one (protocol.md 1.8)."""
        try:
            asked = float(self.headers.get("retry-after", 1.0))
        except ValueError:
            asked = 1.0
        return min(max(asked, _MIN_HOLD_SEC), _MAX_HOLD_SEC)


def open_session() -> aiohttp.ClientSession:
    """A session for all servers; long polls hold a connection each, so there is no limit."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SEC)
    return aiohttp.ClientSession(connector=connector)


class Server:
    """One rollout server.

    Raises:
        ConfigError: the URL is none, or has credentials in it.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        check_url(url, "the URL of a rollout server")
        self.url = url.rstrip("/")
        self.load = 0
        """Rollouts that were given to it and have not ended."""
        self.failures = 0
        """Connections that failed since one did not."""
        self.free_at = 0.0
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def __repr__(self) -> str:
        return f"Server({self.url!r}, load={self.load})"

    def hold(self, seconds: float) -> None:
        """Send it nothing new for a while, a little longer for some than for others."""
        until = time.monotonic() + seconds * random.uniform(1.0, 1.1)
        self.free_at = max(self.free_at, until)

    def hold_failing(self) -> None:
        """Hold it off for longer with every failure in a row: it would look idle otherwise."""
        self.failures += 1
        self.hold(min(0.25 * 2 ** min(self.failures - 1, 8), _MAX_BACKOFF_SEC))

    async def ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        *,
        timeout_sec: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; redirects are not followed.

        Raises:
            Unsent: there was no connection.
            Lost: there was one, and no complete answer in time.
        """
        sent_at = time.monotonic()
        given = {**self._headers, "content-type": "application/json", **(headers or {})}
        timeout = aiohttp.ClientTimeout(timeout_sec, sock_connect=_CONNECT_SEC)
        try:
            async with session.request(
                method,
                f"{self.url}{path}",
                data=body,
                headers=given,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unsent(_text(error)) from error
        except TimeoutError as error:
            raise Lost(f"no answer within {timeout_sec:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_text(error)) from error
        self.failures = 0
        return Answer(response.status, response.headers, _decoded(raw), sent_at)


def _text(error: Exception) -> str:
    return one_line(describe(error), 200)


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


class Pool:
    """The servers of a controller; the least loaded one that takes rollouts is next."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers

    async def take(self, but: Container[Server] = ()) -> Server:
        """Wait for a server that is not held off, and count one more rollout on it."""
        servers = [server for server in self.servers if server not in but]
        while True:
            now = time.monotonic()
            free = [server for server in servers if server.free_at <= now]
            if free:
                server = min(free, key=lambda server: server.load)
                server.load += 1
                return server
            await asyncio.sleep(min(server.free_at for server in servers) - now)

    def check_reachable(self, since: float, limit_sec: float, reason: str) -> None:
        """Raise BackendError when no server was reached for too long."""
        if all(server.failures for server in self.servers):
            waited_sec = time.monotonic() - since
            if waited_sec >= limit_sec:
                raise BackendError(
                    f"no rollout server was reached for {waited_sec:.0f} s; the last one, {reason}",
                    category=RolloutErrorCategory.HTTP_ERROR,
                )
