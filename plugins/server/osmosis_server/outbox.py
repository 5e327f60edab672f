"""Delivers what controllers are owed: in order per rollout, at least once, over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Sequence
from functools import partial

from osmosis_core.errors import describe, one_line
from osmosis_server.journal import Journal, Numbered, Outstanding
from osmosis_server.origins import Line, Origin, Pace, Step
from osmosis_server.posting import Answer, Poster, Verdict, origin_of
from osmosis_server.stats import Stats

logger = logging.getLogger(__name__)

_JITTER = 0.2
_CHUNK = 500
_LOOK_SEC = 0.02


class Outbox:
    """At-least-once deliveries from the journal.

    Five quick tries as documented, then slow ones until the deadline; what was taken is forgotten
    in the journal. Only what is about to be tried for the first time is in memory with its body.
    A host that is away holds up nobody else.

    Args:
        deadline_sec: how long a delivery is tried, counted from when it was written.
        first_tries_sec: how long `first_tries` waits.
        pace: how soon what was not taken is tried again.
    """

    def __init__(
        self,
        journal: Journal,
        poster: Poster,
        stats: Stats,
        *,
        deadline_sec: float,
        first_tries_sec: float,
        pace: Pace | None = None,
    ) -> None:
        self._journal = journal
        self._poster = poster
        self._stats = stats
        self._deadline_sec = deadline_sec
        self._first_tries_sec = first_tries_sec
        self._pace = pace or Pace()
        self._lines: dict[int, Line] = {}
        self._origins: dict[str, Origin] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """Rollouts whose controllers are owed something."""
        return len(self._lines)

    async def start(self) -> None:
        """Go on with what the journal says is owed."""
        after = (0, 0)
        while owed := await self._journal.outstanding(after, _CHUNK):
            for one in owed:
                self._owe(one)
            after = owed[-1].seq, owed[-1].step
            await asyncio.sleep(0)

    def _owe(self, one: Outstanding) -> None:
        line = self._lines.get(one.seq) or Line(
            one.seq, one.rollout_id, one.reply_key, self._pace.quick
        )
        deadline = one.made_at + self._deadline_sec
        self._append(line, [Step(one.step, one.name, origin_of(one.url), deadline)])

    def put(
        self,
        seq: int,
        rollout_id: str,
        reply_key: str | None,
        deliveries: Sequence[Numbered],
        first_tries: asyncio.Future[None] | None = None,
    ) -> None:
        """Deliver what the journal has, after what the rollout is owed already.

        `first_tries` is resolved once all are taken or given up, or their quick tries are over.
        """
        line = self._lines.get(seq) or Line(seq, rollout_id, reply_key, self._pace.quick)
        line.quick = next((d.quick for _, d in deliveries if d.quick is not None), line.quick)
        line.first_tries = first_tries
        deadline = time.time() + self._deadline_sec
        steps: list[Step] = []
        for number, delivery in deliveries:
            step = Step(number, delivery.name, origin_of(delivery.url), deadline)
            step.delivery = delivery
            steps.append(step)
        self._append(line, steps)

    async def first_tries(self, first_tries: asyncio.Future[None]) -> None:
        """Wait for what `put` resolves, at most `first_tries_sec`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_tries_sec):
                await first_tries

    async def flush(self, timeout_sec: float) -> None:
        """Wait until all quick tries are over, at most for so long."""
        until = time.monotonic() + timeout_sec
        while time.monotonic() < until:
            if all(line.is_waiting for line in self._lines.values()):
                return
            await asyncio.sleep(_LOOK_SEC)

    async def close(self) -> None:
        """Stop; what is owed stays in the journal."""
        self._is_closed = True
        for origin in self._origins.values():
            origin.close()
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._poster.close()

    def _append(self, line: Line, steps: list[Step]) -> None:
        was_idle = not line.steps
        line.steps.extend(steps)
        if was_idle and steps:
            self._lines[line.seq] = line
            self._begin(line)

    def _begin(self, line: Line) -> None:
        """Try the first step of a line; also called when the pause between two tries is over."""
        if self._is_closed:
            return
        line.timer = None
        name = line.steps[0].origin
        origin = self._origins.get(name)
        if origin is None:
            forget = partial(self._origins.pop, name, None)
            origin = Origin(self._pace, self._deliver, self._expire, forget, self._tasks)
            self._origins[name] = origin
        origin.add(line)

    async def _deliver(self, origin: Origin, line: Line) -> None:
        step = line.steps[0]
        if line.tries == 0:
            line.tried_at = time.monotonic()
        answer = await self._try(line, step)
        if not answer.is_unreachable:
            origin.answered()
        if answer.verdict is Verdict.TAKEN:
            self._stats.delivered += 1
            self._settle(line, step)
        elif answer.verdict is Verdict.REFUSED:
            self._stats.deliveries_refused += 1
            self._give_up(line, step, f"refused ({answer.reason})")
        elif step.is_late:
            self._expire(line)
        else:
            self._try_again(origin, line, step, answer)

    async def _try(self, line: Line, step: Step) -> Answer:
        try:
            delivery = step.delivery or await self._journal.delivery(line.seq, step.number)
            step.delivery = None
            if delivery is None:
                return Answer(Verdict.TAKEN)
            return await self._poster.post(delivery, line.rollout_id, line.reply_key)
        except Exception as error:  # boundary: connectors are anybody's, and disks fail
            return Answer(Verdict.TRY_AGAIN, one_line(describe(error), 200), True)

    def _expire(self, line: Line) -> None:
        self._stats.deliveries_expired += 1
        self._give_up(line, line.steps[0], "not taken before its deadline")

    def _give_up(self, line: Line, step: Step, why: str) -> None:
        text = "%s of rollout %r to %s was %s; it is given up"
        logger.error(text, step.name, line.rollout_id, step.origin, why)
        self._settle(line, step)

    def _settle(self, line: Line, step: Step) -> None:
        self._journal.settle(line.seq, step.number)
        self._next(line)

    def _next(self, line: Line) -> None:
        line.steps.popleft()
        line.tries = 0
        if line.steps:
            self._begin(line)
        else:
            del self._lines[line.seq]
            line.quick_tries_end(is_waiting=False)

    def _try_again(self, origin: Origin, line: Line, step: Step, answer: Answer) -> None:
        self._stats.deliveries_retried += 1
        line.tries += 1
        is_quick = line.tries <= len(line.quick)
        if line.tries == len(line.quick) + 1:
            text = "%s of rollout %r is not taken by %s (%s); it is tried until its deadline"
            logger.warning(text, step.name, line.rollout_id, step.origin, answer.reason)
        if answer.is_unreachable and origin.has_gone(line, is_quick=is_quick):
            return
        delay_sec = max(_delay_sec(self._pace, line), answer.retry_after_sec)
        if delay_sec > max(line.quick, default=0.0):
            line.quick_tries_end(is_waiting=True)
        line.timer = asyncio.get_running_loop().call_later(delay_sec, self._begin, line)


def _delay_sec(pace: Pace, line: Line) -> float:
    after = line.tries - len(line.quick) - 1
    if after < 0:
        return line.quick[line.tries - 1]
    slow = pace.slow * 2 ** min(after, 10)
    return min(slow, pace.max_slow) * random.uniform(1 - _JITTER, 1 + _JITTER)
