"""Polling controllers renew a lease; who stops polling loses the rollout."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from osmosis_server.registry import Rollout

_SLICE = 100


class Leases:
    """The leases of rollouts that are not over, in the order in which they expire.

    Args:
        timeout_sec: how long a lease lasts.
        on_expired: called on the event loop with each rollout whose lease ran out.
    """

    def __init__(self, timeout_sec: float, on_expired: Callable[[Rollout], None]) -> None:
        self._timeout_sec = timeout_sec
        self._on_expired = on_expired
        self._held: OrderedDict[str, Rollout] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def renew(self, rollout: Rollout) -> None:
        """Start the lease, or start it again."""
        rollout.lease_until = time.monotonic() + self._timeout_sec
        self._held[rollout.id] = rollout
        self._held.move_to_end(rollout.id)
        if self._timer is None:
            self._wake_at(rollout.lease_until)

    def drop(self, rollout: Rollout) -> None:
        """The rollout is over."""
        self._held.pop(rollout.id, None)

    def close(self) -> None:
        """Let every lease be."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, moment: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, moment - time.monotonic()), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = time.monotonic()
        for _ in range(_SLICE):
            first = next(iter(self._held.values()), None)
            if first is None or first.lease_until > now:
                break
            del self._held[first.id]
            self._on_expired(first)
        if self._held:
            self._wake_at(next(iter(self._held.values())).lease_until)
