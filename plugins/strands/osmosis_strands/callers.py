"""Which Strands agent is calling the policy, also where Strands itself does not say."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import uuid
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, cast

from strands import Agent
from strands.hooks import (
    AfterInvocationEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    HookOrder,
)
from strands.middleware.stages import InvokeModelContext, InvokeModelStage
from strands.models import Model

from osmosis_core import RolloutContext, get_rollout_context
from osmosis_core.policy import current_scope

_DEFAULT_NAME = "Strands Agents"
_DEFAULT_ID = "default"
_HANDOFF = "handoff_to_agent"
"""Name of the tool that a swarm gives to its agents; each swarm has one, which they share."""


class Bindable(Protocol):
    """A policy model, as far as calls of agents are concerned."""

    @property
    def is_bound(self) -> bool:
        """True when it belongs to a rollout and sample already."""
        ...

    def for_agent(self, agent: Agent, rollout_ctx: RolloutContext) -> Model:
        """A copy whose calls are the agent's."""
        ...


@dataclass(frozen=True, slots=True)
class _Invocation:
    agent: weakref.ref[Agent]
    rollout: RolloutContext | None
    scope: object
    outer: _Invocation | None
    starter: str | None
    """Sample of the agent that handed over to this one."""


@dataclass(frozen=True, slots=True)
class _Handoff:
    rollout: weakref.ref[RolloutContext]
    sample_id: str
    target: str


_running: ContextVar[_Invocation | None] = ContextVar("osmosis_strands_invocation", default=None)
_streams: weakref.WeakKeyDictionary[Agent, list[AsyncGenerator[Any]]] = weakref.WeakKeyDictionary()
_watched: weakref.WeakSet[Agent] = weakref.WeakSet()
_handoffs: weakref.WeakKeyDictionary[object, _Handoff] = weakref.WeakKeyDictionary()
"""By the swarm's tool: its nodes run one after the other, in contexts that inherit nothing."""


def register(agent: Agent, rollout: RolloutContext) -> str:
    """Register an agent under its name, else its agent id, else a fresh id (contract.md 2)."""
    name = agent.name if agent.name != _DEFAULT_NAME else None
    agent_id = agent.agent_id if agent.agent_id != _DEFAULT_ID else None
    return rollout.register_agent(name or agent_id or uuid.uuid4().hex, agent, derived=True)


def watch(agent: Agent) -> None:
    """From now on, know this agent's model calls and the extent of its invocations."""
    if agent in _watched:
        return
    _watched.add(agent)
    agent.add_middleware(InvokeModelStage.Input, _bind_to_rollout)
    agent.hooks.add_callback(BeforeInvocationEvent, _begin, order=HookOrder.SDK_FIRST)
    agent.hooks.add_callback(AfterInvocationEvent, _end, order=HookOrder.SDK_LAST)
    agent.hooks.add_callback(BeforeToolCallEvent, _note_handoff, order=HookOrder.SDK_LAST)


@contextmanager
def streaming(agent: Agent | None, events: AsyncGenerator[Any]) -> Generator[None]:
    """While the agent reads these events of the policy."""
    streams = _streams.setdefault(agent, []) if agent is not None else []
    streams.append(events)
    try:
        yield
    finally:
        streams.remove(events)


async def close_streams(agent: Agent) -> None:
    """End the calls of a run whose events nobody reads any more.

    Strands leaves its inner generators to the garbage collector, which may come late or never.
    """
    for events in list(_streams.get(agent, ())):
        await events.aclose()


def calling_agent(invocation_state: dict[str, Any] | None, cancel_signal: Any) -> Agent | None:
    """The agent behind a call that came to an unbound model, or None.

    Parallel graph nodes overwrite each other in the invocation state, so the agent found there
    counts only when the cancel signal is its own. Calls without either, such as those of a
    summariser, belong to the agent whose invocation is running, unless an `agent_scope` or a
    rollout was entered since.
    """
    running = _running_agent()
    if cancel_signal is None:
        return running
    named = (invocation_state or {}).get("agent")
    found = [agent for agent in (named, running) if isinstance(agent, Agent)]
    return next((agent for agent in found if agent.cancel_signal is cancel_signal), None)


def starter_of(agent: Agent) -> str | None:
    """Sample of the agent whose handoff began the agent's running invocation."""
    running = _running.get()
    return running.starter if running is not None and running.agent() is agent else None


def _running_agent() -> Agent | None:
    running = _running.get()
    if running is None:
        return None
    is_innermost = running.rollout is get_rollout_context() and running.scope == current_scope()
    return running.agent() if is_innermost else None


def _begin(event: BeforeInvocationEvent) -> None:
    agent, rollout = event.agent, get_rollout_context()
    starter = _taken_over(agent, rollout)
    scope = current_scope()
    _running.set(_Invocation(weakref.ref(agent), rollout, scope, _running.get(), starter))


def _taken_over(agent: Agent, rollout: RolloutContext | None) -> str | None:
    tool = agent.tool_registry.registry.get(_HANDOFF)
    handoff = _handoffs.get(tool) if tool is not None else None
    if handoff is None or handoff.target != agent.name or handoff.rollout() is not rollout:
        return None
    del _handoffs[tool]
    return handoff.sample_id


def _note_handoff(event: BeforeToolCallEvent) -> None:
    rollout, tool = get_rollout_context(), event.selected_tool
    if rollout is not None and tool is not None and event.tool_use["name"] == _HANDOFF:
        target = str(event.tool_use["input"].get("agent_name"))
        sample_id = register(event.agent, rollout)
        _handoffs[tool] = _Handoff(weakref.ref(rollout), sample_id, target)


def _end(event: AfterInvocationEvent) -> None:
    running = _running.get()
    if running is not None and running.agent() is event.agent:
        _running.set(running.outer)


def _bind_to_rollout(context: InvokeModelContext) -> InvokeModelContext:
    rollout, model = get_rollout_context(), context.model
    if rollout is None or not hasattr(model, "for_agent"):
        return context
    bindable = cast("Bindable", model)
    if bindable.is_bound:
        return context
    return context.replace(model=bindable.for_agent(cast("Agent", context.agent), rollout))
