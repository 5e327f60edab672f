"""What a place to run rollouts must do, and the limiter that caps how many run at once."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

from osmosis_core.errors import BackendError, ConfigError
from osmosis_core.types import ExecutionRequest, ExecutionResult, RolloutStatus

type CancelDisposition = Literal["cancelled_queued", "cancelled_running", "not_found"]
"""What a cancel found (protocol.md 1.5)."""

type ResultCallback = Callable[[ExecutionResult], Awaitable[None]]
"""Awaited with each result of a rollout."""


class ExecutionBackend(ABC):
    """A place to run rollouts.

    Implementations run `execute` inside `get_plugins().observed(request, self)` and pass
    `osmosis_core.testing.BackendConformance`.
    """

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout and report it.

        `on_workflow_complete` is awaited exactly once, then, if it is given and `request.grade`
        is true, `on_grader_complete` exactly once, with a failure that says why when grading did
        not run. A failed rollout is a result, not an exception. An exception of a callback ends
        this rollout and is raised here. Cancelling the caller's task reports nothing.

        Raises:
            BackendError: a rollout with this id is running.
        """

    @property
    def max_concurrency(self) -> int:
        """How many rollouts run at once; 0 means no limit."""
        return 0

    def health(self) -> dict[str, Any]:
        """JSON-able health; `{"status": "ok"}` plus whatever helps an operator."""
        return {"status": "ok"}

    def has_capacity(self) -> bool:
        """True when one more rollout would be accepted now."""
        return True

    def rollout_status(self, rollout_id: str) -> RolloutStatus | None:
        """Where a rollout is while `execute` runs; None when unknown or finished."""
        return None

    async def cancel_rollouts(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector; each cancelled rollout reports status `cancelled`.

        Raises:
            ValueError: not exactly one of `ids`, `prefix` and `all` was given.
        """
        return dict.fromkeys(select_rollouts((), ids, prefix, all), "not_found")

    async def shutdown(self) -> None:
        """Release what the backend holds; running rollouts are cancelled."""
        await self.cancel_rollouts(all=True)


def select_rollouts(
    known: Iterable[str], ids: Iterable[str] | None, prefix: str | None, all: bool
) -> list[str]:
    """The ids that a cancel request selects: those named, or the known ones it covers.

    Raises:
        ValueError: not exactly one selector was given.
    """
    if (ids is not None) + (prefix is not None) + bool(all) != 1:
        raise ValueError("pass exactly one selector: ids, prefix, or all")
    if ids is not None:
        return list(dict.fromkeys(ids))
    return [rollout_id for rollout_id in known if rollout_id.startswith(prefix or "")]


class ConcurrencyLimiter:
    """Caps how many rollouts run at once, first come first served; None means unlimited.

    Raises:
        ConfigError: the cap is less than 1.
    """

    def __init__(self, max_concurrent: int | None = None) -> None:
        if max_concurrent is not None and max_concurrent < 1:
            raise ConfigError(f"max_concurrent is {max_concurrent!r}; give 1 or more, or None")
        self.max_concurrent = max_concurrent
        self.running = 0
        self.queued = 0
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def acquire(self) -> None:
        """Wait for a slot."""
        slots = self._slots_here()
        if slots is not None:
            self.queued += 1
            try:
                await slots.acquire()
            finally:
                self.queued -= 1
        self.running += 1

    def release(self) -> None:
        """Give the slot back."""
        self.running -= 1
        if self._slots is not None:
            self._slots.release()

    def _slots_here(self) -> asyncio.Semaphore | None:
        """The semaphore of the running loop; a limiter outlives loops but serves one at a time."""
        loop = asyncio.get_running_loop()
        if self.max_concurrent is not None and loop is not self._loop:
            if (self.running or self.queued) and self._loop and not self._loop.is_closed():
                raise BackendError("in use on another event loop; give each loop its own backend")
            self._slots, self._loop = asyncio.Semaphore(self.max_concurrent), loop
            self.running = self.queued = 0
        return self._slots
