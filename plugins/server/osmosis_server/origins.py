"""Hosts that take deliveries: how many at once, and what happens while one is away."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from osmosis_server.submissions import Delivery

_AT_ONCE = 32
_BODIES_KEPT = 64
_SLICE = 500


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between tries."""

    quick: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Between the first tries (protocol.md 1.4, 1.6)."""
    slow: float = 8.0
    """Between the next two; it doubles."""
    max_slow: float = 300.0
    probe: float = 0.5
    """Until a host that is away is tried again; it doubles."""
    max_probe: float = 60.0
    soon: float = 1.0
    """A new delivery to a host that is away has it tried at once, but no sooner than this."""


class Step:
    """A delivery that is owed; its body is in the journal, and here until its first try."""

    __slots__ = ("deadline", "delivery", "name", "number", "origin")

    def __init__(self, number: int, name: str, origin: str, deadline: float) -> None:
        self.number = number
        self.name = name
        self.origin = origin
        self.deadline = deadline
        """Unix time."""
        self.delivery: Delivery | None = None

    @property
    def is_late(self) -> bool:
        """Whether it is not worth another try."""
        return time.time() >= self.deadline


class Line:
    """What one rollout's controller is owed, in order."""

    __slots__ = (
        "first_tries",
        "is_waiting",
        "quick",
        "reply_key",
        "rollout_id",
        "seq",
        "steps",
        "timer",
        "tried_at",
        "tries",
    )

    def __init__(
        self, seq: int, rollout_id: str, reply_key: str | None, quick: tuple[float, ...]
    ) -> None:
        self.seq = seq
        self.quick = quick
        """Seconds between its first tries."""
        self.rollout_id = rollout_id
        self.reply_key = reply_key
        self.steps: deque[Step] = deque()
        self.tries = 0
        """Of the first step."""
        self.tried_at = 0.0
        """When its first try began (time.monotonic())."""
        self.is_waiting = False
        """Its quick tries are over."""
        self.timer: asyncio.TimerHandle | None = None
        self.first_tries: asyncio.Future[None] | None = None

    def drop_bodies(self) -> None:
        """Leave them to the journal."""
        for step in self.steps:
            step.delivery = None

    def quick_tries_end(self, *, is_waiting: bool) -> None:
        """Let go whoever waits for the first tries."""
        self.is_waiting = is_waiting
        if self.first_tries is not None and not self.first_tries.done():
            self.first_tries.set_result(None)
        self.first_tries = None


class Origin:
    """One scheme, host and port.

    While it is away its lines cost nothing but their memory: one at a time is tried, ever more
    seldom, or when a new one comes; when it answers, all are.

    Args:
        pace: how soon it is tried again.
        deliver: tries the first step of a line.
        expire: gives up the first step of a line whose deadline has passed.
        on_idle: called when nothing waits here any more.
        tasks: where its workers are kept.
    """

    def __init__(
        self,
        pace: Pace,
        deliver: Callable[[Origin, Line], Awaitable[None]],
        expire: Callable[[Line], None],
        on_idle: Callable[[], object],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._pace = pace
        self._deliver = deliver
        self._expire = expire
        self._on_idle = on_idle
        self._tasks = tasks
        self._ready: deque[Line] = deque()
        self._parked: deque[Line] = deque()
        self._busy = 0
        self._is_away = False
        self._probe_sec = self._pace.probe
        self._probed_at = 0.0
        self._answered_at = 0.0
        self._misses = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: Line) -> None:
        """Try a line as soon as there is a connection, or when the host is back."""
        if not self._is_away:
            self._start(line)
            return
        self._park(line, is_first=line.tries == 0)
        if time.monotonic() >= self._probed_at + self._pace.soon:
            self._probe()

    def _start(self, line: Line) -> None:
        line.is_waiting = False
        if len(self._ready) >= _BODIES_KEPT:
            line.drop_bodies()
        self._ready.append(line)
        if self._busy < _AT_ONCE:
            self._busy += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._ready:
                await self._deliver(self, self._ready.popleft())
        finally:
            self._busy -= 1
            self._look_idle()

    def _look_idle(self) -> None:
        if not (self._busy or self._ready or self._parked):
            self.close()
            self._on_idle()

    def _park(self, line: Line, *, is_first: bool) -> None:
        line.drop_bodies()
        line.quick_tries_end(is_waiting=True)
        if is_first:
            self._parked.appendleft(line)
        else:
            self._parked.append(line)

    def answered(self) -> None:
        """The host lives: try everything that waits for it."""
        self._answered_at = time.monotonic()
        self._misses = 0
        if not self._is_away:
            return
        self._is_away = False
        self._probe_sec = self._pace.probe
        self.close()
        parked, self._parked = self._parked, deque[Line]()
        for line in parked:
            self._start(line)

    def has_gone(self, line: Line, *, is_quick: bool) -> bool:
        """Take a line that found nobody, if the host is away.

        It is when this line's quick tries are over and no other one found anybody meanwhile, or
        when many tries in a row found nobody.
        """
        self._misses += 1
        may_live = is_quick or self._answered_at > line.tried_at
        if may_live and not self._is_away and self._misses < _AT_ONCE:
            return False
        self._is_away = True
        self._park(line, is_first=False)
        while self._ready:
            self._park(self._ready.popleft(), is_first=False)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._probe_sec, self._probe)
            self._probe_sec = min(2 * self._probe_sec, self._pace.max_probe)
        return True

    def _probe(self) -> None:
        self.close()
        self._probed_at = time.monotonic()
        for _ in range(_SLICE):
            if not self._parked or not self._parked[0].steps[0].is_late:
                break
            self._expire(self._parked.popleft())
        if self._parked:
            self._start(self._parked.popleft())
        self._look_idle()

    def close(self) -> None:
        """Probe no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
