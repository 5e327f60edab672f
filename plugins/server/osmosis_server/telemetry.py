"""Watches rollouts, of servers and of evaluations alike, for their metrics and traces.

Importing it imports neither Prometheus nor OpenTelemetry, and a rollout that nobody measures costs
two look-ups.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from osmosis_core import ExecutionBackend, ExecutionRequest, ExecutionResult

if TYPE_CHECKING:
    from osmosis_server.metrics import Metrics
    from osmosis_server.spans import RolloutSpan


@dataclass(frozen=True, slots=True)
class _Watched:
    metrics: Metrics | None
    span: RolloutSpan | None


_watched: ContextVar[_Watched | None] = ContextVar("osmosis_server_watched", default=None)
_metrics: WeakKeyDictionary[ExecutionBackend, Metrics] = WeakKeyDictionary()


def measure(backend: ExecutionBackend, metrics: Metrics) -> None:
    """From now on, count the rollouts of a backend."""
    _metrics[backend] = metrics


def started(request: ExecutionRequest, backend: ExecutionBackend) -> None:
    """A backend accepted a rollout; what ends it runs in the same task."""
    metrics, tracer = _metrics.get(backend), _tracer()
    span = None
    if tracer is not None:
        from osmosis_server.spans import RolloutSpan

        span = RolloutSpan(tracer, request)
    _watched.set(_Watched(metrics, span) if metrics or span else None)


def finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    """A rollout reported its last result."""
    watched = _watched.get()
    if watched is None:
        return
    _watched.set(None)
    if watched.metrics is not None:
        watched.metrics.finished(result)
    if watched.span is not None:
        watched.span.end(request, result)


def _tracer() -> Any:
    """A tracer where the process has set OpenTelemetry up, else None."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("osmosis")
