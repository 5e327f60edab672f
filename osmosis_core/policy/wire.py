"""How requests reach the policy: an aiohttp session per event loop, proxies, sockets, TLS.

The environment configures it, once per session, because sessions belong to the process:
`OSMOSIS_MAX_CONNECTIONS`, `OSMOSIS_MAX_CONNECTIONS_PER_HOST` (0, the default: no limit) and
`OSMOSIS_KEEPALIVE_SEC` (30); `SSL_CERT_FILE` or `REQUESTS_CA_BUNDLE`, a CA to trust beside the
system's; `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, which loopback ignores.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import AsyncGenerator, Coroutine
from ipaddress import ip_address
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import ssl

    import aiohttp

_UNIX = "http+unix://"

type _Key = tuple[asyncio.AbstractEventLoop, str]
_sessions: dict[_Key, tuple[AsyncGenerator[aiohttp.ClientSession], aiohttp.ClientSession]] = {}
_contexts: dict[str, ssl.SSLContext] = {}


def _limit(name: str, default: float) -> float:
    text = os.environ.get(f"OSMOSIS_{name}") or default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"OSMOSIS_{name} is {text!r}; give a number, 0 or more")
    return number


async def _tls() -> ssl.SSLContext | bool:
    """The TLS context, or True for aiohttp's own; certificates are read off the loop, once."""
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if not bundle:
        return True
    return _contexts.get(bundle) or _contexts.setdefault(
        bundle, await asyncio.to_thread(_trusting, bundle)
    )


def _trusting(bundle: str) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    try:
        context.load_verify_locations(bundle)
    except OSError as error:
        raise ValueError(f"the CA bundle {bundle!r} cannot be read: {error}") from error
    return context


async def send(
    method: str, url: str, headers: dict[str, str], body: bytes, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    """Send a request and read the answer's head; `http+unix://%2Frun%2Fx.sock/v1` is a socket.

    A kept connection that turns out to be closed before anything came back is no failure of the
    endpoint: the request is repeated once, at once.
    """
    import aiohttp

    socket = ""
    if url.startswith(_UNIX):
        socket, _, path = url.removeprefix(_UNIX).partition("/")
        url = f"http://localhost/{path}"
    opened, used = await session(unquote(socket)), SimpleNamespace(is_kept=False)
    options: Any = {"proxy": _proxy(url), "trace_request_ctx": used, "allow_redirects": False}
    options |= {"data": body, "headers": headers, "timeout": timeout}
    if url.startswith("https:"):
        options["ssl"] = await _tls()
    try:
        return await opened.request(method, url, **options)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) or not used.is_kept:
            raise
    return await opened.request(method, url, **options)


def _proxy(url: str) -> str | None:
    proxies, parts = _proxies(), urlsplit(url)
    if not proxies or _is_loopback(parts.hostname or ""):
        return None
    from urllib.request import proxy_bypass

    is_exempt = proxy_bypass(parts.netloc.rpartition("@")[2])
    return None if is_exempt else proxies.get(parts.scheme) or proxies.get("all")


@functools.cache
def _proxies() -> dict[str, str]:
    from urllib.request import getproxies

    return getproxies()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def session(socket: str = "") -> aiohttp.ClientSession:
    """The running loop's session (to a unix socket); it closes when the loop shuts down."""
    key = (asyncio.get_running_loop(), socket)
    if key not in _sessions:
        for other in list(_sessions):
            if other[0].is_closed():
                _sessions.pop(other, None)
        holder = _hold_session(key)
        _sessions[key] = holder, await anext(holder)
    return _sessions[key][1]


async def _hold_session(key: _Key) -> AsyncGenerator[aiohttp.ClientSession]:
    """Loops close their running async generators last, so the session ends with its loop."""
    import aiohttp

    _proxies.cache_clear()
    limits: Any = {
        "limit": int(_limit("MAX_CONNECTIONS", 0)),
        "limit_per_host": int(_limit("MAX_CONNECTIONS_PER_HOST", 0)),
        "keepalive_timeout": _limit("KEEPALIVE_SEC", 30.0),
    }
    socket = key[1]
    kind: Any = aiohttp.UnixConnector if socket else aiohttp.TCPConnector

    class Connector(kind):
        """Opens and keeps connections outside of any rollout, which they would keep in memory."""

        async def _create_connection(self, *arguments: Any) -> Any:
            opening = super()._create_connection(*arguments)  # pyright: ignore
            return await asyncio.create_task(opening, context=contextvars.Context())  # pyright: ignore

        def _release(self, *arguments: Any, **options: Any) -> None:
            contextvars.Context().run(super()._release, *arguments, **options)  # pyright: ignore

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_mark_kept)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=Connector(*filter(None, [socket]), **limits),
        cookie_jar=jar,
        trust_env=False,
        trace_configs=[tracing],
    ) as opened:
        try:
            yield opened
        finally:
            _sessions.pop(key, None)


async def _mark_kept(_session: object, context: Any, _params: object) -> None:
    context.trace_request_ctx.is_kept = True


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """A loop in a daemon thread; threads that race for the first one may get one each."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="osmosis-policy", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_background_loop.cache_clear)


def run_blocking[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
