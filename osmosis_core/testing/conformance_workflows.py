"""The workflows, graders and configs of `BackendConformance`; any process can import them by path.

They are told what to do by the request's metadata, and answer through their samples: neither needs
memory or files shared with the suite.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

from pydantic import Field

from osmosis_core.active import get_rollout_context
from osmosis_core.config import AgentWorkflowConfig, ConcurrencyConfig
from osmosis_core.context import SampleSource
from osmosis_core.errors import PolicyError
from osmosis_core.grader import Grader, GraderContext
from osmosis_core.policy import WireRequest, exchange
from osmosis_core.types import AgentWorkflowOutput, Message, RolloutSample
from osmosis_core.workflow import AgentWorkflow, AgentWorkflowContext

type Context = AgentWorkflowContext[Any]


class ToolsConfig(AgentWorkflowConfig):
    """A config with something in it that a workflow can change."""

    tools: list[str] = Field(default_factory=list[str])


def _at_once(rollouts: int | None) -> AgentWorkflowConfig:
    concurrency = ConcurrencyConfig(max_concurrent=rollouts)
    return AgentWorkflowConfig(name="conformance", concurrency=concurrency)


ONE_AT_A_TIME = _at_once(1)
TWO_AT_A_TIME = _at_once(2)
UNLIMITED = _at_once(None)
TOOLS = ToolsConfig(name="conformance", tools=["add"])

ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (TimeoutError, ValueError, TypeError, AssertionError, RuntimeError, SystemExit)
}
"""What `Raises` and `GraderRaises` can be told to raise."""


def import_path(thing: object) -> str:
    """`"module:attr"` of a class or config of the suite, for backends that want a string."""
    if isinstance(thing, type):
        return f"{thing.__module__}:{thing.__qualname__}"
    return f"{__name__}:{next(name for name, value in globals().items() if value is thing)}"


def answer(text: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def _option(ctx: Context | GraderContext, name: str) -> Any:
    return (ctx.metadata or {})[name]


async def _forever() -> Any:
    await asyncio.Event().wait()


class Answers(AgentWorkflow[Any]):
    """Answers its prompt."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        return [*ctx.prompt, answer("42")]


class Hangs(AgentWorkflow[Any]):
    """Never ends by itself."""

    async def run(self, ctx: Context) -> None:
        """Wait to be cancelled."""
        await _forever()


class HangsIfTold(AgentWorkflow[Any]):
    """Answers, or never ends when the metadata says `hang`."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        return await _forever() if ctx.metadata else [answer("42")]


class SwallowsCancellation(AgentWorkflow[Any]):
    """Answers when it is cancelled, as if nothing had happened."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        try:
            return await _forever()
        except asyncio.CancelledError:
            return [answer("42")]


class Blocks(AgentWorkflow[Any]):
    """Blocks its thread for `sec` seconds, then answers."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        time.sleep(_option(ctx, "sec"))  # noqa: ASYNC251 - blocking is what is tested
        return [answer("42")]


class Raises(AgentWorkflow[Any]):
    """Raises the `error` that the metadata names."""

    async def run(self, ctx: Context) -> None:
        """Raise."""
        raise ERRORS[_option(ctx, "error")]("told to")


class Returns(AgentWorkflow[Any]):
    """Returns what the metadata says under `returns`, or a string if it says nothing."""

    async def run(self, ctx: Context) -> Any:
        """Return it."""
        match _option(ctx, "returns"):
            case "none":
                return None
            case "output":
                metrics = {"steps": 2.0}
                info = {"note": "kept"}
                return AgentWorkflowOutput(messages=[answer("42")], metrics=metrics, info=info)
            case _:
                return "42"


class ChangesItsInput(AgentWorkflow[ToolsConfig]):
    """Answers with what it was given, then spoils it."""

    async def run(self, ctx: AgentWorkflowContext[ToolsConfig]) -> list[Message]:
        """Return the conversation."""
        assert ctx.config is not None and ctx.metadata is not None
        given = f"{ctx.prompt} {ctx.config.tools} {ctx.metadata}"
        ctx.prompt[0]["content"] = "spoiled"
        ctx.config.tools.append("spoiled")
        ctx.metadata["list"].append("spoiled")
        return [answer(given)]


class NamesItsRollout(AgentWorkflow[Any]):
    """Answers with the id of the active rollout, as seen again and again while others run."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        seen: set[str] = set()
        for _ in range(5):
            context = get_rollout_context()
            seen.add(context.rollout_id if context else "no rollout")
            await asyncio.sleep(0.002)
        return [answer(" ".join(sorted(seen)))]


class TimesItself(AgentWorkflow[Any]):
    """Says in its metrics when it began and ended, in seconds since the epoch."""

    async def run(self, ctx: Context) -> AgentWorkflowOutput:
        """Return the conversation."""
        began = time.time()
        await asyncio.sleep(0.02)
        times = {"began": began, "ended": time.time()}
        return AgentWorkflowOutput(messages=[answer("42")], metrics=times)


class WritesArtifact(AgentWorkflow[Any]):
    """Writes its prompt to a file and answers with the file's directory."""

    async def run(self, ctx: Context) -> list[Message]:
        """Return the conversation."""
        assert ctx.artifacts_dir is not None
        (ctx.artifacts_dir / "prompt.txt").write_text(str(ctx.prompt))
        return [answer(str(ctx.artifacts_dir))]


class CallsPolicy(AgentWorkflow[Any]):
    """Asks the policy once."""

    async def run(self, ctx: Context) -> None:
        """Post the prompt."""
        body = {"model": "any", "messages": ctx.prompt}
        headers = {"content-type": "application/json"}
        path, content = "/chat/completions", json.dumps(body).encode()
        answer = await exchange(WireRequest("POST", path, headers, content))
        if answer.status != 200:
            raise PolicyError(answer.body.decode("utf-8", "replace"))


class TwoAgents(AgentWorkflow[Any]):
    """Registers the agents `solver` and `judge`, then raises if the metadata says `fail`."""

    async def run(self, ctx: Context) -> None:
        """Register them."""
        context = get_rollout_context()
        assert context is not None
        for name in ("solver", "judge"):
            context.register_sample_source(name, _Agent(name))
        if (ctx.metadata or {}).get("fail"):
            raise RuntimeError("failed halfway")


class _Agent(SampleSource):
    def __init__(self, name: str) -> None:
        self._name = name

    async def get_sample(self, sample_id: str) -> RolloutSample:
        return RolloutSample(id=sample_id, messages=[answer(self._name)])


class Rewards(Grader):
    """Gives every sample 1.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


class RewardsSolver(Grader):
    """Rewards `solver`; does to `judge` what the metadata says under `judge`."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        ctx.set_sample_reward("solver", 1.0)
        match _option(ctx, "judge"):
            case "remove":
                ctx.samples["judge"].remove_sample = True
            case "helper":
                ctx.samples["judge"].trainable = False
            case "nan":
                ctx.set_sample_reward("judge", math.nan)
            case _:
                pass


class GraderHangs(Grader):
    """Gives every sample 1.0 and never ends."""

    async def grade(self, ctx: GraderContext) -> None:
        """Wait to be cancelled."""
        await Rewards().grade(ctx)
        await _forever()


class GraderRaises(Grader):
    """Gives every sample 1.0 and raises the `error` that the metadata names."""

    async def grade(self, ctx: GraderContext) -> None:
        """Raise."""
        await Rewards().grade(ctx)
        raise ERRORS[_option(ctx, "error")]("told to")


class GraderChangesItsInput(Grader):
    """Spoils its metadata."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        await Rewards().grade(ctx)
        _option(ctx, "list").append("spoiled")


class SeesNoRollout(Grader):
    """Rewards with 1.0 if no rollout is active, else with 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        ctx.set_reward(0.0 if get_rollout_context() else 1.0)


class ReadsArtifact(Grader):
    """Rewards with 1.0 if it finds what `WritesArtifact` wrote, where it wrote it."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade."""
        assert ctx.artifacts_dir is not None
        is_same = str(ctx.artifacts_dir) == ctx.sample.messages[-1]["content"]
        ctx.set_reward(float(is_same and (ctx.artifacts_dir / "prompt.txt").exists()))
