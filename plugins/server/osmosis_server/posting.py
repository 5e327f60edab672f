"""One try of one delivery over HTTP, and what its answer means."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import aiohttp

from osmosis_core import OsmosisError
from osmosis_core.errors import one_line
from osmosis_server.submissions import Delivery

if TYPE_CHECKING:
    from osmosis_server.observer import ServiceObserver

logger = logging.getLogger(__name__)

_TRY_AGAIN = {429, 500, 502, 503, 504}
_UNREACHABLE = {502, 503, 504}
_REPORT = b'"trajectory"'
_MAX_REPORT_BYTES = 64 * 1024 * 1024
_PARSED_HERE_BYTES = 32 * 1024
_MAX_RETRY_AFTER_SEC = 300.0


class Verdict(Enum):
    """What became of a try."""

    TAKEN = 1
    REFUSED = 2
    """For good: the controller does not want it, or the URL cannot be posted to."""
    TRY_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a try brought."""

    verdict: Verdict
    reason: str = ""
    is_unreachable: bool = False
    """Nothing answered, or a proxy for it."""
    retry_after_sec: float = 0.0


_TAKEN = Answer(Verdict.TAKEN)


class Poster:
    """Posts deliveries; redirects are not followed, no proxy or netrc is used.

    Args:
        timeout_sec: for the whole exchange.
        connector: makes the connector of the session, for instance one that checks addresses.
    """

    def __init__(
        self,
        observer: ServiceObserver,
        timeout_sec: float,
        connector: Callable[[], aiohttp.BaseConnector] | None = None,
    ) -> None:
        self._observer = observer
        self._timeout = aiohttp.ClientTimeout(total=timeout_sec)
        self._connector = connector or (lambda: aiohttp.TCPConnector(limit=0))
        self._session: aiohttp.ClientSession | None = None

    async def post(self, delivery: Delivery, rollout_id: str, key: str | None) -> Answer:
        """Try a delivery once."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        try:
            async with self._open().post(
                delivery.url, data=delivery.body, headers=headers, allow_redirects=False
            ) as response:
                if not 200 <= response.status < 300:
                    return _judge(response)
                await self._acknowledge(response, rollout_id, delivery.name)
                return _TAKEN
        except (
            aiohttp.InvalidURL,
            aiohttp.NonHttpUrlClientError,
            OsmosisError,
            ValueError,
        ) as error:
            return Answer(Verdict.REFUSED, one_line(str(error), 200))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = one_line(f"{type(error).__name__} {error}", 200).strip()
            return Answer(Verdict.TRY_AGAIN, reason, is_unreachable=True)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _acknowledge(
        self, response: aiohttp.ClientResponse, rollout_id: str, delivery: str
    ) -> None:
        """Hand a trajectory report on; an acknowledgement that cannot be read is still one."""
        try:
            body = await _read(response)
            if _REPORT not in body:
                return
            report = await _parse(body)
            if isinstance(report, dict) and "trajectory" in report:
                self._observer.acknowledged(rollout_id, delivery, report["trajectory"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
            pass
        except Exception:  # observers are isolated from the delivery
            logger.exception("observer of rollout %r raised", rollout_id)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, or nothing when it is too long for a report."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _MAX_REPORT_BYTES:
            return b""
        parts.append(part)
    return b"".join(parts)


async def _parse(body: bytes) -> Any:
    return (
        json.loads(body)
        if len(body) < _PARSED_HERE_BYTES
        else await asyncio.to_thread(json.loads, body)
    )


def _judge(response: aiohttp.ClientResponse) -> Answer:
    reason = f"HTTP {response.status}"
    if response.status not in _TRY_AGAIN:
        return Answer(Verdict.REFUSED, reason)
    return Answer(
        Verdict.TRY_AGAIN,
        reason,
        is_unreachable=response.status in _UNREACHABLE,
        retry_after_sec=_seconds(response.headers.get("Retry-After", "")),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, _MAX_RETRY_AFTER_SEC) if math.isfinite(seconds) and seconds > 0 else 0.0


@lru_cache(1024)
def origin_of(url: str) -> str:
    """Scheme, host and port, without user and password; what may be logged of a URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}"
    except ValueError:
        return "an unusable URL"
