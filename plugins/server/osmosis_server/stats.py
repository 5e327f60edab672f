"""Counters of a rollout server, and what they say about when to come again."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field

_HALF_LIFE_SEC = 10.0
_DEFAULT_RETRY_SEC = 5
_MAX_RETRY_SEC = 60
_ROOM = 0.05


@dataclass(slots=True)
class Stats:
    """Counters since the start, and gauges of now."""

    admitted: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    """By the name of the refusal's class, such as `Full`."""
    finished: Counter[str] = field(default_factory=Counter[str])
    """By status."""
    delivered: int = 0
    deliveries_retried: int = 0
    deliveries_refused: int = 0
    """Given up because the controller does not want them (4xx, redirects)."""
    deliveries_expired: int = 0
    """Given up after their deadline."""
    queued: int = 0
    running: int = 0
    deliveries_outstanding: int = 0
    journal_bytes: int = 0


class Throughput:
    """How many rollouts end per second, the last seconds counting most."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._at = self._since = time.monotonic()

    def count(self) -> None:
        """One ended."""
        self._decay()
        self._weight += 1

    def retry_after_sec(self, pending: int) -> int:
        """Whole seconds until about a twentieth of what is pending has ended, 1 to 60."""
        self._decay()
        span = min(time.monotonic() - self._since, _HALF_LIFE_SEC / math.log(2))
        rate = self._weight / max(span, 1.0)
        if rate < 1e-3:
            return _DEFAULT_RETRY_SEC
        return min(_MAX_RETRY_SEC, max(1, math.ceil(pending * _ROOM / rate)))

    def _decay(self) -> None:
        now = time.monotonic()
        self._weight *= 0.5 ** ((now - self._at) / _HALF_LIFE_SEC)
        self._at = now
