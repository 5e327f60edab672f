"""What becomes of rollouts that had not ended when the server was killed."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from osmosis_server.journal import Journal, Unfinished
from osmosis_server.leases import Leases
from osmosis_server.registry import Registry, Rollout
from osmosis_server.reporter import Reporter, internal_error
from osmosis_server.runner import Runner

logger = logging.getLogger(__name__)

RESTARTED = (
    "the rollout server restarted before this rollout ended; submit it under another id, or "
    "serve with --on-restart rerun"
)
_CHUNK = 100


class Recovery:
    """Runs rollouts of the journal that had not begun; those that had end, or run again."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        leases: Leases,
        reporter: Reporter,
        runner: Runner,
        on_restart: Literal["fail", "rerun"],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._leases = leases
        self._reporter = reporter
        self._runner = runner
        self._reruns = on_restart == "rerun"

    async def run(self) -> int:
        """Take up every unfinished rollout and return how many there were."""
        after = count = begun = 0
        while found := await self._journal.unfinished(after, _CHUNK):
            for one in found:
                self._take_up(one)
            after, count = found[-1].seq, count + len(found)
            begun += sum(one.has_begun for one in found)
            await asyncio.sleep(0)
        if count:
            what = "are run again" if self._reruns else "ended as failures"
            text = "at the restart %d rollouts waited and go on, %d had begun and %s"
            logger.warning(text, count - begun, begun, what)
        return count

    def _take_up(self, one: Unfinished) -> None:
        submission = one.submission
        rollout = Rollout(submission.request.id, submission.protocol, one.lease)
        rollout.seq, rollout.has_begun, rollout.is_told = one.seq, one.has_begun, one.is_told
        self._registry.add(rollout)
        if one.has_begun and not self._reruns:
            self._reporter.end(rollout, submission, internal_error(RESTARTED))
            return
        if one.lease is not None:
            self._leases.renew(rollout)
        self._runner.put(rollout, submission, one.size)
