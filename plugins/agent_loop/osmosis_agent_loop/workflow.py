"""An agent loop as a workflow: one class that every backend runs, and a call for inside of one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from pydantic import Field, model_validator

from osmosis_agent_loop.agent_loop import (
    LOCAL_URL,
    RolloutAgentLoop,
    offered_tools,
    stub_request,
    tool_dicts,
    unpacked_tools,
)
from osmosis_agent_loop.client import LLMClientProtocol, PolicyClient, speak_to_trainer
from osmosis_agent_loop.context import RolloutContext, RolloutResult
from osmosis_agent_loop.errors import AgentLoopError
from osmosis_agent_loop.schemas import MessageDict, RolloutRequest, SamplingParamsDict
from osmosis_agent_loop.settings import RolloutSettings, get_settings
from osmosis_agent_loop.tools import on_executed
from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConfigError,
    NoActiveRolloutError,
    RolloutSample,
    SampleSource,
    WorkflowError,
    get_rollout_context,
)
from osmosis_core import RolloutContext as Rollout
from osmosis_core.discovery import load_target
from osmosis_core.policy import current_scope

ASKED = "osmosis_agent_loop"
"""Key of a row's metadata under which a trainer's request travels to where the loop runs."""


class LoopReference:
    """A loop that is shared instead of copied, and pickled by the name of its global if it has one.

    Args:
        loop: the loop, a class of loops (made without arguments), or `"module:attr"` of one.

    Raises:
        ConfigError: there is no agent loop.
    """

    def __init__(self, loop: RolloutAgentLoop | type[RolloutAgentLoop] | str) -> None:
        self.loop = as_agent_loop(loop)

    def __deepcopy__(self, memo: object) -> LoopReference:
        return self

    def __reduce__(self) -> tuple[type[LoopReference], tuple[Any]]:
        return LoopReference, (self._name() or self.loop,)

    def _name(self) -> str | None:
        module = type(self.loop).__module__
        values = vars(sys.modules[module]).items() if module in sys.modules else ()
        return next((f"{module}:{name}" for name, value in values if value is self.loop), None)


def as_agent_loop(given: object) -> RolloutAgentLoop:
    """The agent loop that an object, a class or `"module:attr"` is.

    Raises:
        ConfigError: it is none, or its class cannot be made without arguments.
    """
    if isinstance(given, str):
        module, attribute = load_target(given)
        given = getattr(module, attribute, None) if attribute else None
    if isinstance(given, type) and issubclass(given, RolloutAgentLoop):
        try:
            given = given()
        except Exception as error:  # boundary: user code raises anything
            text = f"agent loop {given.__name__} cannot be made without arguments: {error}"
            raise ConfigError(f"{text}; name an instance of it") from error
    if not isinstance(given, RolloutAgentLoop):
        raise ConfigError(f"{given!r} is no agent loop; give a RolloutAgentLoop")
    return given


class AgentLoopConfig(AgentWorkflowConfig):
    """Which loop a workflow runs, and what its requests say where no trainer does."""

    loop: Any
    """A `RolloutAgentLoop`, its class, or `"module:attr"`; read it as `agent_loop`."""
    max_turns: int = 10
    max_tokens_total: int = 8192
    completion_params: SamplingParamsDict = Field(default_factory=dict[str, Any])
    settings: RolloutSettings | None = None
    """The process's where None."""
    debug_dir: str | None = None
    """Where `ctx.log_event` writes; None for nowhere."""

    @model_validator(mode="before")
    @classmethod
    def _named_like_the_loop(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "loop" not in values:
            return values  # pyright: ignore[reportUnknownVariableType]
        given = cast("dict[str, Any]", values)
        loop = given["loop"]
        loop = loop if isinstance(loop, LoopReference) else LoopReference(loop)
        name: object = getattr(loop.loop, "name", None)
        name = name if isinstance(name, str) else type(loop.loop).__name__
        return {"name": name, **given, "loop": loop}

    @property
    def agent_loop(self) -> RolloutAgentLoop:
        """The loop itself."""
        return self.loop.loop


class AgentLoopWorkflow(AgentWorkflow[AgentLoopConfig]):
    """Runs the loop of its config; what the loop returns is the sample, an ERROR fails the rollout.

    Raises:
        ConfigError: it is given no `AgentLoopConfig`.
    """

    def __init__(self, config: AgentLoopConfig | None = None) -> None:
        super().__init__(config)
        if not isinstance(config, AgentLoopConfig):
            raise ConfigError("AgentLoopWorkflow needs workflow_config=AgentLoopConfig(loop=...)")

    async def run(self, ctx: AgentWorkflowContext[AgentLoopConfig]) -> None:
        """Run the loop on the row's prompt and metadata, or on what a trainer asked for."""
        config, rollout = ctx.config, get_rollout_context()
        assert config is not None and rollout is not None
        metadata = dict(ctx.metadata or {})
        asked = metadata.pop(ASKED, None)
        settings = config.settings or get_settings()
        tools = None
        if asked is not None:
            tools = unpacked_tools(asked.pop("tools"))
            speak_to_trainer(rollout, settings.client)
            if not asked.pop("has_key"):
                rollout.api_key = None  # not the environment's
        fields: dict[str, Any] = {
            "server_url": LOCAL_URL,
            "tool_server_url": None,
            "max_turns": config.max_turns,
            "max_tokens_total": config.max_tokens_total,
            "completion_params": config.completion_params,
        }
        fields |= {
            **(asked or {}),
            "rollout_id": rollout.rollout_id,
            "messages": ctx.prompt,
            "metadata": metadata,
            "api_key": rollout.api_key if asked is not None else None,
            "idempotency_key": None,
        }
        request = RolloutRequest.model_construct(None, **fields)
        result = await roll_out(
            config.agent_loop,
            request,
            settings=settings,
            debug_dir=config.debug_dir,
            tools=tools,
        )
        if result.is_error:
            raise WorkflowError(result.error_message or "unknown error")


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
        json.dumps(final)
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
