"""What this distribution offers to osmosis."""

from __future__ import annotations

from osmosis_core import ExecutionBackend, ExecutionRequest, ExecutionResult, hookimpl
from osmosis_server import telemetry


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest, backend: ExecutionBackend) -> None:
    """Begin its trace, where OpenTelemetry is set up."""
    telemetry.started(request, backend)


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    """End its trace, and count it where its server has metrics."""
    telemetry.finished(request, result)
