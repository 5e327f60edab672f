"""Bind, label, send, retry and record every call to the policy; nothing above it retries."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
import weakref
from dataclasses import dataclass, field
from typing import Any

from osmosis_core.context import (
    RolloutContext,
    Scope,
    current_scope,
    get_rollout_context,
)
from osmosis_core.errors import PolicyNotBoundError
from osmosis_core.plugins import get_plugins
from osmosis_core.policy.assemble import Json, short_stream
from osmosis_core.policy.attempt import Outcome, attempt
from osmosis_core.policy.calls import begin_call, complete_call
from osmosis_core.policy.retry import RetryPlan
from osmosis_core.policy.wire import run_blocking
from osmosis_core.types import Attempt, PolicyCall

BINDING_HEADER = "x-osmosis-binding"
_CHAT = "/chat/completions"
_HOP = ("host", "connection", "content-length", "transfer-encoding")
_DROPPED = frozenset((*_HOP, "accept-encoding", "authorization", "user-agent"))
_PRINTABLE = "".join(chr(c) for c in range(0x21, 0x7F))
_contexts: weakref.WeakValueDictionary[int, RolloutContext] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as the framework's HTTP client made it."""

    method: str
    path: str
    """Below the base URL, with the query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    read_timeout_sec: float | None = None
    """Longest silence of the server, as the client above asks for it."""


@dataclass(frozen=True, slots=True)
class WireResponse:
    """What the framework's HTTP client is given."""

    status: int
    headers: dict[str, str]
    body: bytes
    call: PolicyCall | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """Which rollout and sample a request belongs to."""

    context: RolloutContext
    scope: Scope


@dataclass(slots=True)
class _Exchange:
    """One call on its way: the request as it goes out, and its record."""

    binding: Binding
    request: WireRequest
    call: PolicyCall | None = None
    body: bytes = b""
    streamed: bool = False
    include_usage: bool = False
    headers: dict[str, str] = field(default_factory=dict[str, str])


def binding_header(context: RolloutContext, scope: Scope) -> str:
    """The value of `BINDING_HEADER` that names a rollout and a sample."""
    _contexts[id(context)] = context
    return f"{id(context)}/{scope.sample_id}/{int(scope.trainable)}"


def bind(request: WireRequest) -> Binding:
    """The rollout and sample of a request: its binding header, else the active ones.

    Raises:
        PolicyNotBoundError: neither names a rollout.
    """
    header = request.headers.get(BINDING_HEADER)
    if header:
        number, sample_id, trainable = header.split("/")
        context = _contexts.get(int(number))
        scope = Scope(sample_id, trainable == "1")
    else:
        context, scope = get_rollout_context(), current_scope()
    if context is None:
        raise PolicyNotBoundError("the policy client")
    return Binding(context, scope)


async def exchange(request: WireRequest) -> WireResponse:
    """Send a request to the active rollout's policy.

    A failed call is an answer with an error status and an OpenAI-style error body, recorded as
    failed; it never raises but for a missing rollout and for cancellation.
    """
    return await _exchange(request, bind(request))


def exchange_blocking(request: WireRequest) -> WireResponse:
    """As `exchange`, for synchronous clients; the rollout is that of the calling thread."""
    return run_blocking(_exchange(request, bind(request)))


async def _exchange(request: WireRequest, binding: Binding) -> WireResponse:
    started = time.monotonic()
    sent = _prepare(request, binding)
    outcome = Outcome.failed("cancelled before the answer was complete")
    try:
        outcome = await _send(sent)
    finally:
        if sent.call is not None:
            _finish(sent.call, outcome, time.monotonic() - started)
    return _forwarded(outcome) if sent.call is None else _answer(sent, outcome, sent.call)


def _finish(call: PolicyCall, outcome: Outcome, duration_sec: float) -> None:
    call.duration_sec = duration_sec
    if outcome.completion is not None:
        complete_call(call, outcome.completion)
    else:
        call.error = outcome.error
    get_plugins().notify("osmosis_policy_call_finished", call=call)


def _prepare(request: WireRequest, binding: Binding) -> _Exchange:
    context = binding.context
    sent = _Exchange(binding, request, body=request.body)
    body = _chat_body(request)
    if body is not None:
        body["model"] = context.model or "osmosis-rollout"
        sent.streamed = bool(body.get("stream"))
        options: Json = body.get("stream_options") or {}
        sent.include_usage = bool(options.get("include_usage"))
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        sent.body = text.encode("utf-8", "replace")
        sent.call = begin_call(context, binding.scope, body)
    sent.headers = {
        name: value
        for name, value in request.headers.items()
        if name not in _DROPPED and not name.startswith(("x-stainless-", "openai-", "x-osmosis-"))
    }
    sent.headers["user-agent"] = "osmosis-core"
    if context.rollout_id:
        sent.headers["x-rollout-id"] = urllib.parse.quote(context.rollout_id, safe=_PRINTABLE)
    sent.headers["x-sample-id"] = binding.scope.sample_id
    if context.api_key:
        sent.headers["authorization"] = f"Bearer {context.api_key}"
    return sent


def _chat_body(request: WireRequest) -> Json | None:
    """The body of a chat completion request; None for anything else, which goes out as it is."""
    if request.method != "POST" or not request.path.partition("?")[0].endswith(_CHAT):
        return None
    try:
        body: Any = json.loads(request.body)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None  # pyright: ignore[reportUnknownVariableType]


async def _send(sent: _Exchange) -> Outcome:
    context = sent.binding.context
    if not context.chat_completions_url:
        return Outcome.failed(
            "the active rollout has no policy URL; give RolloutContext chat_completions_url=, or "
            "set OSMOSIS_CHAT_COMPLETIONS_URL"
        )
    left = None if context.deadline is None else context.deadline - time.monotonic()
    try:
        async with asyncio.timeout(left):
            return await _attempts(sent)
    except TimeoutError:
        return Outcome.failed("no answer of the policy before the rollout's deadline", status=504)


async def _attempts(sent: _Exchange) -> Outcome:
    context = sent.binding.context
    plan = RetryPlan(context.retry, context.deadline)
    url = context.chat_completions_url.rstrip("/") + sent.request.path
    while True:
        began = time.monotonic()
        outcome = Outcome.failed("given up before the answer was complete")
        try:
            outcome = await attempt(
                sent.request.method,
                url,
                sent.headers,
                sent.body,
                is_chat=sent.call is not None,
                read_timeout_sec=sent.request.read_timeout_sec,
                secret=context.api_key,
            )
        finally:
            if sent.call is not None:
                number, took = len(sent.call.attempts) + 1, time.monotonic() - began
                sent.call.attempts.append(Attempt(number, took, outcome.status, outcome.error))
        delay_sec = plan.delay_before_retry(outcome)
        if delay_sec is None:
            return outcome
        await asyncio.sleep(delay_sec)


def _answer(sent: _Exchange, outcome: Outcome, call: PolicyCall) -> WireResponse:
    completion = outcome.completion
    if completion is None:
        return WireResponse(
            outcome.error_status, {"content-type": "application/json"}, outcome.error_body, call
        )
    if sent.streamed:
        body = short_stream(completion, sent.include_usage)
        return WireResponse(200, {"content-type": "text/event-stream"}, body, call)
    body = json.dumps(completion, separators=(",", ":")).encode()
    return WireResponse(200, {"content-type": "application/json"}, body, call)


def _forwarded(outcome: Outcome) -> WireResponse:
    """The answer to a request that is not a chat completion, as the endpoint gave it."""
    if outcome.error is not None:
        return WireResponse(
            outcome.error_status, {"content-type": "application/json"}, outcome.error_body
        )
    return WireResponse(outcome.status or 200, {"content-type": outcome.content_type}, outcome.body)
