"""Traces rollouts, of servers and of evaluations alike, where OpenTelemetry is set up.

Importing it does not import OpenTelemetry, and a rollout that nobody traces costs two look-ups.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from osmosis_core import ExecutionRequest, ExecutionResult

if TYPE_CHECKING:
    from osmosis_server.spans import RolloutSpan

_span: ContextVar[RolloutSpan | None] = ContextVar("osmosis_server_span", default=None)


def started(request: ExecutionRequest) -> None:
    """A backend accepted a rollout; what ends it runs in the same task."""
    tracer = _tracer()
    if tracer is not None:
        from osmosis_server.spans import RolloutSpan

        _span.set(RolloutSpan(tracer, request))


def finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    """A rollout reported its last result."""
    span = _span.get()
    if span is not None:
        _span.set(None)
        span.end(request, result)


def _tracer() -> Any:
    """A tracer where the process has set OpenTelemetry up, else None."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("osmosis")
