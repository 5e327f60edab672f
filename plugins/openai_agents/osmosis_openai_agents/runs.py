"""Which agent's turn it is: the SDK tells run hooks, and a runner that wraps its own adds ours."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agents import Agent, RunHooks
from agents.lifecycle import RunHooksBase
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tracing.processors import default_processor

from osmosis_core import get_rollout_context
from osmosis_core.policy import current_scope


@dataclass(eq=False, slots=True)
class Run:
    """One run of the SDK; its agents take turns, one at a time."""

    where: object
    """The rollout and the scope."""
    agent: Agent[Any] | None = None
    """Whose turn it is."""
    sample_id: str | None = None
    """Whose call was the last."""
    outcome: Any = None
    """The SDK's result, or what it says about a run that failed."""


_run: ContextVar[Run | None] = ContextVar("osmosis_openai_agents_run", default=None)


def current_run() -> Run | None:
    """The run that a call is made in, unless a rollout or `agent_scope` was entered since."""
    run = _run.get()
    return run if run and run.where == (id(get_rollout_context()), current_scope()) else None


class _Hooks(RunHooks[Any]):
    """The user's run hooks; the turn is noted before they hear of it."""

    def __init__(self, run: Run, hooks: Any) -> None:
        self.run, self.hooks = run, hooks

    async def on_llm_start(self, context: Any, agent: Any, *args: Any, **kwargs: Any) -> None:
        self.run.agent = agent
        await self.hooks.on_llm_start(context, agent, *args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        is_theirs = name.startswith("on_") and name != "on_llm_start"
        return getattr(self.hooks, name) if is_theirs else super().__getattribute__(name)


@contextmanager
def _watched(options: dict[str, Any]) -> Generator[Run]:
    """Make a run the current one, and give it our hooks."""
    run = Run((id(get_rollout_context()), current_scope()))
    hooks = options.get("hooks") or RunHooks()
    if isinstance(hooks, RunHooksBase):  # the SDK refuses others
        options["hooks"] = _Hooks(run, hooks)
    token = _run.set(run)
    try:
        yield run
    finally:
        run.outcome = run.outcome or getattr(sys.exception(), "run_data", None)
        _run.reset(token)


class _Runner(AgentRunner):
    """The SDK's runner, watched; its `run_sync` goes through `run`."""

    async def run(self, *args: Any, **options: Any) -> Any:
        with _watched(options) as run:
            run.outcome = await super().run(*args, **options)
            return run.outcome

    def run_streamed(self, *args: Any, **options: Any) -> Any:
        with _watched(options) as run:
            run.outcome = super().run_streamed(*args, **options)
            return run.outcome


@functools.cache
def watch_runs() -> None:
    """From now on, know every run of this process, and keep what happens in rollouts in it.

    A runner that is not the SDK's own is left. Of the trace processors, only the SDK's own, which
    exports to the hosted service, is told less; it still hears what happens outside of rollouts.
    """
    if type(get_default_agent_runner()) is AgentRunner:
        set_default_agent_runner(_Runner())
    processor: Any = default_processor()
    processor.on_trace_start = _outside_rollouts(processor.on_trace_start)
    processor.on_span_end = _outside_rollouts(processor.on_span_end)


def _outside_rollouts(listen: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda item: None if get_rollout_context() else listen(item)
