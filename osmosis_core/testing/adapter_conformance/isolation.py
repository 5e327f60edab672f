"""Hundreds of rollouts, many agents, several threads and loops: each call is its agent's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from osmosis_core.testing.adapter_conformance.kit import (
    FAST_RETRY,
    AdapterSuite,
    check,
    echo_prompt,
    echo_rollout,
    expect,
    native,
    only,
    sent,
)
from osmosis_core.testing.scripted import Answer, Delay, Received, ScriptedPolicy, Status, Tool
from osmosis_core.types import RolloutSample


def _adds_then_echoes(request: Received) -> Answer:
    number = int(str(request.rollout_id).removeprefix("r"))
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return echo_rollout(request)
    return Delay(Tool("add", {"a": number, "b": 100_000}), before_sec=0.02)


class _Running(AdapterSuite):
    async def _run(self, name: str, **options: Any) -> str:
        return await self.agent(name, **options)


class Isolation(_Running):
    """Rollouts at once."""

    @check("isolation")
    async def test_concurrent_rollouts_never_meet(self) -> None:
        """If this fails, something is bound when the model is created, not when it is called."""
        model = self.fixtures.create_model()
        with ScriptedPolicy(_adds_then_echoes) as policy:

            async def one(number: int) -> RolloutSample:
                with policy.rollout(f"r{number}") as rollout:
                    tools = [_adder(number)]
                    await self.agent(text=f"prompt of r{number}.", model=model, tools=tools)
                    return await only(rollout)

            samples = await asyncio.gather(*(one(number) for number in range(self.crowd)))
        for number, sample in enumerate(samples):
            own = f"prompt of r{number}.", f"answer to r{number}.", f"sum {number + 100_000}."
            lost = [text for text in own if text not in native(sample)]
            expect(not lost, f"rollout r{number} lacks {lost}: it got another one's")
            found = [call.rollout_id for call in sample.calls]
            expect(found == [f"r{number}"] * 2, f"rollout r{number} has calls of {found}")

    @check("isolation")
    async def test_parallel_agents_of_one_rollout_are_told_apart(self) -> None:
        """If this fails, the calling agent is guessed; use agent_scope or bound_headers."""
        names = [f"agent{number:02}" for number in range(16)]
        model = self.fixtures.create_model()
        with ScriptedPolicy(echo_prompt) as policy, policy.rollout() as rollout:
            runs = [self.agent(name, f"I am {name}.", model=model) for name in names]
            await asyncio.gather(*runs)
            samples = await rollout.get_samples()
        expect(sorted(samples) == names, f"there are the samples {sorted(samples)}")
        for name, sample in samples.items():
            asked = json.dumps([call.messages for call in sample.calls])
            expect(f"I am {name}." in asked, f"the calls of {name} are another agent's")
            expect(f"I am {name}." in native(sample), f"the messages of {name} are another's")

    @check("isolation")
    async def test_failing_rollouts_disturb_no_others(self) -> None:
        """If this fails, rollouts share state that an error spoils; share only the client."""
        model = self.fixtures.create_model()

        def answer(request: Received) -> Answer:
            is_bad = int(str(request.rollout_id)) % 3 == 0
            return Status(400) if is_bad else echo_rollout(request)

        with ScriptedPolicy(answer) as policy:

            async def one(number: int) -> str | None:
                with policy.rollout(str(number), retry=FAST_RETRY), contextlib.suppress(Exception):
                    return await self.agent(model=model)
                return None

            said = await asyncio.gather(*(one(number) for number in range(30)))
        for number, text in enumerate(said):
            is_right = (text is None) if number % 3 == 0 else f"answer to {number}." in str(text)
            expect(is_right, f"rollout {number} of 30, each third of which fails, says {text!r}")

    @check("isolation")
    async def test_agent_called_inside_a_tool_is_its_own_sample(self) -> None:
        """If this fails, an inner agent's calls are taken for the outer's; scope each run."""

        def add(a: int, b: int) -> str:
            """Ask another agent."""
            return _in_thread(lambda: self._run("inner", text="INNER-PROMPT"))

        script = Tool("add", {"a": 1, "b": 2}), "INNER-ANSWER", "OUTER-ANSWER"
        with ScriptedPolicy(*script) as policy, policy.rollout() as rollout:
            await self.agent("outer", tools=[add])
            samples = await rollout.get_samples()
        counts = {name: len(sample.calls) for name, sample in samples.items()}
        expect(counts == {"outer": 2, "inner": 1}, f"the samples have the calls {counts}")
        expect("INNER-PROMPT" in native(samples["inner"]), "the inner sample lacks its prompt")
        outer = " ".join(sent(call) for call in samples["outer"].calls)
        expect("INNER-PROMPT" not in outer, "the inner prompt is in the outer agent's calls")
        starter = samples["inner"].calls[0].started_by
        expect(starter == 0, f"the inner agent was started by call {starter}, not by call 0")


class Threads(_Running):
    """Any thread, any event loop."""

    @check("threads")
    async def test_agent_in_a_thread_with_its_own_loop(self) -> None:
        """If this fails, a client is tied to the event loop that first used it."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            for name in ("first", "second"):
                await asyncio.to_thread(asyncio.run, self._run(name))
            samples = sorted(await rollout.get_samples())
        expect(samples == ["first", "second"], f"there are the samples {samples}")

    @check("threads")
    async def test_one_model_serves_one_loop_after_the_other(self) -> None:
        """If this fails, the model keeps a client of a closed loop; use the shared client."""
        model = self.fixtures.create_model()
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            await self._run("here", model=model)
            for name in ("first", "second"):
                await asyncio.to_thread(asyncio.run, self._run(name, model=model))
            await self._run("again", model=model)
        owners = [call.sample_id for call in rollout.calls if call.received]
        expect(owners == ["here", "first", "second", "again"], f"answered calls: {owners}")

    @check("threads")
    async def test_threads_at_once_never_meet(self) -> None:
        """If this fails, state is shared between threads; keep it in the run or a ContextVar."""
        model = self.fixtures.create_model()
        with ScriptedPolicy(echo_rollout) as policy:

            def one(number: int) -> str:
                with policy.rollout(f"r{number}"):
                    return asyncio.run(self._run("agent", model=model))

            said = await asyncio.gather(*(asyncio.to_thread(one, n) for n in range(8)))
        wrong = [text for n, text in enumerate(said) if f"answer to r{n}." not in text]
        expect(not wrong, f"threads got the answers {wrong} of others")

    @check("sync")
    async def test_blocking_run_belongs_to_the_rollout(self) -> None:
        """If this fails, the blocking entry point loses the rollout; copy the context there."""
        with ScriptedPolicy("the answer is 42") as policy, policy.rollout("r1") as rollout:
            said = await asyncio.to_thread(self.fixtures.run_sync, "agent", _hello())
            sample = await only(rollout)
        expect("the answer is 42" in said, f"run_sync returned {said!r}")
        found = [(request.rollout_id, request.sample_id) for request in policy.requests]
        expect(found == [("r1", "agent")], f"requests are labelled {found}")
        expect("the answer is 42" in native(sample), "the answer is not in the sample")

    @check("sync")
    async def test_blocking_runs_in_threads_never_meet(self) -> None:
        """If this fails, blocking runs share state; keep it in the run or a ContextVar."""
        with ScriptedPolicy(echo_rollout) as policy:

            def one(number: int) -> str:
                with policy.rollout(f"r{number}"):
                    return self.fixtures.run_sync("agent", _hello())

            said = await asyncio.gather(*(asyncio.to_thread(one, n) for n in range(6)))
        wrong = [text for n, text in enumerate(said) if f"answer to r{n}." not in text]
        expect(not wrong, f"threads got the answers {wrong} of others")

    @check("sync")
    async def test_blocking_run_raises_what_the_policy_says(self) -> None:
        """If this fails, the blocking entry point hides errors or retries; do neither."""
        with ScriptedPolicy(Status(400)) as policy, policy.rollout():
            try:
                await asyncio.to_thread(self.fixtures.run_sync, "agent", _hello())
            except Exception:
                expect(len(policy.requests) == 1, "a refused request was repeated")
            else:
                expect(False, "a refused call counts as success")


def _hello() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hello"}]


def _adder(number: int) -> Callable[..., str]:
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"sum {a + b}." if a == number else f"called with {a}, not {number}"

    return add


def _in_thread(start: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """Run a coroutine to its end from a tool, whether a loop is running here or not."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: context.run(lambda: asyncio.run(start()))).result()
