"""A cancelled run ends at once, leaves nothing running, and says so in its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from osmosis_core.context import RolloutContext
from osmosis_core.testing.adapter_conformance.kit import (
    AdapterSuite,
    check,
    expect,
    native,
    only,
    tasks_beyond,
)
from osmosis_core.testing.scripted import Delay, Endless, Received, ScriptedPolicy, Status

_LATE = Delay("late", before_sec=30)


class Cancelling(AdapterSuite):
    """Cancelled while the policy has not answered."""

    @asynccontextmanager
    async def _cancelled(
        self, policy: ScriptedPolicy, **options: object
    ) -> AsyncGenerator[RolloutContext]:
        """A rollout whose one agent was cancelled mid-call."""
        with policy.rollout("conformance") as rollout:
            run = asyncio.ensure_future(self.agent(text="ASKED", **options))  # pyright: ignore[reportArgumentType]
            await asyncio.to_thread(policy.wait_for_requests, 1)
            run.cancel()
            _, waiting = await asyncio.wait([run], timeout=5)
            expect(not waiting, "a cancelled run goes on")
            expect(run.cancelled(), "a cancelled run ends as if nothing had happened")
            yield rollout

    @check("cancellation")
    async def test_cancelled_agent_leaves_its_sample(self) -> None:
        """If this fails, a cancelled run loses what was said so far."""
        with ScriptedPolicy(_LATE) as policy:
            async with self._cancelled(policy) as rollout:
                sample = await only(rollout)
        expect("ASKED" in native(sample) or "ASKED" in str(sample.calls[0].messages), "no prompt")
        expect(sample.calls[0].error, "the cancelled call is not recorded as failed")

    @check("cancellation")
    async def test_cancelled_run_leaves_no_task(self) -> None:
        """If this fails, cancelling the run leaves a task; await or cancel what you start."""
        tasks = asyncio.all_tasks()
        with ScriptedPolicy(Endless()) as policy:
            async with self._cancelled(policy) as rollout:
                left = await tasks_beyond(tasks)
        expect(not left, f"these tasks are still there: {left}")
        expect(rollout.calls[0].error, "the cancelled call is not recorded as failed")

    @check("cancellation")
    async def test_cancelled_run_calls_no_more(self) -> None:
        """If this fails, a cancelled call is tried again; let CancelledError through."""
        with ScriptedPolicy(Status(503, retry_after="0.2")) as policy:
            async with self._cancelled(policy) as rollout:
                asked = len(policy.requests)
                await asyncio.sleep(0.5)
                expect(len(policy.requests) == asked, "the policy is asked again after the cancel")
        expect(len(rollout.calls) == 1, f"one run made {len(rollout.calls)} calls")

    @check("cancellation")
    async def test_timeout_of_the_caller_ends_the_run(self) -> None:
        """If this fails, CancelledError is swallowed; catch Exception, never BaseException."""
        with ScriptedPolicy(_LATE) as policy, policy.rollout() as rollout:
            try:
                async with asyncio.timeout(0.5):
                    await self.agent()
            except TimeoutError:
                pass
            else:
                expect(False, "the run ended without the TimeoutError of asyncio.timeout")
        expect(rollout.calls[0].error, "the cut call is not recorded as failed")

    @check("cancellation")
    async def test_cancelling_one_run_leaves_the_others(self) -> None:
        """If this fails, runs share a task or a connection; share only the client."""
        model = self.fixtures.create_model()

        def answer(request: Received) -> Delay:
            is_slow = request.sample_id == "slow"
            return _LATE if is_slow else Delay("in time", before_sec=0.3)

        with ScriptedPolicy(answer) as policy, policy.rollout():
            names = ("slow", *(f"quick{number}" for number in range(5)))
            runs = [asyncio.ensure_future(self.agent(name, model=model)) for name in names]
            await asyncio.to_thread(policy.wait_for_requests, len(runs))
            runs[0].cancel()
            slow, *said = await asyncio.gather(*runs, return_exceptions=True)
        expect(isinstance(slow, asyncio.CancelledError), f"the cancelled run ended with {slow!r}")
        expect(all("in time" in str(text) for text in said), f"the others say {said}")

    @check("cancellation")
    async def test_model_works_after_a_cancelled_run(self) -> None:
        """If this fails, cancelling leaves the model or its client in use; clean up in finally."""
        model = self.fixtures.create_model()
        with ScriptedPolicy(_LATE, "fine now") as policy:
            async with self._cancelled(policy, model=model):
                pass
            with policy.rollout():
                said = await self.agent(model=model)
        expect("fine now" in said, f"the next run answered {said!r}")
