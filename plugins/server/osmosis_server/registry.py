"""The rollouts that have not ended, and who waits for them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from osmosis_core import RolloutStatus
from osmosis_core.backend import CancelDisposition
from osmosis_server.journal import Stored
from osmosis_server.submissions import RolloutView, Submission

_COALESCE_SEC = 0.05
_RECENT = 1024
_RECENT_BYTES = 16 * 1024


class Rollout:
    """One rollout from its admission until its end is written."""

    __slots__ = (
        "disposition",
        "has_begun",
        "id",
        "is_ended",
        "is_told",
        "lease",
        "lease_until",
        "protocol",
        "seq",
        "size",
        "status",
        "submission",
        "submitted_at",
        "task",
        "timer",
        "waiters",
        "wake_timer",
    )

    def __init__(self, rollout_id: str, protocol: str, lease: bytes | None) -> None:
        self.id = rollout_id
        self.protocol = protocol
        self.lease = lease
        self.seq = self.size = 0
        self.submission: Submission | None = None
        """Kept while it runs, and while it waits if it is small; the journal has it."""
        self.submitted_at = time.monotonic()
        self.status = RolloutStatus.QUEUED
        self.disposition: CancelDisposition | None = None
        self.has_begun = False
        """The journal says that it may have run."""
        self.is_told = False
        self.is_ended = False
        """Its result is known; nothing that happens later counts."""
        self.lease_until = 0.0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.wake_timer: asyncio.TimerHandle | None = None
        self.waiters: list[asyncio.Future[RolloutView]] = []


class Registry:
    """Rollouts by id while they are not over, and the latest that are.

    Args:
        status_of: what to say of one that runs.
    """

    def __init__(self, status_of: Callable[[Rollout], RolloutStatus]) -> None:
        self.active: dict[str, Rollout] = {}
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self._status_of = status_of
        self._recent: OrderedDict[str, tuple[float, Stored]] = OrderedDict()

    def add(self, rollout: Rollout) -> None:
        """Take in one that was admitted."""
        self.active[rollout.id] = rollout
        self.is_empty.clear()

    def view(self, rollout: Rollout) -> RolloutView:
        """Where one that is not over is."""
        return RolloutView(rollout.id, self._status_of(rollout))

    def recent(self, rollout_id: str) -> Stored | None:
        """One that ended lately; the journal has them all."""
        return self._recent.get(rollout_id, (0.0, None))[1]

    def forget(self, before: float) -> None:
        """Let go of those that ended before that moment."""
        while self._recent and next(iter(self._recent.values()))[0] < before:
            self._recent.popitem(last=False)

    async def changed(self, rollout: Rollout, timeout_sec: float) -> RolloutView:
        """Its view when its status has changed, or after the timeout."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RolloutView] = loop.create_future()
        rollout.waiters.append(future)
        timer = loop.call_later(timeout_sec, self._answer, rollout, future)
        try:
            return await future
        finally:
            timer.cancel()
            if future in rollout.waiters:
                rollout.waiters.remove(future)

    def _answer(self, rollout: Rollout, future: asyncio.Future[RolloutView]) -> None:
        if not future.done():
            future.set_result(self.view(rollout))

    def change(self, rollout: Rollout, status: RolloutStatus) -> None:
        """Note a new status; who waits hears of it a little later, unless the end comes first."""
        rollout.status = status
        if rollout.waiters and rollout.wake_timer is None:
            loop = asyncio.get_running_loop()
            rollout.wake_timer = loop.call_later(_COALESCE_SEC, self._wake, rollout)

    def _wake(self, rollout: Rollout) -> None:
        rollout.wake_timer = None
        for future in rollout.waiters:
            self._answer(rollout, future)

    def remove(self, rollout: Rollout, view: RolloutView) -> None:
        """Let go of one whose end is written, and tell who waits."""
        del self.active[rollout.id]
        if not self.active:
            self.is_empty.set()
        if rollout.wake_timer is not None:
            rollout.wake_timer.cancel()
        for future in rollout.waiters:
            if not future.done():
                future.set_result(view)
        rollout.waiters.clear()
        if view.body is not None and len(view.body) <= _RECENT_BYTES:
            self._recent[rollout.id] = time.time(), Stored(view, rollout.lease)
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
