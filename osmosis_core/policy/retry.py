"""When to try a failed policy call again, and how long to wait first."""

import email.utils
import math
import random
import time
from contextlib import suppress

from osmosis_core.config import RetryPolicy
from osmosis_core.policy.attempt import Outcome

_PAUSED = (425, 503)


class RetryPlan:
    """The state of one call's retries."""

    def __init__(self, policy: RetryPolicy, deadline: float | None) -> None:
        self._policy = policy
        self._deadline = deadline
        self._tries = 0
        self._paused_sec = 0.0

    def delay_before_retry(self, outcome: Outcome) -> float | None:
        """Seconds to wait before the next try, or None when the outcome is final.

        A paused policy (425 or 503 with `Retry-After`: a weight update) uses up no try. What
        `Retry-After` asks for comes out of one budget, and nothing goes beyond the deadline.
        """
        if not outcome.retryable:
            return None
        asked = retry_after_sec(outcome.retry_after)
        if outcome.status in _PAUSED and asked:
            delay = max(asked, self._policy.base_delay_sec)
        else:
            self._tries += 1
            if self._tries >= self._policy.max_attempts:
                return None
            delay = max(asked or 0.0, self._backoff())
        self._paused_sec += delay if asked is not None else 0.0
        if self._paused_sec > self._policy.pause_budget_sec:
            return None
        is_late = self._deadline is not None and time.monotonic() + delay >= self._deadline
        return None if is_late else delay

    def _backoff(self) -> float:
        full = self._policy.base_delay_sec * 2 ** (self._tries - 1)
        return min(full, self._policy.max_delay_sec) * random.uniform(0.5, 1.0)


def retry_after_sec(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for, given as seconds or a date (RFC 9110)."""
    if value is None:
        return None
    with suppress(ValueError):
        return max(float(value), 0.0) if math.isfinite(float(value)) else None
    with suppress(ValueError):
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    return None
