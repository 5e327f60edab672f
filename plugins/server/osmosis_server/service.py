"""The shared core behind every protocol: admit, run, cancel, result; it knows no HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import aiohttp

from osmosis_core import ExecutionBackend, RolloutStatus
from osmosis_core.backend import CancelDisposition
from osmosis_server.cancelling import Canceller
from osmosis_server.journal import Journal
from osmosis_server.journal.rows import lease_digest
from osmosis_server.leases import Leases
from osmosis_server.observer import ServiceObserver
from osmosis_server.outbox import Outbox
from osmosis_server.posting import Poster
from osmosis_server.protocols.base import Protocol
from osmosis_server.recovery import Recovery
from osmosis_server.registry import Registry, Rollout
from osmosis_server.reporter import Reporter
from osmosis_server.retention import Retention
from osmosis_server.runner import Runner
from osmosis_server.settings import ServerSettings
from osmosis_server.stats import Stats
from osmosis_server.submissions import (
    Full,
    RolloutView,
    ShuttingDown,
    Submission,
    UnknownRollout,
    WrongLease,
)

logger = logging.getLogger(__name__)
_CANCEL_SEC = 120.0
_FORCE_SEC = 10.0
_POLL_SEC = 0.01


class RolloutService:
    """Runs rollouts on a backend and remembers them in a journal.

    Args:
        backend: where rollouts run.
        journal: an open one; the service closes it.
        settings: every limit.
        protocols: by name; one whose rollouts are in the journal should stay among them.
        observer: told of ends and of acknowledgements.
        connector: makes the connector of deliveries, for instance one that checks addresses.
    """

    def __init__(
        self,
        backend: ExecutionBackend,
        journal: Journal,
        settings: ServerSettings,
        protocols: Mapping[str, Protocol],
        *,
        observer: ServiceObserver | None = None,
        connector: Callable[[], aiohttp.BaseConnector] | None = None,
    ) -> None:
        observer = observer or ServiceObserver()
        self.backend = backend
        self.settings = settings
        self._journal = journal
        self._stats = Stats()
        self._registry = Registry(self._status)
        self._leases = Leases(
            settings.polling_lease_timeout_sec,
            lambda rollout: self._canceller.lease_expired(rollout),
        )
        self._outbox = Outbox(
            journal,
            Poster(observer, settings.delivery_timeout_sec, connector),
            self._stats,
            deadline_sec=settings.delivery_deadline_sec,
            first_tries_sec=settings.delivery_timeout_sec,
        )
        self._reporter = Reporter(
            journal, self._registry, self._leases, self._outbox, protocols, observer, self._stats
        )
        self._runner = Runner(backend, journal, self._registry, self._reporter)
        self._canceller = Canceller(backend, self._registry, self._reporter, self._runner)
        self._retention = Retention(
            journal,
            self._registry,
            self._stats,
            settings.result_retention_sec,
            settings.max_journal_bytes,
            kept=lambda: [run.seq for run in self._runner.running.values() if run.is_ended],
        )
        self._admitting = 0
        self._drained: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on where the journal ends: outstanding deliveries, unfinished rollouts."""
        await self._outbox.start()
        recovery = Recovery(
            self._journal,
            self._registry,
            self._leases,
            self._reporter,
            self._runner,
            self.settings.on_restart,
        )
        await recovery.run()
        self._retention.start()

    async def admit(self, submission: Submission) -> RolloutView:
        """Accept a rollout; it is in the journal when this returns, and runs even if the caller
        is gone by then.

        Raises:
            ShuttingDown: the server drains.
            Full: too many are pending, the backend takes no more, or the journal cannot.
            Duplicate: the id is known.
        """
        refusal = self._refusal()
        if refusal is None:
            rollout = Rollout(
                submission.request.id, submission.protocol, lease_digest(submission.lease_token)
            )
            future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            self._admitting += 1
            done = partial(self._admitted, rollout, submission, future)
            rollout.has_begun = self._runner.begins_now(self._admitting)
            written = self._journal.admit(submission, done, begins=rollout.has_begun)
            rollout.seq, rollout.size = written.seq, written.size
            refusal = await future
        if refusal is not None:
            self._stats.refused[type(refusal).__name__] += 1
            raise refusal
        return RolloutView(submission.request.id, RolloutStatus.QUEUED)

    def _refusal(self) -> Exception | None:
        if self._drained is not None:
            return ShuttingDown("rollout server is shutting down")
        pending = len(self._registry.active) + self._admitting
        if (
            pending >= self.settings.max_pending
            or self._retention.is_full
            or not self.backend.has_capacity()
        ):
            retry_after_sec = self._reporter.throughput.retry_after_sec(pending)
            return Full("rollout queue is full; retry later", retry_after_sec)
        return None

    def _admitted(
        self,
        rollout: Rollout,
        submission: Submission,
        future: asyncio.Future[Exception | None],
        error: Exception | None,
    ) -> None:
        self._admitting -= 1
        if not future.done():
            future.set_result(error)
        if error is not None:
            return
        self._stats.admitted += 1
        self._registry.add(rollout)
        if rollout.lease is not None:
            self._leases.renew(rollout)
        self._runner.put(rollout, submission, rollout.size)

    async def wait(self, rollout_id: str, lease_token: str, timeout_sec: float) -> RolloutView:
        """Wait until the rollout's status changes, and renew its lease; at once if it has ended.

        Raises:
            UnknownRollout: there is none, or it is forgotten.
            WrongLease: the token is not its.
        """
        digest = lease_digest(lease_token) or b""
        rollout = self._registry.active.get(rollout_id)
        if rollout is None:
            stored = self._registry.recent(rollout_id) or await self._journal.stored(rollout_id)
            if stored is None:
                raise UnknownRollout
            _check_lease(stored.lease, digest)
            return stored.view
        _check_lease(rollout.lease, digest)
        if not rollout.is_ended:
            self._leases.renew(rollout)
        return await self._registry.changed(rollout, timeout_sec)

    async def view(self, rollout_id: str) -> RolloutView:
        """Where a rollout is; status `unknown` when there is none, or it is forgotten."""
        rollout = self._registry.active.get(rollout_id)
        if rollout is not None:
            return self._registry.view(rollout)
        stored = self._registry.recent(rollout_id) or await self._journal.stored(rollout_id)
        return stored.view if stored else RolloutView(rollout_id, RolloutStatus.UNKNOWN)

    def _status(self, rollout: Rollout) -> RolloutStatus:
        if rollout.status is not RolloutStatus.RUNNING:
            return rollout.status
        return self.backend.rollout_status(rollout.id) or rollout.status

    async def cancel(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector; says what was found, the same again until it ended.

        Raises:
            ValueError: not exactly one selector was given.
        """
        return await self._canceller.cancel(ids, prefix, all)

    def pause(self) -> None:
        """Begin no rollout until `resume`, for a weight update; admission and what runs go on."""
        self._runner.is_paused = True

    def resume(self) -> None:
        """Begin rollouts again."""
        self._runner.resume()

    @property
    def is_paused(self) -> bool:
        """Whether nothing begins now."""
        return self._runner.is_paused

    @property
    def is_accepting(self) -> bool:
        """False once the server drains."""
        return self._drained is None

    def stats(self) -> Stats:
        """Counters since the start and gauges of now; always the same object."""
        stats = self._stats
        stats.queued = self._runner.queued
        stats.running = len(self._runner.running)
        stats.deliveries_outstanding = self._outbox.outstanding
        return stats

    def health(self) -> dict[str, Any]:
        """The backend's health; those that wait for a slot here count as queued there."""
        health = self.backend.health()
        concurrency: dict[str, Any] | None = health.get("concurrency")
        if concurrency is not None and "queued" in concurrency:
            queued = concurrency["queued"] + self._runner.queued
            health = {**health, "concurrency": {**concurrency, "queued": queued}}
        return health

    async def drain(self, grace_sec: float) -> None:
        """Admit no more, let what was admitted end within the grace, then cancel and report it.

        A second call waits for the first one.
        """
        if self._drained is None:
            self._drained = asyncio.create_task(self._drain(grace_sec))
        await asyncio.shield(self._drained)

    async def _drain(self, grace_sec: float) -> None:
        if await self._is_empty_within(grace_sec):
            return
        logger.warning("cancelling %d rollouts after the grace", len(self._registry.active))
        await self.cancel(all=True)
        if not await self._is_empty_within(_CANCEL_SEC):
            for rollout in tuple(self._runner.running.values()):
                self._canceller.force(rollout)
            if not await self._is_empty_within(_FORCE_SEC):
                logger.error("%d rollouts would not end", len(self._registry.active))

    async def _is_empty_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._admitting or self._registry.active:
                    await self._registry.is_empty.wait()
                    await asyncio.sleep(_POLL_SEC if self._admitting else 0)
        return not self._registry.active

    async def close(self) -> None:
        """Drain, give outstanding deliveries a moment, and let backend and journal go."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        await self.drain(self.settings.drain_grace_sec)
        await self._outbox.flush(self.settings.delivery_timeout_sec)
        await self._retention.close()
        self._leases.close()
        await self._outbox.close()
        await self.backend.shutdown()
        await self._runner.close(_FORCE_SEC)
        if lost := await self._journal.close():
            logger.error("%d writes had no room in the journal", lost)


def _check_lease(lease: bytes | None, digest: bytes) -> None:
    if lease is None or not hmac.compare_digest(lease, digest):
        raise WrongLease
