"""One call: asked of the policy as chat completions, answered in the caller's dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from osmosis_core import PolicyError
from osmosis_core.errors import one_line
from osmosis_core.policy import EventReader, WireRequest, WireResponse, bound_headers, exchange
from osmosis_gateway.admission import Caller, Refusal
from osmosis_gateway.parts import Json

_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
_JSON = {"content-type": "application/json"}
_ENDED = Refusal(410, "the rollout has ended")


def error_response(dialect: Any, refusal: Refusal) -> Response:
    """A refusal in the dialect's shape; clients that retry are told not to."""
    headers = {"x-should-retry": "false"}
    if refusal.retry_after is not None:
        headers["retry-after"] = refusal.retry_after
    return JSONResponse(dialect.error(refusal.status, refusal.message), refusal.status, headers)


class Answering:
    """An ASGI response; a caller that goes away, or a rollout that ends, cancels the call."""

    def __init__(self, caller: Caller, dialect: Any, body: Json, asked: Json) -> None:
        self._caller, self._dialect, self._body, self._asked = caller, dialect, body, asked
        self._stream: Any = None
        """The stream's translator, once its answer has begun."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        in_flight = self._caller.in_flight
        if in_flight.has_ended:
            await self._fail(_ENDED, scope, receive, send)
            return
        work = asyncio.create_task(self._answer(scope, receive, send), context=self._context())
        gone = asyncio.create_task(_disconnected(receive))
        in_flight.tasks.add(work)
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_gone = gone.done()
            for task in (work, gone):
                task.cancel()
            await asyncio.wait((work, gone))
            in_flight.tasks.discard(work)
            if self._caller.on_answered is not None:
                self._caller.on_answered(self._caller.rollout)
        if not work.cancelled():
            work.result()
        elif not is_gone:
            await self._fail(_ENDED, scope, receive, send)

    def _context(self) -> Any:
        context = self._caller.context
        return None if context is None else context.copy()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._ask()
        is_stream = "event-stream" in answer.headers["content-type"]
        try:
            if answer.status >= 400:
                raise _refusal(answer)
            if is_stream:
                await self._send_stream(answer, send)
            else:
                told = self._dialect.from_chat(json.loads(answer.body), self._body)
                await Response(json.dumps(told), 200, _JSON)(scope, receive, send)
        except Refusal as refusal:
            await self._fail(refusal, scope, receive, send)
        except (PolicyError, AttributeError, KeyError, TypeError, ValueError) as error:
            text = str(error) if isinstance(error, PolicyError) else "its answer is malformed"
            await self._fail(Refusal(502, f"policy: {text}"), scope, receive, send)

    async def _ask(self) -> WireResponse:
        caller, is_teed = self._caller, bool(self._asked.get("stream"))
        headers = _JSON | bound_headers(
            caller.rollout, caller.sample_id, trainable=caller.trainable, tee=is_teed
        )
        body = json.dumps(self._asked, ensure_ascii=False).encode("utf-8", "replace")
        return await exchange(WireRequest("POST", "/chat/completions", headers, body))

    async def _send_stream(self, answer: WireResponse, send: Send) -> None:
        stream = self._dialect.Stream(self._body)
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        self._stream = stream
        async with aclosing(_chunks(answer)) as chunks:
            async for some in chunks:
                await _send_events(send, (event for chunk in some for event in stream.feed(chunk)))
        await _send_events(send, stream.close(), more=False)

    async def _fail(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream is None:
            await error_response(self._dialect, refusal)(scope, receive, send)
        else:
            events = self._stream.fail(refusal.status, refusal.message)
            await _send_events(send, events, more=False)


def _refusal(answer: WireResponse) -> Refusal:
    """The policy's own words, or those of our transport."""
    said: Any = None
    with suppress(ValueError):
        said = json.loads(answer.body)
    while isinstance(said, dict):
        said = said.get("error") or said.get("message")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    said = said or (answer.call and answer.call.error) or "it refused"  # pyright: ignore[reportUnknownVariableType]
    retry_after = answer.headers.get("retry-after")
    return Refusal(answer.status, one_line(str(said)), retry_after)  # pyright: ignore[reportUnknownArgumentType]


async def _chunks(answer: WireResponse) -> AsyncGenerator[list[Json]]:
    """Chat completion chunks, as many at a time as came together."""
    reader = EventReader()
    if answer.deltas is None:
        yield [json.loads(data) for data in reader.feed(answer.body) if data != "[DONE]"]
        return
    async with aclosing(answer.deltas) as deltas:
        async for piece in deltas:
            chunks = [json.loads(data) for data in reader.feed(piece) if data.strip() != "[DONE]"]
            if chunks:
                yield chunks


async def _send_events(send: Send, events: Iterator[str], *, more: bool = True) -> None:
    told: list[str] = []
    try:
        told.extend(events)
    except BaseException:
        more = True  # an event that says so follows
        raise
    finally:
        if told or not more:
            body = "".join(told).encode()
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
