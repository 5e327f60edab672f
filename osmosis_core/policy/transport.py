"""Bind, label, send, retry and record every call to the policy; nothing above it retries."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from osmosis_core.active import set_last_call
from osmosis_core.context import RolloutContext
from osmosis_core.errors import PolicyError
from osmosis_core.plugins import get_plugins
from osmosis_core.policy import binding
from osmosis_core.policy.assemble import Json, short_stream
from osmosis_core.policy.attempt import Outcome, attempt
from osmosis_core.policy.binding import Binding, WireRequest, WireResponse
from osmosis_core.policy.calls import begin_call, complete_call, end_call
from osmosis_core.policy.dialect import Asked, ask, learn, refused_by, without_captured
from osmosis_core.policy.retry import RetryPlan
from osmosis_core.policy.wire import run_blocking
from osmosis_core.records import Attempt, PolicyCall

_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}

type OnDelta = Callable[[bytes], None]


@dataclass(slots=True)
class _Exchange:
    """One request on its way: what the framework asked, what goes out, and the record."""

    binding: Binding
    request: WireRequest
    headers: dict[str, str]
    chat: Json | None
    """The framework's chat completion request; None for anything else, which is only passed on."""
    call: PolicyCall | None = None
    asked: Asked | None = None
    on_delta: OnDelta | None = None
    has_deltas: bool = False
    """True once the framework was given a part of the answer."""


async def exchange(request: WireRequest) -> WireResponse:
    """Send a request to the active rollout's policy.

    A failed call is an answer with an error status and an OpenAI-style error body, recorded as
    failed; it never raises but for a missing rollout and for cancellation. With deltas, a stream
    that breaks after its first part raises PolicyError where it is read.
    """
    sent = _prepare(request)
    is_teed = sent.binding.context.wire.tee or binding.TEE_HEADER in request.headers
    if is_teed and sent.chat is not None and sent.chat.get("stream"):
        return await _teed(sent)
    return await _exchange(sent)


def exchange_blocking(request: WireRequest) -> WireResponse:
    """As `exchange`, for synchronous clients and without deltas; bound in the calling thread."""
    return run_blocking(_exchange(_prepare(request)))


async def _teed(sent: _Exchange) -> WireResponse:
    """Begin to answer with the first delta; before that a failed try is tried again as ever."""
    deltas: asyncio.Queue[bytes] = asyncio.Queue()

    def give(chunk: bytes) -> None:
        sent.has_deltas = True
        deltas.put_nowait(chunk)

    sent.on_delta = give
    task = asyncio.create_task(_exchange(sent))
    task.add_done_callback(lambda _: deltas.put_nowait(b""))
    try:
        first = await deltas.get()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if not first:
        return await task
    return WireResponse(200, _EVENTS, b"", sent.call, _deltas(task, deltas, first))


async def _deltas(
    task: asyncio.Task[WireResponse], deltas: asyncio.Queue[bytes], chunk: bytes
) -> AsyncGenerator[bytes]:
    try:
        while chunk:
            yield chunk
            chunk = await deltas.get()
        call = task.result().call
        if call is not None and call.error is not None:
            raise PolicyError(call.error)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def _exchange(sent: _Exchange) -> WireResponse:
    started = time.monotonic()
    outcome = Outcome(error="cancelled before the answer was complete")
    try:
        outcome = await _send(sent)
    finally:
        if sent.call is not None:
            _finish(sent.binding.context, sent.call, outcome, time.monotonic() - started)
    return _answer(sent, outcome)


def _finish(
    context: RolloutContext, call: PolicyCall, outcome: Outcome, duration_sec: float
) -> None:
    call.duration_sec = duration_sec
    if outcome.completion is not None:
        complete_call(call, outcome.completion)
    else:
        call.error = outcome.error
    end_call(context, call)
    get_plugins().notify("osmosis_policy_call_finished", call=call)


def _prepare(request: WireRequest) -> _Exchange:
    bound = binding.bind(request)
    headers = binding.request_headers(request, bound)
    sent = _Exchange(bound, request, headers, binding.chat_body(request))
    if sent.chat is not None:
        sent.call = begin_call(bound.context, bound.scope, sent.chat)
        set_last_call(sent.call)
        _ask(sent, sent.call)
    return sent


def _ask(sent: _Exchange, call: PolicyCall) -> None:
    """Write the request anew from what the framework asked and the endpoint understands."""
    context, chat = sent.binding.context, sent.chat
    assert chat is not None
    sent.asked = ask(chat, context, refused_by(context.chat_completions_url))
    call.request = sent.asked.body


async def _send(sent: _Exchange) -> Outcome:
    context = sent.binding.context
    url = binding.policy_url(context, sent.request.path)
    if url is None:
        what = "an unusable" if context.chat_completions_url else "no"
        return Outcome(
            error=f"the active rollout has {what} policy URL; give RolloutContext "
            "chat_completions_url= (or OSMOSIS_CHAT_COMPLETIONS_URL) as http://host:port/v1, and "
            "the key as api_key="
        )
    left = None if context.deadline is None else context.deadline - time.monotonic()
    try:
        async with asyncio.timeout(left):
            return await _attempts(sent, url)
    except TimeoutError:
        return Outcome(error="no answer of the policy before the rollout's deadline", status=504)


async def _attempts(sent: _Exchange, url: str) -> Outcome:
    context = sent.binding.context
    plan = RetryPlan(context.retry, context.deadline)
    refused = refused_by(context.chat_completions_url)
    while True:
        outcome = await _attempt(sent, url)
        asked, call = sent.asked, sent.call
        if asked and call and learn(refused, asked, outcome.status, outcome.detail):
            _ask(sent, call)
            continue
        delay_sec = None if sent.has_deltas else plan.delay_before_retry(outcome)
        if delay_sec is None:
            return outcome
        await asyncio.sleep(delay_sec)


async def _attempt(sent: _Exchange, url: str) -> Outcome:
    context, call, began = sent.binding.context, sent.call, time.monotonic()
    outcome = Outcome(error="given up before the answer was complete")
    try:
        outcome = await attempt(
            sent.request.method,
            url,
            sent.headers,
            sent.request.body if sent.asked is None else _encoded(sent.asked.body),
            is_chat=call is not None,
            read_timeout_sec=sent.request.read_timeout_sec,
            secret=context.api_key,
            on_delta=sent.on_delta,
        )
    finally:
        if call is not None:
            took = time.monotonic() - began
            number = len(call.attempts) + 1
            call.attempts.append(Attempt(number, took, outcome.status, outcome.error))
    return outcome


def _encoded(body: Json) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _answer(sent: _Exchange, outcome: Outcome) -> WireResponse:
    if outcome.error is not None:
        headers = {**_JSON, "retry-after": outcome.retry_after} if outcome.retry_after else _JSON
        return WireResponse(outcome.error_status, headers, outcome.error_body, sent.call)
    if outcome.completion is None or sent.asked is None or sent.chat is None:
        content_type = {"content-type": outcome.content_type}
        return WireResponse(outcome.status or 200, content_type, outcome.body)
    completion = without_captured(outcome.completion, sent.asked)
    if sent.chat.get("stream"):
        options: Json = sent.chat.get("stream_options") or {}
        stream = short_stream(completion, bool(options.get("include_usage")))
        return WireResponse(200, _EVENTS, stream, sent.call)
    return WireResponse(
        200, _JSON, json.dumps(completion, separators=(",", ":")).encode(), sent.call
    )
