"""Slots are never exceeded and always given back."""

from __future__ import annotations

import asyncio

from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    BackendSuite,
    in_flight,
    most_at_once,
    request,
    run,
    said,
)


class Capacity(BackendSuite):
    """Slots are never exceeded and always given back."""

    async def test_capacity_is_never_exceeded(self) -> None:
        """No more rollouts than the config says run at once.

        If this fails, hold one slot of `ConcurrencyLimiter` through the whole rollout.
        """
        async with self.opened(programs.TimesItself, None, programs.TWO_AT_A_TIME) as backend:
            rollouts = (run(backend, request(f"r-{number}")) for number in range(6))
            done = await asyncio.gather(*rollouts)
        samples = [sample for one in done for sample in one.workflow.samples.values()]
        assert len(samples) == 6 and most_at_once(samples) <= 2

    async def test_idle_backend_has_capacity(self) -> None:
        """A controller may send its first rollout.

        If this fails, say False in `has_capacity` only while the next rollout would be refused.
        """
        async with self.opened(programs.Answers) as backend:
            assert backend.has_capacity()
            assert backend.health()["status"] == "ok"

    async def test_slot_is_freed_after_a_failure(self) -> None:
        """The next rollout runs after one that raised.

        If this fails, free the slot in a `finally`.
        """
        broken = request("first", metadata={"error": "RuntimeError"})
        async with self.opened(programs.Raises, None, programs.ONE_AT_A_TIME) as backend:
            await run(backend, broken)
            assert (await run(backend, request(metadata={"error": "TypeError"}))).results

    async def test_slot_is_freed_after_a_timeout(self) -> None:
        """The next rollout runs after one that was late.

        If this fails, free the slot in a `finally`.
        """
        late = request("first", metadata={"hang": True}, agent_timeout_sec=0.1)
        async with self.opened(programs.HangsIfTold, None, programs.ONE_AT_A_TIME) as backend:
            await run(backend, late)
            assert said((await run(backend, request())).workflow) == "42"

    async def test_slot_is_freed_after_a_cancel(self) -> None:
        """The next rollout runs after one that was cancelled.

        If this fails, free the slot in a `finally`.
        """
        hang = request("first", metadata={"hang": True})
        async with (
            self.opened(programs.HangsIfTold, None, programs.ONE_AT_A_TIME) as backend,
            in_flight(backend, hang),
        ):
            await backend.cancel_rollouts(ids=["first"])
            assert said((await run(backend, request())).workflow) == "42"

    async def test_slot_is_freed_after_the_error_of_a_callback(self) -> None:
        """The next rollout runs after one whose caller raised.

        If this fails, free the slot in a `finally`.
        """
        async with self.opened(programs.Answers, None, programs.ONE_AT_A_TIME) as backend:
            for phase in ("workflow", "grader"):
                failing = run(backend, request(), raising=phase)
                await asyncio.gather(failing, return_exceptions=True)
            assert said((await run(backend, request())).workflow) == "42"
