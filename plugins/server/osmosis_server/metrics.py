"""What `/metrics` says, for Prometheus: labels are few words each, never ids, urls or models."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from osmosis_core import ExecutionBackend, ExecutionResult, PolicyCall
from osmosis_server.telemetry import measure

_SHORT = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LONG = (0.05, 0.25, 1, 5, 15, 60, 180, 600, 1800, 3600, 7200)
_TOKENS = {"prompt": "prompt_tokens", "completion": "completion_tokens"}


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self, backend: ExecutionBackend) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._queued = Histogram(
            "osmosis_rollout_queued_seconds",
            "Time from admission to the start of the workflow.",
            buckets=_LONG,
            registry=registry,
        )
        self._ran = Histogram(
            "osmosis_workflow_seconds",
            "Run time of workflows.",
            ["status"],
            buckets=_LONG,
            registry=registry,
        )
        self._graded = Histogram(
            "osmosis_grading_seconds", "Run time of graders.", buckets=_SHORT, registry=registry
        )
        self._calls = Histogram(
            "osmosis_policy_call_seconds",
            "Time from a call to the policy to its complete answer, retries included.",
            ["outcome"],
            buckets=_SHORT,
            registry=registry,
        )
        self._retries = Counter(
            "osmosis_policy_retries", "Further tries of policy calls.", registry=registry
        )
        self._tokens = Counter(
            "osmosis_policy_tokens", "Tokens that the policy counted.", ["kind"], registry=registry
        )
        measure(backend, self)

    def finished(self, result: ExecutionResult) -> None:
        """Count a rollout that reported its last result."""
        times = result.extra_fields
        self._queued.observe(times.get("queued_sec", 0.0))
        if "duration_sec" in times:
            self._ran.labels(result.status.value).observe(times["duration_sec"])
        if "grading_sec" in times:
            self._graded.observe(times["grading_sec"])
        for sample in result.samples.values():
            for call in sample.calls:
                self._count(call)

    def _count(self, call: PolicyCall) -> None:
        self._calls.labels("error" if call.error else "ok").observe(call.duration_sec)
        self._retries.inc(max(len(call.attempts) - 1, 0))
        for kind, name in _TOKENS.items():
            count = (call.usage or {}).get(name)
            if isinstance(count, int):
                self._tokens.labels(kind).inc(count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The figures in the format that an `Accept` header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
