"""What `/metrics` says, for Prometheus: labels are few words each, never ids, urls or models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from osmosis_core import ExecutionResult, PolicyCall
from osmosis_server.observer import ServiceObserver
from osmosis_server.stats import Stats
from osmosis_server.submissions import Submission

_SHORT = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LONG = (0.05, 0.25, 1, 5, 15, 60, 180, 600, 1800, 3600, 7200)
_TOKENS = {"prompt": "prompt_tokens", "completion": "completion_tokens"}


class Metrics(ServiceObserver):
    """The figures of one server, in a registry of its own.

    Args:
        stats: gives the service's figures, whenever they are asked for.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_ServiceCollector(stats))
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

    def rollout_ended(self, submission: Submission, result: ExecutionResult) -> None:
        """Count a rollout and its policy calls."""
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


class _ServiceCollector(Collector):
    """The service counts for itself; here its figures get their names."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Nothing before there is a service."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All figures of now."""
        now = self._stats()
        yield _counter("rollouts_admitted", "Rollouts that were accepted.", now.admitted)
        yield _counters("rollouts_refused", "Submissions refused.", "reason", now.refused)
        yield _counters("rollouts_finished", "Rollouts that ended.", "status", now.finished)
        states = {"queued": now.queued, "running": now.running}
        yield _gauges("rollouts", "Rollouts that have not ended.", "state", states)
        outcomes = {
            "taken": now.delivered,
            "refused": now.deliveries_refused,
            "expired": now.deliveries_expired,
        }
        yield _counters("deliveries", "Callbacks by how they ended.", "outcome", outcomes)
        yield _counter("delivery_retries", "Further tries of callbacks.", now.deliveries_retried)
        yield GaugeMetricFamily(
            "osmosis_deliveries_outstanding",
            "Callbacks that nobody has taken yet.",
            now.deliveries_outstanding,
        )
        yield GaugeMetricFamily(
            "osmosis_journal_bytes", "Bytes in use in the journal.", now.journal_bytes
        )


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"osmosis_{name}", text, value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"osmosis_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"osmosis_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family
