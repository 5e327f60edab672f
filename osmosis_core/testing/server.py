"""A policy endpoint on a real loopback socket, on an event loop and thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Self

from aiohttp import web

from osmosis_core.context import RolloutContext
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.policy.assemble import DONE, Json, event_stream

_START_SEC = 10.0
_STOP_SEC = 0.05
_CHUNK_CHARS = 16


class PolicyServer:
    """Base of the policies here; use it as `with` or `async with`, it yields its endpoint.

    It has its own thread, so agents that block their event loop can still be answered. Subclasses
    implement `respond`.
    """

    def __init__(self, *, api_key: str | None = None) -> None:
        self.api_key = api_key
        self.base_url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def respond(self, request: web.Request, body: Json) -> web.StreamResponse:
        """Answer one chat completion request."""
        raise NotImplementedError

    @property
    def endpoint(self) -> PolicyEndpoint:
        """Where it answers."""
        return PolicyEndpoint(self.base_url, self.api_key)

    def rollout(self, rollout_id: str = "", **options: Any) -> RolloutContext:
        """A rollout context with this policy."""
        return RolloutContext(self.base_url, self.api_key, rollout_id, **options)

    def __enter__(self) -> Self:
        started: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        self.base_url = started.result(_START_SEC)
        return self

    def __exit__(self, *exc_info: object) -> None:
        loop, stop, thread = self._loop, self._stop, self._thread
        if loop is not None and stop is not None and thread is not None:
            loop.call_soon_threadsafe(stop.set)
            thread.join(_START_SEC)

    async def __aenter__(self) -> PolicyEndpoint:
        await asyncio.to_thread(self.__enter__)
        return self.endpoint

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def _run(self, started: Future[str]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    async def _serve(self, started: Future[str]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=_STOP_SEC, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            started.set_result(f"http://127.0.0.1:{port}/v1")
            await self._stop.wait()
            await asyncio.sleep(_STOP_SEC / 10)  # asyncio leaks what it accepts while it closes
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return error_response(401, "unauthorized")
        try:
            body: Any = await request.json()
        except ValueError:
            return error_response(400, "the body is not JSON")
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):  # pyright: ignore[reportUnknownMemberType]
            return error_response(400, "messages is missing")
        return await self.respond(request, body)  # pyright: ignore[reportUnknownArgumentType]


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    """An OpenAI-style error."""
    error = {"message": message, "type": "error", "code": None}
    return web.json_response({"error": error}, status=status, headers=headers)


def completion(body: Json, message: Json, finish_reason: str, response_id: str) -> Json:
    """A chat completion that answers `body`; one token is one UTF-8 byte of what is said.

    Token ids and log-probs are included when the request asks for them (vLLM's
    `return_token_ids` and `logprobs`); the policy is deterministic, so each log-prob is 0.
    """
    prompt_ids, answer_ids = _ids(body["messages"]), _ids([message])
    choice: Json = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason,
        "logprobs": None,
    }
    answer: Json = {
        "id": response_id,
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model") or "",
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(answer_ids),
            "total_tokens": len(prompt_ids) + len(answer_ids),
        },
    }
    if body.get("return_token_ids"):
        answer["prompt_token_ids"], choice["token_ids"] = prompt_ids, answer_ids
    if body.get("logprobs"):
        entries = [{"token": chr(i), "bytes": [i], "logprob": 0.0} for i in answer_ids]
        choice["logprobs"] = {"content": entries}
    return answer


def _ids(messages: list[Json]) -> list[int]:
    return list(_text(messages).encode("utf-8", "replace"))


def _text(messages: list[Json]) -> str:
    parts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        parts.append(content if isinstance(content, str) else repr(content))
        calls: list[Json] = message.get("tool_calls") or []
        for call in calls:
            parts.append(f"{call['function']['name']}({call['function']['arguments']})")
    return "\n".join(parts)


def chunks(answer: Json, include_usage: bool) -> Iterator[Json]:
    """The completion as a stream's chunks of a few characters each."""
    choice: Json = answer["choices"][0]
    message: Json = choice["message"]
    head = {key: answer[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    opening = (
        {"prompt_token_ids": answer["prompt_token_ids"]} if "prompt_token_ids" in answer else {}
    )
    yield {**head, **opening, **_delta({"role": "assistant", "content": ""})}
    if message.get("reasoning_content"):
        yield {**head, **_delta({"reasoning_content": message["reasoning_content"]})}
    if message.get("refusal"):
        yield {**head, **_delta({"refusal": message["refusal"]})}
    content: str = message.get("content") or ""
    for start in range(0, len(content), _CHUNK_CHARS):
        yield {**head, **_delta({"content": content[start : start + _CHUNK_CHARS]})}
    for index, call in enumerate(message.get("tool_calls") or []):
        arguments: str = call["function"]["arguments"]
        first = {
            **call,
            "index": index,
            "function": {"name": call["function"]["name"], "arguments": ""},
        }
        yield {**head, **_delta({"tool_calls": [first]})}
        for start in range(0, len(arguments), _CHUNK_CHARS):
            piece = {
                "index": index,
                "function": {"arguments": arguments[start : start + _CHUNK_CHARS]},
            }
            yield {**head, **_delta({"tool_calls": [piece]})}
    own = ("index", "message", "finish_reason")
    extras = {key: value for key, value in choice.items() if key not in own and value is not None}
    yield {**head, **_delta({}, finish_reason=choice["finish_reason"], **extras)}
    if include_usage:
        yield {**head, "choices": [], "usage": answer["usage"]}


def _delta(delta: Json, finish_reason: str | None = None, **extras: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, **extras}]}


async def send(
    request: web.Request, body: Json, answer: Json, *, delay_sec: float = 0.0
) -> web.StreamResponse:
    """Send a completion, streamed if the request asks for it; `delay_sec` is between chunks."""
    if not body.get("stream"):
        return web.json_response(answer)
    options: Json = body.get("stream_options") or {}
    usage = bool(options.get("include_usage"))
    return await send_stream(
        request, [*map(json.dumps, chunks(answer, usage)), DONE], delay_sec=delay_sec
    )


async def send_stream(
    request: web.Request, events: Iterable[str], *, delay_sec: float = 0.0
) -> web.StreamResponse:
    """Send events one by one."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event_stream([event]))
        if delay_sec:
            await asyncio.sleep(delay_sec)
    await response.write_eof()
    return response
