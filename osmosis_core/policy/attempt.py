"""One HTTP request to the policy: read the whole answer, or say in a line why there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_core.errors import one_line
from osmosis_core.policy import assemble
from osmosis_core.policy.assemble import Json, MalformedAnswer
from osmosis_core.policy.wire import send

if TYPE_CHECKING:
    import aiohttp

_MAX_ANSWER_BYTES = 128 * 1024 * 1024
_MAX_DETAIL = 300
_MIN_SECRET = 4
_CONNECT_SEC = 10.0
_READ_SEC = 600.0
_END_SEC = 0.2
_RETRYABLE = frozenset((408, 425, 429, *range(500, 600))) - {501, 505}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one try ended: with a completion, with bytes to forward, or with an error."""

    status: int | None = None
    completion: Json | None = None
    body: bytes = b""
    content_type: str = ""
    error: str | None = None
    detail: str = ""
    """What the endpoint itself said about a refusal, on one line."""
    retryable: bool = False
    retry_after: str | None = None

    @property
    def error_status(self) -> int:
        """The status for the client above: the endpoint's own if it is an error, else 502."""
        return self.status if self.status is not None and self.status >= 400 else 502

    @property
    def error_body(self) -> bytes:
        """The endpoint's own error object, or ours in the same shape."""
        if self.body:
            return self.body
        error = {"message": self.error, "type": "policy_error", "code": None, "param": None}
        return json.dumps({"error": error}).encode()


async def attempt(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    *,
    is_chat: bool,
    read_timeout_sec: float | None,
    secret: str | None,
    on_delta: Callable[[bytes], None] | None = None,
) -> Outcome:
    """Send once and read to the end; `secret` is cut out of whatever the endpoint says.

    `on_delta` is given the bytes of a streamed answer as they come, once they are understood.
    """
    import aiohttp

    status = None
    read_sec = read_timeout_sec or _READ_SEC
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SEC, sock_read=read_sec)
    where = url.partition("?")[0]
    try:
        async with await send(method, url, headers, body, timeout) as response:
            status = response.status
            if status >= 300:
                return await _refused(response, where, secret)
            if is_chat:
                return await _completion(response, where, on_delta)
            return Outcome(status, body=await _read(response), content_type=response.content_type)
    except MalformedAnswer as error:
        problem = MalformedAnswer(error.problem, redact(error.quoted, secret))
        text = f"malformed answer of the policy at {where}: {problem}"
        return Outcome(error=text, status=status, retryable=True)
    except TimeoutError:
        text = f"the policy at {where} stopped answering"
        return Outcome(error=text, status=status, retryable=True)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        text = redact(str(error) or type(error).__name__, secret)
        if status is None:
            text = f"the policy at {where} cannot be reached: {text}"
            return Outcome(error=text, retryable=not isinstance(error, ValueError))
        text = f"the answer of the policy at {where} was cut: {text}"
        return Outcome(error=text, status=status, retryable=True)


async def _completion(
    response: aiohttp.ClientResponse, where: str, on_delta: Callable[[bytes], None] | None
) -> Outcome:
    if response.content_type == "text/html":
        text = f"the policy at {where} answered a web page, not a chat completion; "
        text += "check that the URL is the API's base URL, often ending in /v1"
        return Outcome(response.status, error=text)
    if response.content_type == "text/event-stream":
        return Outcome(response.status, await _assembled(response, on_delta))
    return Outcome(response.status, assemble.parse_completion(await _read(response)))


async def _assembled(
    response: aiohttp.ClientResponse, on_delta: Callable[[bytes], None] | None
) -> Json:
    reader, assembler, size = assemble.EventReader(), assemble.Assembler(), 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > _MAX_ANSWER_BYTES:
            raise MalformedAnswer(f"the stream passed {_MAX_ANSWER_BYTES >> 20} MiB without an end")
        for data in reader.feed(chunk):
            assembler.add(data)
        if on_delta is not None:
            on_delta(chunk)
        if assembler.done:
            await _finish(response)
            break
    for data in reader.close():
        assembler.add(data)
    return assembler.completion()


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Read on to the end of the body, which is due, so that the connection can serve again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SEC):
            await response.content.read(_MAX_ANSWER_BYTES)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise MalformedAnswer(f"the answer passed {_MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


async def _refused(response: aiohttp.ClientResponse, where: str, secret: str | None) -> Outcome:
    try:
        body = redact(_unescaped((await _read(response)).decode("utf-8", "replace")), secret)
    except MalformedAnswer:
        body = ""
    detail = _error_message(body)
    hint = ""
    if response.status < 400:
        hint = "; redirects are not followed, give the final URL"
    elif response.status in (401, 403):
        hint = "; check the API key"
    elif response.status == 404:
        hint = "; check the base URL and the model name"
    said = f": {detail}" if detail else ""
    return Outcome(
        response.status,
        body=body.encode("utf-8", "replace") if detail and body.lstrip().startswith("{") else b"",
        error=f"the policy at {where} answered {response.status}{said}{hint}",
        detail=detail,
        retryable=response.status in _RETRYABLE,
        retry_after=response.headers.get("retry-after"),
    )


def _unescaped(body: str) -> str:
    """JSON without needless escapes, in which a secret cannot hide."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body


def _error_message(body: str) -> str:
    try:
        value: Any = json.loads(body)
    except ValueError:
        return "" if body.lstrip().startswith("<") else one_line(body, _MAX_DETAIL)
    error: Any = value.get("error", value.get("detail", "")) if isinstance(value, dict) else ""  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
    message = error.get("message", "") if isinstance(error, dict) else error  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    return one_line(str(message), _MAX_DETAIL)  # pyright: ignore[reportUnknownArgumentType]


def redact(text: str, secret: str | None) -> str:
    """The text without the secret; one of a few letters is left, it would hit other words."""
    return text.replace(secret, "***") if secret and len(secret) >= _MIN_SECRET else text
