"""Delivers what controllers are owed: in order per rollout, at least once, over restarts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence

from osmosis_server.journal import Journal, Numbered, Outstanding
from osmosis_server.posting import Answer, Poster, Verdict, origin_of
from osmosis_server.protocols.base import QUICK_TRIES_SEC
from osmosis_server.stats import Stats
from osmosis_server.submissions import Delivery

logger = logging.getLogger(__name__)

_SLOW_SEC = 8.0
_MAX_SEC = 300.0
_JITTER = 0.2
_WAKE_SEC = 15.0
_PER_ORIGIN = 32
_BODIES_KEPT = 64
_CHUNK = 500


class _Step:
    """A delivery that is owed; its body is in the journal, and here until the first try."""

    __slots__ = ("deadline", "delivery", "name", "number", "url_origin")

    def __init__(self, number: int, name: str, url: str, made_at: float, deadline: float) -> None:
        self.number = number
        self.name = name
        self.url_origin = origin_of(url)
        self.deadline = made_at + deadline
        self.delivery: Delivery | None = None


class _Line:
    """What one rollout's controller is owed, in order."""

    __slots__ = ("origin", "quick_sec", "reply_key", "rollout_id", "seq", "steps", "taken",
                 "timer", "tries")  # fmt: skip

    def __init__(
        self,
        seq: int,
        rollout_id: str,
        reply_key: str | None,
        quick_sec: Sequence[float] = QUICK_TRIES_SEC,
    ) -> None:
        self.seq = seq
        self.quick_sec = quick_sec
        self.rollout_id = rollout_id
        self.reply_key = reply_key
        self.steps: deque[_Step] = deque()
        self.tries = 0
        self.timer: asyncio.TimerHandle | None = None
        self.origin: _Origin | None = None
        self.taken: asyncio.Future[None] | None = None

    @property
    def is_slow(self) -> bool:
        """True once the quick tries are over."""
        return self.tries > len(self.quick_sec)


class _Origin:
    """A host that takes deliveries: what waits for a connection, and what waits for it to live."""

    __slots__ = ("away", "busy", "ready", "woken_at")

    def __init__(self) -> None:
        self.ready: deque[_Line] = deque()
        self.away: set[_Line] = set()
        self.busy = 0
        self.woken_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not (self.ready or self.away or self.busy)


class Outbox:
    """At-least-once deliveries from the journal.

    Quick tries as the protocol has them, then slow ones until the deadline; what arrived is
    forgotten in the journal. Only what is tried for the first time is held in memory with its body.
    A host that is away holds up nobody else, and when it answers again everything owed to it is
    tried at once.

    Args:
        deadline_sec: how long a delivery is tried, counted from when it was written.
        first_tries_sec: how long `first_tries` waits.
    """

    def __init__(
        self,
        journal: Journal,
        poster: Poster,
        stats: Stats,
        *,
        deadline_sec: float,
        first_tries_sec: float,
    ) -> None:
        self._journal = journal
        self._poster = poster
        self._stats = stats
        self._deadline_sec = deadline_sec
        self._first_tries_sec = first_tries_sec
        self._lines: dict[int, _Line] = {}
        self._origins: dict[str, _Origin] = {}
        self._workers: set[asyncio.Task[None]] = set()
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
        line = self._lines.get(one.seq) or _Line(one.seq, one.rollout_id, one.reply_key)
        step = _Step(one.step, one.name, one.url, one.made_at, self._deadline_sec)
        self._append(line, [step])

    def put(
        self,
        seq: int,
        rollout_id: str,
        reply_key: str | None,
        deliveries: Sequence[Numbered],
        taken: asyncio.Future[None] | None = None,
        quick_sec: Sequence[float] = QUICK_TRIES_SEC,
    ) -> None:
        """Deliver what the journal has; `taken` is resolved when nothing is owed any more."""
        line = self._lines.get(seq) or _Line(seq, rollout_id, reply_key, quick_sec)
        steps: list[_Step] = []
        for number, delivery in deliveries:
            step = _Step(number, delivery.name, delivery.url, time.time(), self._deadline_sec)
            step.delivery = delivery
            steps.append(step)
        line.taken = taken or line.taken
        self._append(line, steps)

    async def first_tries(self, taken: asyncio.Future[None]) -> None:
        """Wait until the deliveries of `put` are taken or given up, or for `first_tries_sec`."""
        try:
            async with asyncio.timeout(self._first_tries_sec):
                await taken
        except TimeoutError:
            pass

    async def flush(self, timeout_sec: float) -> None:
        """Wait until nothing is owed or only hosts that are away are, at most for so long."""
        until = time.monotonic() + timeout_sec
        while time.monotonic() < until:
            if all(line.is_slow for line in self._lines.values()):
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Stop; what is owed stays in the journal."""
        self._is_closed = True
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._poster.close()

    def _append(self, line: _Line, steps: list[_Step]) -> None:
        is_new = not line.steps
        line.steps.extend(steps)
        if is_new and line.steps:
            self._lines[line.seq] = line
            self._make_ready(line)

    def _make_ready(self, line: _Line) -> None:
        if self._is_closed:
            return
        line.timer = None
        origin = self._origins.setdefault(line.steps[0].url_origin, _Origin())
        origin.away.discard(line)
        origin.ready.append(line)
        if len(origin.ready) > _BODIES_KEPT:
            line.steps[0].delivery = None
        if origin.busy < _PER_ORIGIN:
            origin.busy += 1
            worker = asyncio.create_task(self._deliver_all(line.steps[0].url_origin, origin))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _deliver_all(self, name: str, origin: _Origin) -> None:
        try:
            while origin.ready:
                await self._deliver(origin, origin.ready.popleft())
        finally:
            origin.busy -= 1
            if origin.is_idle:
                self._origins.pop(name, None)

    async def _deliver(self, origin: _Origin, line: _Line) -> None:
        step = line.steps[0]
        delivery = step.delivery or await self._journal.delivery(line.seq, step.number)
        step.delivery = None
        if delivery is None:
            self._settled(line)
            return
        answer = await self._poster.post(delivery, line.rollout_id, line.reply_key)
        if not answer.is_unreachable:
            self._wake(origin)
        if answer.verdict is Verdict.TRY_AGAIN and time.time() < step.deadline:
            self._try_again(origin, line, answer)
            return
        self._count(answer.verdict, line, step, answer)
        self._journal.settle(line.seq, step.number)
        self._settled(line)

    def _count(self, verdict: Verdict, line: _Line, step: _Step, answer: Answer) -> None:
        if verdict is Verdict.TAKEN:
            self._stats.delivered += 1
            return
        if verdict is Verdict.REFUSED:
            self._stats.deliveries_refused += 1
            why = "refused"
        else:
            self._stats.deliveries_expired += 1
            why = "not taken before its deadline"
        logger.error(
            "%s of rollout %r to %s was %s (%s); it is given up",
            step.name,
            line.rollout_id,
            step.url_origin,
            why,
            answer.reason,
        )

    def _settled(self, line: _Line) -> None:
        line.steps.popleft()
        line.tries = 0
        if line.steps:
            self._make_ready(line)
            return
        del self._lines[line.seq]
        if line.taken is not None and not line.taken.done():
            line.taken.set_result(None)

    def _try_again(self, origin: _Origin, line: _Line, answer: Answer) -> None:
        self._stats.deliveries_retried += 1
        line.tries += 1
        delay_sec = _delay_sec(line.tries, line.quick_sec)
        if line.tries == len(line.quick_sec) + 1:
            logger.warning(
                "%s of rollout %r is not taken by %s (%s); it is tried until its deadline",
                line.steps[0].name,
                line.rollout_id,
                line.steps[0].url_origin,
                answer.reason,
            )
        if line.is_slow and answer.is_unreachable:
            origin.away.add(line)
        delay_sec = max(delay_sec, min(answer.retry_after_sec, _MAX_SEC))
        line.timer = asyncio.get_running_loop().call_later(delay_sec, self._make_ready, line)

    def _wake(self, origin: _Origin) -> None:
        """The host answers: try at once what it did not take while it was away."""
        now = time.monotonic()
        if not origin.away or now < origin.woken_at + _WAKE_SEC:
            return
        origin.woken_at = now
        for line in tuple(origin.away):
            if line.timer is not None:
                line.timer.cancel()
            self._make_ready(line)


def _delay_sec(tries: int, quick_sec: Sequence[float]) -> float:
    if tries <= len(quick_sec):
        return quick_sec[tries - 1]
    slow = _SLOW_SEC * 2 ** min(tries - len(quick_sec) - 1, 10)
    return min(slow, _MAX_SEC) * random.uniform(1 - _JITTER, 1 + _JITTER)
