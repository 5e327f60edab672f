"""A policy that says what a test tells it to: answers, tool calls, delays and every failure."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from osmosis_core.policy.assemble import Json
from osmosis_core.testing.server import (
    PolicyServer,
    chunks,
    completion,
    error_response,
    send,
    send_stream,
)


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with text."""

    text: str
    finish_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    """Why the policy declines; then `text` may be empty."""
    extra: Json = field(default_factory=dict[str, Any])
    """Further members of the completion's choice, such as `token_ids`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Call a tool; `arguments` is a mapping, or text sent as it is (for broken JSON)."""

    name: str
    arguments: Json | str = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Turn:
    """Several tool calls in one answer, with text or without."""

    tools: tuple[Tool, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before the answer, or between the chunks of its stream."""

    then: Answer
    before_sec: float = 0.0
    between_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """Refuse with an HTTP status."""

    status: int
    message: str = "scripted failure"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Begin a stream and drop the connection after some chunks; with 0, before any byte."""

    after: int = 1
    text: str = "this answer never ends"


@dataclass(frozen=True, slots=True)
class Malformed:
    """Send this as the answer's bytes, by default a chunk that is not JSON."""

    body: str = "data: {not json\n\n"
    content_type: str = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Web:
    """Answer with a web page, as a wrong URL does."""

    page: str = "<html><body>Welcome</body></html>"


@dataclass(frozen=True, slots=True)
class Endless:
    """Stream text until the client goes away."""

    every_sec: float = 0.01


type Answer = str | Say | Tool | Turn | Delay | Status | Cut | Malformed | Web | Endless


@dataclass(frozen=True, slots=True)
class Received:
    """A request that the policy got."""

    body: Json
    headers: dict[str, str]
    """Names in lower case."""

    @property
    def sample_id(self) -> str | None:
        """The sample that the call was labelled with."""
        return self.headers.get("x-sample-id")

    @property
    def rollout_id(self) -> str | None:
        """The rollout that the call was labelled with."""
        return self.headers.get("x-rollout-id")


class ScriptedPolicy(PolicyServer):
    """Answers from a list, in order, or from a function of each request.

    `with ScriptedPolicy("hello", Tool("add", {"a": 1}), Status(429)) as policy:` or
    `ScriptedPolicy(lambda request: ...)`. When a list is used up, its last answer repeats if
    `repeat` is true, else the policy answers 400 and says so. Every request is in `requests`.
    """

    def __init__(
        self,
        *script: Answer | Callable[[Received], Answer],
        repeat: bool = True,
        api_key: str | None = None,
    ) -> None:
        super().__init__(api_key=api_key)
        self.requests: list[Received] = []
        self._script = script or ("ok",)
        self._repeat = repeat
        self._lock = threading.Condition()
        self._ids = itertools.count(1)
        self._calls = itertools.count(1)

    def wait_for_requests(self, count: int, timeout_sec: float = 30.0) -> None:
        """Block until so many requests came; raises TimeoutError when they do not."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self.requests) >= count, timeout_sec):
                raise TimeoutError(f"{len(self.requests)} of {count} requests came")

    async def respond(self, request: web.Request, body: Json) -> web.StreamResponse:
        """Play the next answer."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(body, headers)
        with self._lock:
            position = len(self.requests)
            self.requests.append(received)
            self._lock.notify_all()
        if position >= len(self._script) and not self._repeat:
            return error_response(400, f"the script has only {len(self._script)} answers")
        answer = self._script[min(position, len(self._script) - 1)]
        return await self._play(request, body, answer(received) if callable(answer) else answer)

    async def _play(self, request: web.Request, body: Json, answer: Answer) -> web.StreamResponse:
        between_sec = 0.0
        if isinstance(answer, Delay):
            await asyncio.sleep(answer.before_sec)
            between_sec, answer = answer.between_sec, answer.then
        match answer:
            case Status():
                headers = {"Retry-After": answer.retry_after} if answer.retry_after else None
                return error_response(answer.status, answer.message, headers)
            case Web():
                return web.Response(text=answer.page, content_type="text/html")
            case Malformed():
                return web.Response(text=answer.body, content_type=answer.content_type)
            case Cut():
                return await self._cut(request, body, answer)
            case Endless():
                return await self._endless(request, body, answer)
            case _:
                return await send(
                    request, body, self._completion(body, answer), delay_sec=between_sec
                )

    def _completion(self, body: Json, answer: Answer) -> Json:
        message: Json = {"role": "assistant", "content": None}
        finish_reason, extra = "stop", {}
        match answer:
            case str():
                message["content"] = answer
            case Say():
                message["content"] = answer.text or None
                if answer.refusal is not None:
                    message["refusal"] = answer.refusal
                if answer.reasoning is not None:
                    message["reasoning_content"] = answer.reasoning
                finish_reason, extra = answer.finish_reason or "stop", answer.extra
            case Tool() | Turn():
                turn = answer if isinstance(answer, Turn) else Turn((answer,))
                message["content"] = turn.text
                message["tool_calls"] = [self._call(tool) for tool in turn.tools]
                finish_reason = "tool_calls"
            case _:
                raise TypeError(f"a scripted answer cannot be {answer!r}")
        completed = completion(body, message, finish_reason, f"scripted-{next(self._ids)}")
        completed["choices"][0].update(extra)
        return completed

    def _call(self, tool: Tool) -> Json:
        arguments = (
            tool.arguments if isinstance(tool.arguments, str) else json.dumps(tool.arguments)
        )
        function = {"name": tool.name, "arguments": arguments}
        return {"id": f"call_{next(self._calls)}", "type": "function", "function": function}

    async def _cut(self, request: web.Request, body: Json, cut: Cut) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if cut.after == 0:
            transport.abort()
            return web.Response()
        all_chunks = chunks(self._completion(body, cut.text), include_usage=False)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in itertools.islice(all_chunks, cut.after):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await asyncio.sleep(0.01)
        transport.abort()
        return response

    async def _endless(
        self, request: web.Request, body: Json, answer: Endless
    ) -> web.StreamResponse:
        _, chunk, *_ = chunks(self._completion(body, "more "), include_usage=False)
        text = json.dumps(chunk)
        events: Iterable[str] = itertools.repeat(text)
        try:
            return await send_stream(request, events, delay_sec=answer.every_sec)
        except ConnectionError:
            return web.Response()
