"""Run a loop in the active rollout, and keep what it returned as a sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from osmosis_agent_loop.agent_loop import (
    RolloutAgentLoop,
    offered_tools,
    stub_request,
    tool_dicts,
)
from osmosis_agent_loop.client import LLMClientProtocol, PolicyClient
from osmosis_agent_loop.context import RolloutContext, RolloutResult
from osmosis_agent_loop.errors import AgentLoopError
from osmosis_agent_loop.schemas import MessageDict, RolloutRequest
from osmosis_agent_loop.settings import RolloutSettings, get_settings
from osmosis_agent_loop.tools import on_executed
from osmosis_core import NoActiveRolloutError, RolloutSample, SampleSource, get_rollout_context
from osmosis_core import RolloutContext as Rollout
from osmosis_core.policy import current_scope


async def run_agent_loop(
    agent_loop: RolloutAgentLoop,
    messages: list[MessageDict],
    *,
    debug_dir: str | None = None,
    settings: RolloutSettings | None = None,
    **fields: Any,
) -> RolloutResult:
    """Run a loop inside an AgentWorkflow, beside agents of any framework; it is a sample there.

    Args:
        agent_loop: the loop; its name is the sample's id.
        messages: the prompt.
        debug_dir: where `ctx.log_event` writes.
        settings: the process's by default.
        fields: further fields of the `RolloutRequest`, such as `max_turns` or `metadata`.

    Raises:
        NoActiveRolloutError: there is no rollout here.
        AgentLoopError: `get_tools` or `run` did not do what they must; what `run` raises is raised.
    """
    rollout = get_rollout_context()
    rollout_id = rollout.rollout_id if rollout else ""
    request = stub_request(rollout_id or "local", messages=messages, **fields)
    return await roll_out(agent_loop, request, debug_dir=debug_dir, settings=settings)


async def roll_out(
    agent_loop: RolloutAgentLoop,
    request: RolloutRequest,
    *,
    wrap: Callable[[LLMClientProtocol, list[Any]], LLMClientProtocol] | None = None,
    settings: RolloutSettings | None = None,
    debug_dir: str | None = None,
    tools: list[Any] | None = None,
) -> RolloutResult:
    """Run a loop on a request in the active rollout; raises as `run_agent_loop`.

    `wrap` is given the client and the tools, and returns the client for the loop. `tools` are
    those that a trainer was told already.
    """
    rollout = get_rollout_context()
    if rollout is None:
        raise NoActiveRolloutError("run_agent_loop")
    settings = settings or get_settings()
    source = _LoopSample()
    sample_id = rollout.register_sample_source(agent_loop.name, source, derived=True)
    is_trainer = tools is not None
    tools = await offered_tools(agent_loop, request) if tools is None else tools
    client = PolicyClient(
        rollout,
        sample_id,
        tools=None if is_trainer else tool_dicts(tools),
        is_trainer=is_trainer,
        settings=settings.client,
        trainable=current_scope().trainable,
    )
    llm = client if wrap is None else wrap(client, tools)
    ctx = RolloutContext(request, tools, llm, _debug_dir=debug_dir)
    token = on_executed.set(ctx.count_executed)
    try:
        source.result = _checked(await agent_loop.run(ctx), agent_loop.name)
    finally:
        on_executed.reset(token)
        source.warnings = [*client.warnings, *_rewrites(rollout, sample_id)]
    if settings.strict_history and (rewrites := _rewrites(rollout, sample_id)):
        raise AgentLoopError(rewrites[0])
    return source.result


class _LoopSample(SampleSource):
    """What a loop returned; the conversation is told from the wire where it returned nothing."""

    def __init__(self) -> None:
        self.result: RolloutResult | None = None
        self.warnings: list[str] = []

    async def get_sample(self, sample_id: str) -> RolloutSample:
        result, told = self.result, {"warnings": self.warnings} if self.warnings else {}
        if result is None:
            return RolloutSample(id=sample_id, extra_fields=told)
        said = {
            "status": str(result.status),
            "finish_reason": result.finish_reason,
            "error_message": result.error_message,
        }
        return RolloutSample(
            id=sample_id,
            messages=result.final_messages,
            reward=result.reward,
            metrics=result.metrics.model_dump() if result.metrics else {},
            extra_fields={"agent_loop": said, **told},
        )


def _checked(result: object, name: str) -> RolloutResult:
    called = f"run() of agent loop {name!r}"
    if not isinstance(result, RolloutResult):
        kind = "None" if result is None else type(result).__name__
        raise AgentLoopError(
            f"{called} returned {kind}; return ctx.complete(...) or ctx.error(...)"
        )
    final: Any = result.final_messages
    try:
        if not isinstance(final, list) or not all(isinstance(m, dict) for m in cast("Any", final)):
            raise TypeError("they are no list of dicts")
        json.dumps(final, allow_nan=False)
        checked = replace(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentLoopError(f"{called} returned unusable final messages: {error}") from error
    return checked


def _rewrites(rollout: Rollout, sample_id: str) -> list[str]:
    """Where the loop did not go on from what was said before, in a sentence each."""
    findings = [f for call in rollout.calls if call.sample_id == sample_id for f in call.findings]
    return [
        f"call {finding.call} {finding.text} ({finding.kind}); append to the messages and never "
        "change earlier ones, the trainer aligns tokens with them"
        for finding in findings
    ]
