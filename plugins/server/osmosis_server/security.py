"""Who may call this server, and whom it may call on a request's behalf."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from osmosis_core import ConfigError
from osmosis_server.http import problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network

_FORBIDDEN: list[Network] = [
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
    )
]
"""Link-local networks, and the metadata addresses of clouds that are elsewhere."""
_FORBIDDEN_NAMES = {"metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
_NAT64 = IPv6Network("64:ff9b::/96")
_PATTERN = re.compile(
    r"(?:\[(?P<v6>[^\]\s]+)\]|(?P<host>[^:\[\]/\s]+(?:/\d+)?))(?::(?P<port>\d{1,5}))?"
)


def check_key(api_key: str) -> str:
    """Return a key that a header can carry.

    Raises:
        ConfigError: it is blank, or has white space or control characters.
    """
    if not api_key or any(c.isspace() or not c.isprintable() for c in api_key):
        raise ConfigError(
            "the API key is blank or has white space or control characters; give a long random one"
        )
    return api_key


def fresh_key() -> str:
    """A key of the documented form (protocol.md 1.1)."""
    return f"osm_rollout_{secrets.token_urlsafe(32)}"


class RequireKey:
    """Answers 401 to what does not bring `Authorization: Bearer <key>`, before a body is read.

    The scheme is compared with its case (protocol.md 1.8). Paths in `open_paths` are left to
    their protocols, which have other rules.
    """

    def __init__(self, app: ASGIApp, api_key: str, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._expected = f"Bearer {check_key(api_key)}".encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or refuse it."""
        if scope["type"] == "lifespan" or scope["path"] in self._open_paths or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = problem(401, "unauthorized", {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


@dataclass(frozen=True, slots=True)
class _HostPattern:
    name: str
    network: Network | None
    port: int | None

    def covers(self, host: str, address: Address | None, port: int | None) -> bool:
        if self.port not in (None, port):
            return False
        if address is not None and self.network is not None:
            return address in self.network
        return fnmatchcase(host, self.name)


def _host_pattern(text: str) -> _HostPattern:
    bare = f"[{text}]" if text.count(":") > 1 and "[" not in text else text
    found = _PATTERN.fullmatch(bare)
    if found is None:
        raise ConfigError(
            f"allowed host {text!r} is no pattern; write api.example.com, *.example.com:443, "
            "10.0.0.0/8 or [fd00::/8]:8000"
        )
    name = (found["v6"] or found["host"]).lower()
    network = None
    if "/" in name or _address(name) is not None:
        try:
            network = ipaddress.ip_network(name)
        except ValueError as error:
            raise ConfigError(f"allowed host {text!r}: {error}") from error
    return _HostPattern(name, network, int(found["port"]) if found["port"] else None)


class UrlPolicy:
    """Which URLs of a request the server may call.

    Only http and https. Link-local and metadata addresses are always refused, in whatever way
    they are written. Where patterns are given, a host must match one: names by name, addresses
    by network; a name is not resolved to find it in a network.

    Raises:
        ConfigError: a pattern cannot be read.
    """

    def __init__(self, allow_hosts: Sequence[str] = ()) -> None:
        self._patterns = [_host_pattern(text) for text in allow_hosts]
        self._refusal = lru_cache(1024)(self._why_not)

    def check(self, url: str) -> str:
        """Return the URL.

        Raises:
            ConfigError: it is none, or leads where the server may not go.
        """
        if not url.isprintable() or " " in url or "\\" in url:
            raise ConfigError("the URL has white space, control characters or backslashes")
        try:
            parsed = URL(url)
            host, port = (parsed.raw_host or "").rstrip(".").lower(), parsed.port
        except (ValueError, TypeError) as error:
            raise ConfigError(f"not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not host:
            raise ConfigError("not an http or https URL with a host")
        if parsed.raw_user is not None or parsed.raw_password is not None:
            raise ConfigError("the URL has a user or password; give the key in its own field")
        if (refusal := self._refusal(host, port)) is not None:
            raise ConfigError(refusal)
        return url

    def _why_not(self, host: str, port: int | None) -> str | None:
        address = _address(host)
        if host in _FORBIDDEN_NAMES or (address is not None and _is_forbidden(address)):
            return f"{host} is a link-local or metadata address, which is never called"
        if self._patterns and not any(p.covers(host, address, port) for p in self._patterns):
            return f"host {host} is not among the allowed hosts (--allow-host)"
        return None


def checked_connector() -> TCPConnector:
    """A connector that checks what a name resolves to at each connection.

    It closes the gap in which a name that passed `UrlPolicy.check` is pointed elsewhere.
    """
    return TCPConnector(resolver=CheckedResolver(ThreadedResolver()), limit=0)


class CheckedResolver(AbstractResolver):
    """Resolves names as `resolver` does, but none to a link-local or metadata address."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses; OSError when one of them is never called."""
        found = await self._resolver.resolve(host, port, family)
        addresses = [_address(result["host"]) for result in found]
        if any(address is None or _is_forbidden(address) for address in addresses):
            text = f"{host} resolves to a link-local or metadata address, which is never called"
            raise PermissionError(errno.EACCES, text)
        return found

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._resolver.close()


def _address(host: str) -> Address | None:
    """The address that a host is, in every form that a resolver takes for one."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))  # 2852039166, 0xa9.254.43518
    except OSError:
        return None


def _is_forbidden(address: Address) -> bool:
    return any(form in network for form in _forms(address) for network in _FORBIDDEN)


def _forms(address: Address) -> list[Address]:
    """The address, and the IPv4 address that is packed into it."""
    if isinstance(address, IPv4Address):
        return [address]
    low = IPv4Address(int(address) & 0xFFFFFFFF)
    packed = [address.ipv4_mapped, address.sixtofour]
    if address in _NAT64 or int(address) >> 32 == 0:
        packed.append(low)
    return [IPv6Address(int(address)), *(form for form in packed if form is not None)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server that listens on `host`."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback
