"""Small things of HTTP that every route needs: bodies with a limit, and the shapes of refusals."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from osmosis_server.submissions import Refused, UnknownRollout, WrongLease

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_log = logging.getLogger(__name__)

type Handler = Callable[[Request], Awaitable[Response]]

_NOT_AN_OBJECT = {
    "type": "model_attributes_type",
    "loc": ["body"],
    "msg": "Input should be a valid dictionary or object to extract fields from",
}


class Unprocessable(Exception):
    """A request that is answered 422; `detail` has the shape that FastAPI gives it."""

    def __init__(self, detail: list[dict[str, Any]] | str) -> None:
        super().__init__(detail)
        self.detail = detail


class TooLarge(Exception):
    """A body beyond the limit (413)."""


class Answering:
    """A route's ASGI application around a handler; refusals become answers here."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._handle(Request(scope, receive))
        except Refused as refused:
            wait = refused.retry_after_sec
            headers = {} if wait is None else {"Retry-After": str(wait)}
            response = problem(refused.status, str(refused), headers)
        except (UnknownRollout, WrongLease) as error:
            response = problem(error.status, str(error))
        except Unprocessable as error:
            response = problem(422, error.detail)
        except TooLarge as error:
            response = problem(413, str(error), {"Connection": "close"})
        except ClientDisconnect:
            return
        except Exception:  # boundary: nothing catches around routes that go by the shortcut
            _log.exception("%s %s failed", scope["method"], _shown(scope["path"]))
            response = problem(500, "Internal Server Error")
        await response(scope, receive, send)


def _shown(path: str) -> str:
    return path.encode("unicode_escape").decode()


class Shortcut:
    """Takes requests for some routes past the middleware that FastAPI puts around all of them."""

    def __init__(self, routes: Sequence[BaseRoute], app: ASGIApp) -> None:
        self._routes = routes
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the route that wants it, else to the application."""
        if scope["type"] == "http":
            for candidate in self._routes:
                match, found = candidate.matches(scope)
                if match is Match.FULL:
                    scope.update(found)
                    return await candidate.handle(scope, receive, send)
        return await self._app(scope, receive, send)


def route(path: str, handle: Handler, method: str) -> Route:
    """A route without FastAPI's machinery around it."""
    return Route(path, Answering(handle), methods=[method])


def answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON answer."""
    return Response(to_json(value, inf_nan_mode="null"), status, media_type="application/json")


def problem(
    status: int, detail: list[dict[str, Any]] | str, headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal in the shape of FastAPI's."""
    body = to_json({"detail": detail})
    return Response(body, status, headers=headers, media_type="application/json")


async def read_object(request: Request, limit: int) -> tuple[dict[str, Any], bytes]:
    """The JSON object in a request's body, and the body.

    Raises:
        Unprocessable: it is none, or is not called `application/json`.
        TooLarge: it has more than `limit` bytes; no more than those are read.
    """
    raw = await _read(request, limit)
    if not raw:
        raise Unprocessable([{"type": "missing", "loc": ["body"], "msg": "Field required"}])
    if not _is_json(request.headers.get("content-type", "")):
        raise Unprocessable([_NOT_AN_OBJECT])
    try:
        value: Any = from_json(raw)
    except ValueError as error:
        said = {"type": "json_invalid", "loc": ["body"], "msg": f"JSON decode error: {error}"}
        raise Unprocessable([said]) from error
    if not isinstance(value, dict):
        raise Unprocessable([_NOT_AN_OBJECT])
    return value, raw  # pyright: ignore[reportUnknownVariableType]


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


async def _read(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooLarge(f"the body has {length} bytes; the server takes {limit}")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"the body is larger than {limit} bytes, which the server takes")
        chunks.append(chunk)
    return b"".join(chunks)


def validated[T: BaseModel](model: type[T], value: dict[str, Any], context: object = None) -> T:
    """The value as a model; Unprocessable names fields and never repeats what was sent."""
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        issues = error.errors(include_url=False, include_context=False, include_input=False)
        detail = [{**issue, "loc": ["body", *issue["loc"]]} for issue in issues]
        raise Unprocessable(detail) from error
