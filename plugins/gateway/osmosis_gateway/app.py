"""The web application: three dialects, one road to the policy."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from osmosis_core.policy import MODEL, WireRequest, bound_headers, exchange
from osmosis_gateway import chat, messages, responses
from osmosis_gateway.admission import Admit, Caller, Refusal
from osmosis_gateway.answering import Answering, error_response
from osmosis_gateway.parts import Json

MAX_BODY_BYTES = 32 * 1024 * 1024
"""The largest request body that is read, unless the app is told another number."""

_BYTES_PER_TOKEN = 4.0

type Handler = Callable[[Request, Caller, Json], Awaitable[Answering | Response]]


def create_app(
    admit: Admit, *, max_body_bytes: int = MAX_BODY_BYTES, prefix: str = ""
) -> Starlette:
    """An ASGI application that answers in front of policies; mount it anywhere.

    Below `prefix` it serves `/v1/chat/completions`, `/v1/responses`, `/v1/messages`,
    `/v1/messages/count_tokens` and `/v1/models`. `admit` says whose call a request is, before its
    body is read. Calls go through the policy transport: it alone retries, and every error says
    so to the clients of OpenAI and Anthropic (`x-should-retry: false`).
    """

    def post(path: str, dialect: ModuleType, handle: Handler) -> Route:
        async def endpoint(request: Request) -> Answering | Response:
            try:
                caller = admit(request)
                return await handle(request, caller, await _body(request, max_body_bytes))
            except Refusal as refusal:
                return error_response(dialect, refusal)

        return Route(path, endpoint, methods=["POST"])  # pyright: ignore[reportArgumentType]

    async def models(request: Request) -> Response:
        try:
            return await _models(admit(request))
        except Refusal as refusal:
            return error_response(_dialect_of(request), refusal)

    routes: list[BaseRoute] = [
        post("/v1/chat/completions", chat, _answering(chat)),
        post("/v1/responses", responses, _answering(responses)),
        post("/v1/messages", messages, _answering(messages)),
        post("/v1/messages/count_tokens", messages, _count_tokens),
        post("/v1/completions", chat, _legacy),
        Route("/v1/models", models),
    ]
    if prefix:
        routes = [Mount(prefix, routes=routes)]
    return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})


async def _body(request: Request, limit: int) -> Json:
    raw = bytearray()
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > limit:
                raise Refusal(413, f"the body is larger than {limit} bytes")
        body: Any = json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    except ClientDisconnect as error:
        raise Refusal(400, "the caller went away before the end of the body") from error
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


def _answering(dialect: Any) -> Handler:
    async def handle(request: Request, caller: Caller, body: Json) -> Answering:
        asked = translated(dialect, body)
        if caller.keeps_model and caller.rollout.model is None:
            caller.rollout.model = asked.get("model")
        return Answering(_of_agent(request, caller), dialect, body, asked)

    return handle


def translated(dialect: Any, body: Json) -> Json:
    """A dialect's request as a chat completion request; raises Refusal when there is none."""
    try:
        asked: Json = dialect.to_chat(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"the request is malformed: {type(error).__name__} {error}"
        raise Refusal(400, text) from error
    said: Any = asked.get("messages")
    if not isinstance(said, list) or not all(isinstance(message, dict) for message in said):  # pyright: ignore[reportUnknownVariableType]
        raise Refusal(400, "messages is not a list of objects")
    if not isinstance(asked.get("stream_options") or {}, dict):
        raise Refusal(400, "stream_options is not an object")
    return asked


def _of_agent(request: Request, caller: Caller) -> Caller:
    """An agent may name its own sample; a kernel in a subprocess says `main` if it has no other."""
    named = request.headers.get("x-sample-id") or "main"
    return caller if named == "main" else replace(caller, sample_id=named)


async def _count_tokens(request: Request, caller: Caller, body: Json) -> Response:
    """An estimate: by this rollout's latest answered call, else four bytes a token."""
    asked = translated(messages, body)
    calls = [c for c in caller.rollout.calls if c.usage and c.usage.get("prompt_tokens")]
    per_token = _BYTES_PER_TOKEN
    if calls and calls[-1].usage:
        per_token = _size(calls[-1].request) / calls[-1].usage["prompt_tokens"]
    return JSONResponse({"input_tokens": max(1, round(_size(asked) / per_token))})


def _size(asked: Json) -> int:
    said: list[Any] = [asked["messages"], asked.get("tools") or []]
    return len(json.dumps(said, ensure_ascii=False).encode("utf-8", "replace"))


async def _legacy(request: Request, caller: Caller, body: Json) -> Response:
    raise Refusal(404, "/v1/completions is not served; use /v1/chat/completions")


async def _models(caller: Caller) -> Response:
    """One model, in the words of both OpenAI and Anthropic; the upstream's where callers choose."""
    if caller.keeps_model and caller.rollout.model is None:
        headers = bound_headers(caller.rollout, caller.sample_id)
        answer = await exchange(WireRequest("GET", "/models", headers, b""))
        return Response(answer.body, answer.status, answer.headers)
    name = caller.rollout.model or MODEL
    model = {"id": name, "object": "model", "created": 0, "owned_by": "osmosis", "type": "model"}
    model |= {"display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    page = {"object": "list", "has_more": False, "first_id": name, "last_id": name}
    return JSONResponse({**page, "data": [model]})


async def _unknown(request: Request, error: Exception) -> Response:
    _, is_below, rest = request.url.path.rpartition("/v1/")  # what is before names the rollout
    asked = f"{request.method} {f'/v1/{rest}' if is_below else request.url.path}"
    text = f"{asked} is not served; there are chat/completions, responses, messages and models"
    return error_response(_dialect_of(request), Refusal(404, f"{text} below /v1"))


def _dialect_of(request: Request) -> ModuleType:
    return messages if "anthropic-version" in request.headers else chat
