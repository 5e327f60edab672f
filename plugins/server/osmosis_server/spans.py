"""A rollout as OpenTelemetry spans: rollout > workflow > policy calls, and rollout > grade.

The rollout's span is the current one while it runs, so spans of user code and of instrumented
libraries are below it. Its parts are written at its end, from its result: that way they are the
same wherever a backend ran it. Names follow the conventions for generative AI where these say any.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import time
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from osmosis_core import ExecutionRequest, ExecutionResult, PolicyCall, RolloutStatus

type _Attributes = dict[str, Any]


class RolloutSpan:
    """The span of one rollout; ends in the task that it began in."""

    def __init__(self, tracer: Tracer, request: ExecutionRequest) -> None:
        self._tracer = tracer
        self._began_ns = time.time_ns()
        about = {"osmosis.rollout_id": request.id}
        self._span = tracer.start_span("rollout", start_time=self._began_ns, attributes=about)
        self._inside = trace.set_span_in_context(self._span)
        self._token = context.attach(self._inside)

    def end(self, request: ExecutionRequest, result: ExecutionResult) -> None:
        """End it and write the spans of its parts."""
        context.detach(self._token)
        times = result.extra_fields
        began = self._began_ns + _ns(times.get("queued_sec"))
        ended = began + _ns(times.get("duration_sec"))
        about: _Attributes = {"osmosis.rollout_id": request.id}
        below = self._part("workflow", self._inside, began, ended, about)
        calls = [call for sample in result.samples.values() for call in sample.calls]
        for call in sorted(calls, key=lambda call: call.index):
            self._call(call, below)
        if "grading_sec" in times:
            graded = ended + _ns(times["grading_sec"])
            self._part("grade", self._inside, ended, graded, about)
        self._span.set_attributes(_outcome(result))
        if result.status is RolloutStatus.FAILURE:
            self._span.set_status(Status(StatusCode.ERROR, result.err_message))
        self._span.end()

    def _call(self, call: PolicyCall, below: Context) -> None:
        began = int(call.started_at * 1e9)
        model = call.request.get("model") or "?"
        error = call.error
        self._part(
            f"chat {model}",
            below,
            began,
            began + _ns(call.duration_sec),
            _call_attributes(call),
            kind=SpanKind.CLIENT,
            error=error,
        )

    def _part(
        self,
        name: str,
        parent: Context,
        began_ns: int,
        ended_ns: int,
        attributes: _Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
    ) -> Context:
        span = self._tracer.start_span(
            name, parent, kind=kind, start_time=began_ns, attributes=attributes
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended_ns)
        return trace.set_span_in_context(span)


def _outcome(result: ExecutionResult) -> _Attributes:
    outcome: _Attributes = {
        "osmosis.status": result.status.value,
        "osmosis.samples": len(result.samples),
    }
    if result.err_category is not None:
        outcome["error.type"] = result.err_category.value
    return outcome


def _call_attributes(call: PolicyCall) -> _Attributes:
    usage = call.usage or {}
    found: _Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": call.request.get("model"),
        "gen_ai.response.model": call.model,
        "gen_ai.response.id": call.response_id,
        "gen_ai.response.finish_reasons": [call.finish_reason] if call.finish_reason else None,
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "osmosis.rollout_id": call.rollout_id,
        "osmosis.sample_id": call.sample_id,
        "osmosis.call_id": call.call_id,
        "osmosis.attempts": len(call.attempts),
        "error.type": "http_error" if call.error is not None else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ns(seconds: Any) -> int:
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0
