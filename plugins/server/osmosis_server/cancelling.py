"""Ends rollouts early: on request, when nobody polls any more, when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from osmosis_core import ExecutionBackend, ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_core.backend import CancelDisposition, select_rollouts
from osmosis_core.execution import RolloutCancelled, failed
from osmosis_server.registry import Registry, Rollout
from osmosis_server.reporter import Reporter
from osmosis_server.runner import Runner

logger = logging.getLogger(__name__)


class Canceller:
    """Asks the backend first; an execution that it does not know is cancelled as a task."""

    def __init__(
        self, backend: ExecutionBackend, registry: Registry, reporter: Reporter, runner: Runner
    ) -> None:
        self._backend = backend
        self._registry = registry
        self._reporter = reporter
        self._runner = runner
        self._chores: set[asyncio.Task[None]] = set()

    async def cancel(
        self, ids: Iterable[str] | None, prefix: str | None, all: bool
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector; says the same of a rollout until it has ended.

        Raises:
            ValueError: not exactly one selector was given.
        """
        active = self._registry.active
        selected = select_rollouts(active, ids, prefix, all)
        found = [active[rollout_id] for rollout_id in selected if rollout_id in active]
        await self._stop([rollout for rollout in found if self._is_new(rollout)])
        dispositions: dict[str, CancelDisposition] = dict.fromkeys(selected, "not_found")
        for rollout in found:
            dispositions[rollout.id] = rollout.disposition or "not_found"
        return dispositions

    def _is_new(self, rollout: Rollout) -> bool:
        """Whether it runs and was not cancelled before; one that waits is cancelled here."""
        if rollout.disposition is not None or rollout.is_ended:
            return False
        if self._runner.withdraw(rollout, failed(RolloutCancelled(), {})):
            rollout.disposition = "cancelled_queued"
            return False
        return rollout.task is not None

    async def _stop(self, rollouts: list[Rollout]) -> None:
        if not rollouts:
            return
        for rollout in rollouts:
            rollout.disposition = "cancelled_running"
        found: dict[str, CancelDisposition] = {}
        try:
            found = await self._backend.cancel_rollouts(ids=[rollout.id for rollout in rollouts])
        except Exception:  # boundary: backends are anybody's
            logger.exception("%s.cancel_rollouts raised", type(self._backend).__name__)
        for rollout in rollouts:
            disposition = found.get(rollout.id, "not_found")
            if disposition != "not_found":
                rollout.disposition = disposition
            elif not self.force(rollout):
                rollout.disposition = None

    def force(self, rollout: Rollout) -> bool:
        """Cancel the task of an execution, whatever the backend says; False if it is over."""
        if rollout.task is None:
            return False
        rollout.task.cancel()
        return True

    def lease_expired(self, rollout: Rollout) -> None:
        """Nobody polls: it fails now, and its execution is cancelled."""
        expired = ExecutionResult(
            RolloutStatus.FAILURE,
            err_message="polling lease expired",
            err_category=RolloutErrorCategory.LEASE_EXPIRED,
        )
        if self._runner.withdraw(rollout, expired):
            return
        self._runner.end([rollout], expired)
        chore = asyncio.create_task(self._stop([rollout]))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
