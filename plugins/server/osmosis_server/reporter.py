"""Turns what a backend reports into the journal's writes and the outbox's deliveries."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping
from functools import partial

from osmosis_core import ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_core.errors import describe
from osmosis_server.journal import Ending, Journal, Numbered
from osmosis_server.leases import Leases
from osmosis_server.observer import ServiceObserver
from osmosis_server.outbox import Outbox
from osmosis_server.protocols.base import Protocol
from osmosis_server.registry import Registry, Rollout
from osmosis_server.stats import Stats, Throughput
from osmosis_server.submissions import Delivery, RolloutView, Submission

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """Raised into a backend whose rollout has ended already; ends its execution."""


class Reporter:
    """The one place where rollouts end: in the journal first, then for whoever waits."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        leases: Leases,
        outbox: Outbox,
        protocols: Mapping[str, Protocol],
        observer: ServiceObserver,
        stats: Stats,
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._leases = leases
        self._outbox = outbox
        self._protocols = protocols
        self._observer = observer
        self._stats = stats
        self.throughput = Throughput()

    def wants_grading(self, submission: Submission) -> bool:
        """Whether the backend is asked to grade."""
        return self._protocols[submission.protocol].wants_grading(submission)

    async def workflow_done(
        self, rollout: Rollout, submission: Submission, result: ExecutionResult
    ) -> None:
        """Report a workflow that grading follows.

        Returns when the controller has taken the report, or when its first tries are over: the
        outbox goes on, in order, and grading need not wait for a controller that is away.

        Raises:
            Stopped: the rollout has ended, so it must not be graded.
        """
        if rollout.is_ended:
            raise Stopped
        protocol = self._protocols[submission.protocol]
        settled = _without_secrets(protocol.settle(submission, result), submission)
        if settled.status is not result.status:
            self.end(rollout, submission, settled)
            raise Stopped
        self._registry.change(rollout, RolloutStatus.GRADING)
        if rollout.is_told:
            return
        rollout.is_told = True
        deliveries = self._journal.number(protocol.workflow_done(submission, settled))
        if deliveries:
            tries = asyncio.get_running_loop().create_future()
            told = partial(self._told, rollout, submission.reply_key, deliveries, tries)
            self._journal.tell(rollout.seq, deliveries, told)
            await self._outbox.first_tries(tries)

    def _told(
        self,
        rollout: Rollout,
        reply_key: str | None,
        deliveries: list[Numbered],
        tries: asyncio.Future[None],
        error: Exception | None,
    ) -> None:
        if error is None:
            self._outbox.put(rollout.seq, rollout.id, reply_key, deliveries, tries)
        else:
            rollout.is_told = False
            if not tries.done():
                tries.set_exception(error)

    def end(self, rollout: Rollout, submission: Submission, result: ExecutionResult) -> None:
        """End a rollout with a result; only the first one counts."""
        if rollout.is_ended:
            return
        rollout.is_ended = True
        rollout.submission = None
        self._leases.drop(rollout)
        if rollout.timer is not None:
            rollout.timer.cancel()
        self._finish(rollout, submission, result)

    def _finish(
        self, rollout: Rollout, submission: Submission, result: ExecutionResult, tries: int = 2
    ) -> None:
        result, view, deliveries = self._rendered(rollout, submission, result)
        numbered = self._journal.number(deliveries)
        written = partial(self._written, rollout, submission, result, view, numbered, tries - 1)
        self._journal.finish(rollout.seq, Ending(view, time.time()), numbered, written)

    def _rendered(
        self, rollout: Rollout, submission: Submission, result: ExecutionResult
    ) -> tuple[ExecutionResult, RolloutView, list[Delivery]]:
        """The result in the protocol's words, or a failure that says why that cannot be."""
        try:
            return self._render(rollout, submission, result)
        except Exception as error:  # boundary: results hold whatever user code put there
            logger.exception("result of rollout %r cannot be reported", rollout.id)
            failure = internal_error(f"its result cannot be reported: {describe(error)}")
        try:
            return self._render(rollout, submission, failure)
        except Exception:  # boundary: protocols are anybody's
            logger.exception("rollout %r ends untold", rollout.id)
            return failure, _view(rollout, failure, None), []

    def _render(
        self, rollout: Rollout, submission: Submission, result: ExecutionResult
    ) -> tuple[ExecutionResult, RolloutView, list[Delivery]]:
        protocol = self._protocols.get(submission.protocol)
        if protocol is None:
            logger.error(
                "rollout %r came by protocol %r, which is not served any more; its controller is "
                "not told",
                rollout.id,
                submission.protocol,
            )
            return result, _view(rollout, result, None), []
        result = _without_secrets(protocol.settle(submission, result), submission)
        deliveries = [] if rollout.is_told else [*protocol.workflow_done(submission, result)]
        deliveries += protocol.rollout_done(submission, result)
        return (
            result,
            _view(rollout, result, protocol.result_body(submission, result)),
            deliveries,
        )

    def _written(
        self,
        rollout: Rollout,
        submission: Submission,
        result: ExecutionResult,
        view: RolloutView,
        deliveries: list[Numbered],
        tries: int,
        error: Exception | None,
    ) -> None:
        if error is not None:
            logger.error("end of rollout %r cannot be written: %s", rollout.id, error)
            deliveries = []
        if error is not None and tries:
            failure = internal_error(f"its result cannot be kept: {describe(error)}")
            self._finish(rollout, submission, failure, tries)
            return
        self._stats.finished[view.status] += 1
        self.throughput.count()
        self._registry.remove(rollout, view)
        if deliveries:
            self._outbox.put(rollout.seq, rollout.id, submission.reply_key, deliveries)
        try:
            self._observer.rollout_ended(submission, result)
        except Exception:  # observers are isolated from the rollout
            logger.exception("observer of rollout %r raised", rollout.id)


def internal_error(message: str) -> ExecutionResult:
    """The result of a rollout that the server could not run."""
    return ExecutionResult(
        RolloutStatus.FAILURE,
        err_message=message,
        err_category=RolloutErrorCategory.INTERNAL_ERROR,
    )


def _view(rollout: Rollout, result: ExecutionResult, body: bytes | None) -> RolloutView:
    sample, reward = result.sample, None
    if sample and not sample.remove_sample and result.status is RolloutStatus.SUCCESS:
        reward = sample.reward
    return RolloutView(
        rollout.id, result.status, reward, result.err_message, result.err_category, body
    )


def _without_secrets(result: ExecutionResult, submission: Submission) -> ExecutionResult:
    if not result.err_message:
        return result
    message = result.err_message.encode(errors="backslashreplace").decode()
    for key in (submission.llm_api_key, submission.reply_key):
        if key:
            message = message.replace(key, "***")
    if message == result.err_message:
        return result
    return dataclasses.replace(result, err_message=message)
