"""What the suite stands on: checks with advice, and agents run against a scripted policy."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

from osmosis_core.config import RetryPolicy, WireOptions
from osmosis_core.context import RolloutContext
from osmosis_core.errors import describe, one_line
from osmosis_core.testing.adapter_conformance.fixtures import (
    OPTIONAL,
    AdapterFixtures,
    declared,
)
from osmosis_core.testing.scripted import Answer, Delay, Received, ScriptedPolicy, Tool
from osmosis_core.types import Message, PolicyCall, RolloutSample

FAST_RETRY = RetryPolicy(max_attempts=3, base_delay_sec=0.01)
CAPTURE = WireOptions(capture={"return_token_ids": True, "logprobs": True})


class CheckFailed(AssertionError):
    """A check of the suite: what is wrong, then what to do about it, on one line."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it is about, and what to do when it fails."""

    name: str
    capability: str
    advice: str


CHECKS: dict[str, Check] = {}
"""Every check of the suite by its name."""

type _Body[S: AdapterSuite] = Callable[[S], Awaitable[None]]


def check[S: AdapterSuite](capability: str) -> Callable[[_Body[S]], _Body[S]]:
    """Make a method a check of a capability; its docstring is the advice when it fails."""

    def decorate(body: _Body[S]) -> _Body[S]:
        one = Check(body.__name__, capability, one_line(body.__doc__ or ""))
        CHECKS[one.name] = one

        @functools.wraps(body)
        async def run(suite: S) -> None:
            suite.needs(capability)
            try:
                async with asyncio.timeout(suite.patience_sec):
                    await body(suite)
            except SkipTest:
                raise
            except Exception as error:
                raise CheckFailed(f"{_wrong(error)}. {one.advice}") from error

        return run

    return decorate


def _wrong(error: Exception) -> str:
    said = one_line(describe(error))
    return said if isinstance(error, AssertionError) else f"{type(error).__name__}: {said}"


def expect(condition: object, wrong: str) -> None:
    """Fail the check, saying what is wrong, unless the condition is true."""
    if not condition:
        raise AssertionError(wrong)


class AdapterSuite:
    """What every part of the suite builds on."""

    fixtures: AdapterFixtures
    crowd: int = 200
    """Rollouts at once where isolation is tested."""
    patience_sec: float = 60.0
    """Longest time that one check may take; a guard against hanging, not a measure."""

    def needs(self, capability: str) -> None:
        """Skip unless the capability is declared or every adapter must have it."""
        if capability in OPTIONAL and capability not in declared(self.fixtures):
            kind = type(self.fixtures).__name__
            raise SkipTest(f"{kind} does not declare {capability}: {OPTIONAL[capability]}")

    def agent(
        self,
        name: str = "agent",
        text: str = "hello",
        *,
        prompt: list[Message] | None = None,
        model: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> Awaitable[str]:
        """One agent in the active rollout; fixtures that take `add=` instead of tools get that."""
        options: dict[str, Any] = {"tools": tools} if tools else {}
        if tools and "tools" not in inspect.signature(self.fixtures.run_agent).parameters:
            options = {"add": tools[0]}
        return self.fixtures.run_agent(name, prompt or user(text), model=model, **options)

    async def run(
        self, policy: ScriptedPolicy, name: str = "agent", **options: Any
    ) -> RolloutContext:
        """One agent in one rollout of its own; returns the rollout."""
        with policy.rollout("conformance", retry=FAST_RETRY) as rollout:
            await self.agent(name, **options)
        return rollout

    async def sample(self, policy: ScriptedPolicy, **options: Any) -> RolloutSample:
        """The one sample of one agent in one rollout."""
        return await only(await self.run(policy, **options))

    async def failure(
        self, policy: ScriptedPolicy, **options: Any
    ) -> tuple[Exception | None, RolloutContext]:
        """What an agent raises, if it does, and its rollout."""
        with policy.rollout("conformance", retry=FAST_RETRY) as rollout:
            try:
                await self.agent(**options)
            except Exception as error:
                return error, rollout
        return None, rollout


def user(text: str) -> list[Message]:
    """A prompt of one user message."""
    return [{"role": "user", "content": text}]


async def only(rollout: RolloutContext) -> RolloutSample:
    """The rollout's one sample."""
    samples = await rollout.get_samples()
    expect(len(samples) == 1, f"expected one sample, there is {list(samples)}")
    return next(iter(samples.values()))


async def tasks_beyond(known: set[asyncio.Task[Any]], patience_sec: float = 3.0) -> list[str]:
    """Names of tasks that are still there, once those that are about to end have done so."""
    loop = asyncio.get_running_loop()
    late = loop.time() + patience_sec
    while asyncio.all_tasks() - known and loop.time() < late:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    return [task.get_name() for task in asyncio.all_tasks() - known]


def native(sample: RolloutSample) -> str:
    """The framework's own messages, as text to search in."""
    return json.dumps(sample.messages, ensure_ascii=False, default=repr)


def sent(call: PolicyCall | Received) -> str:
    """The messages of a request, as text to search in."""
    messages = call.messages if isinstance(call, PolicyCall) else call.body["messages"]
    return json.dumps(messages, ensure_ascii=False)


def is_told(policy: ScriptedPolicy) -> bool:
    """True when the policy's last request ends with tool results that speak of an error."""
    last = policy.requests[-1].body["messages"][-1]
    said = str(last["content"]).lower()
    words = ("error", "fail", "exception", "broke", "not found", "unknown")
    return last["role"] == "tool" and any(word in said for word in words)


def echo_rollout(request: Received) -> Answer:
    """Answer with the rollout's id, a moment later."""
    return Delay(f"answer to {request.rollout_id}.", before_sec=0.02)


def echo_prompt(request: Received) -> Answer:
    """Answer with the last message, a moment later."""
    return Delay(json.dumps(request.body["messages"][-1]["content"]), before_sec=0.02)


def tool_then(text: str, **arguments: Any) -> Callable[[Received], Answer]:
    """Call `add` once in each conversation, then say the text."""

    def answer(request: Received) -> Answer:
        is_done = any(message["role"] == "tool" for message in request.body["messages"])
        return text if is_done else Tool("add", arguments or {"a": 1, "b": 2})

    return answer


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and what caused it, the outermost first."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
