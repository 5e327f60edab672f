"""Further programs of `BackendConformance`: what has to survive the way to a backend and back."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from osmosis_core.active import get_rollout_context
from osmosis_core.context import RolloutContext, SampleSource
from osmosis_core.errors import PolicyError
from osmosis_core.grader import Grader, GraderContext
from osmosis_core.plugins import get_plugins
from osmosis_core.policy import WireRequest, agent_scope, exchange
from osmosis_core.policy.assemble import Json
from osmosis_core.testing.conformance_workflows import Context, answer
from osmosis_core.types import AgentWorkflowOutput, Message, RolloutErrorCategory, RolloutSample
from osmosis_core.workflow import AgentWorkflow

_AGENT = RolloutErrorCategory.AGENT_ERROR
_seen: ContextVar[str] = ContextVar("seen", default="nothing")


class ToldTo(BaseException):
    """No `Exception` at all."""


def _unpicklable() -> BaseException:
    class Unpicklable(Exception):
        def __init__(self, text: str, lock: object) -> None:
            super().__init__(text)
            self.lock = lock

    return Unpicklable("told to", threading.Lock())


def _unprintable() -> BaseException:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    return Unprintable()


def _caused() -> BaseException:
    error = RuntimeError("told to")
    error.__cause__ = PolicyError("gone")
    return error


ODD_ERRORS: dict[str, tuple[Callable[[], BaseException], str, RolloutErrorCategory]] = {
    "unpicklable": (_unpicklable, "told to", _AGENT),
    "unprintable": (_unprintable, "Unprintable", _AGENT),
    "base": (lambda: ToldTo("told to"), "told to", _AGENT),
    "cancelled": (asyncio.CancelledError, "raised CancelledError", _AGENT),
    "caused": (_caused, "told to", RolloutErrorCategory.HTTP_ERROR),
    "group": (
        lambda: ExceptionGroup("two", [ValueError("told to"), RuntimeError("not this")]),
        "told to",
        RolloutErrorCategory.VALIDATION_ERROR,
    ),
}
"""What `RaisesOddly` and `GraderRaisesOddly` can be told to raise, and what becomes of it."""


class RaisesOddly(AgentWorkflow[Any]):
    """Raises the `error` that the metadata names."""

    async def run(self, ctx: Context) -> Any:
        """Raise it, or answer when nothing is named."""
        if "error" in (ctx.metadata or {}):
            raise ODD_ERRORS[(ctx.metadata or {})["error"]][0]()
        return [answer("42")]


class GraderRaisesOddly(Grader):
    """Raises the `grader_error` that the metadata names."""

    async def grade(self, ctx: GraderContext) -> None:
        """Raise it."""
        raise ODD_ERRORS[(ctx.metadata or {})["grader_error"]][0]()


class SeesVariable(AgentWorkflow[Any]):
    """Sets a context variable and answers with what it was before."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        before = _seen.get()
        _seen.set("somebody else's")
        await asyncio.sleep(0.01)
        return [answer(before)]


class SaysWhoListens(AgentWorkflow[Any]):
    """Answers with its process and whether observers are silent there."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        return [answer(f"{os.getpid()} {get_plugins().is_silent}")]


class Converses(AgentWorkflow[Any]):
    """Two agents: `solver` asks twice, with a tool between; `späher` answers its prompt once."""

    async def run(self, ctx: Context) -> AgentWorkflowOutput | None:
        """Let them talk; raise in the middle if the metadata says `fail`."""
        rollout = get_rollout_context()
        assert rollout is not None
        solver, scout = _History(rollout, "solver"), _History(rollout, "späher")
        await solver.ask(*ctx.prompt)
        if (ctx.metadata or {}).get("fail"):
            raise RuntimeError("failed halfway")
        await solver.ask({"role": "tool", "tool_call_id": "call_1", "content": "☃ 6"})
        await scout.ask({"role": "user", "content": "and you?"})


class _History(SampleSource):
    def __init__(self, rollout: RolloutContext, name: str) -> None:
        self._messages: list[Message] = []
        self._id = rollout.register_sample_source(name, self)

    async def ask(self, *messages: Message) -> None:
        self._messages += messages
        body: Json = {"model": "any", "temperature": 0.5, "messages": self._messages}
        headers = {"content-type": "application/json"}
        with agent_scope(self._id):
            content = json.dumps(body).encode()
            got = await exchange(WireRequest("POST", "/chat/completions", headers, content))
        if got.status != 200:
            raise PolicyError(got.body.decode("utf-8", "replace"))
        self._messages.append(json.loads(got.body)["choices"][0]["message"])

    async def get_sample(self, sample_id: str) -> RolloutSample:
        metrics = {"turns": len(self._messages), "share": 0.1}
        return RolloutSample(id=sample_id, messages=list(self._messages), metrics=metrics)


class RewardsByLength(Grader):
    """Rewards every sample by how much it says, and marks it."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        for sample_id, sample in ctx.samples.items():
            ctx.set_sample_reward(sample_id, len(sample.messages) / 7)
            sample.metrics["label"] = ctx.label
            sample.extra_fields["graded"] = True
