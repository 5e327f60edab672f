"""What is active: a chain of frames in a context variable, which tasks and threads inherit.

Entering a `RolloutContext` or an `agent_scope` pushes a frame and leaving restores the outer one,
so they nest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_core.sample_ids import MAIN_SAMPLE, sample_key

if TYPE_CHECKING:
    from osmosis_core.context import RolloutContext
    from osmosis_core.types import PolicyCall


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose policy calls these are."""

    sample_id: str = MAIN_SAMPLE
    trainable: bool = True
    parent: str | None = None
    """Sample of the agent that started this one, where an adapter knows it better than we do."""


@dataclass(frozen=True, slots=True)
class _Frame:
    context: RolloutContext | None
    scope: Scope
    outer: _Frame | None
    is_scope: bool = False


@dataclass(slots=True)
class _Tool:
    """A tool at work: the call that it was asked for in, and once it is over what was before."""

    call: PolicyCall | _Tool | None


_DEFAULT_SCOPE = Scope()
_frame: ContextVar[_Frame | None] = ContextVar("osmosis_rollout", default=None)
_last_call: ContextVar[PolicyCall | _Tool | None] = ContextVar("osmosis_last_call", default=None)


def enter(context: RolloutContext) -> None:
    """Make a rollout the active one."""
    _frame.set(_Frame(context, _DEFAULT_SCOPE, _frame.get()))


def leave(context: RolloutContext) -> None:
    """Restore what was active before `enter(context)`, whatever was left open inside."""
    frame = _frame.get()
    while frame is not None and (frame.context is not context or frame.is_scope):
        frame = frame.outer
    _restore(frame)


def _restore(frame: _Frame | None) -> None:
    """Drop a frame and those above it; nothing to do when it is not active any more."""
    active = _frame.get()
    while active is not None and active is not frame:
        active = active.outer
    if active is not None:
        _frame.set(active.outer)


def get_rollout_context() -> RolloutContext | None:
    """The active rollout, or None outside of one."""
    return frame.context if (frame := _frame.get()) else None


def current_scope() -> Scope:
    """Whose calls are made here: the innermost `agent_scope` of the active rollout."""
    return frame.scope if (frame := _frame.get()) else _DEFAULT_SCOPE


@contextmanager
def agent_scope(sample_id: str, *, trainable: bool = True) -> Generator[None]:
    """Attribute the policy calls made inside to a sample; scopes nest, the inner one wins.

    `sample_id` is a name, or an id that `register_agent` returned. `trainable=False` marks a
    helper agent: its calls are recorded, its sample needs no reward and is not trained on.
    """
    with _framed(get_rollout_context(), Scope(sample_key(sample_id), trainable)):
        yield


@contextmanager
def no_rollout() -> Generator[None]:
    """Hide the active rollout, as for graders."""
    with _framed(None, _DEFAULT_SCOPE):
        yield


@contextmanager
def _framed(context: RolloutContext | None, scope: Scope) -> Generator[None]:
    frame, last = _Frame(context, scope, _frame.get(), is_scope=True), _last_call.get()
    _frame.set(frame)
    try:
        yield
    finally:
        _restore(frame)
        _last_call.set(last)


def last_call() -> PolicyCall | None:
    """The latest policy call made in this context, or in the one that started it."""
    latest = _last_call.get()
    while isinstance(latest, _Tool):
        latest = latest.call
    return latest


def set_last_call(call: PolicyCall | None) -> None:
    """Say which call's answer is being acted on from here on in this context."""
    _last_call.set(call)


def begin_tool(call: PolicyCall | None) -> Callable[[], None]:
    """Act on a call from here on in this context, until what is returned is called anywhere."""
    tool, before = _Tool(call), _last_call.get()
    _last_call.set(tool)
    return lambda: setattr(tool, "call", before)
