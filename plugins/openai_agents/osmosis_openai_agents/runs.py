"""Which agent's turn it is: the SDK tells run hooks, and a runner that wraps its own adds ours."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, override

from agents import Agent, AgentsException, RunHooks
from agents.lifecycle import RunHooksBase
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tracing.processors import default_processor

from osmosis_core import RolloutContext, get_rollout_context
from osmosis_core.policy import current_scope


@dataclass(eq=False, slots=True)
class Run:
    """One run of the SDK inside a rollout; its agents take turns, one at a time."""

    rollout: weakref.ref[RolloutContext]
    scope: object
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
    if run is None or run.rollout() is not get_rollout_context() or run.scope != current_scope():
        return None
    return run


class _Hooks(RunHooks[Any]):
    """The user's run hooks; the turn is noted before they hear of it."""

    def __init__(self, run: Run, hooks: RunHooks[Any]) -> None:
        self.run, self.hooks = run, hooks

    @override
    async def on_llm_start(self, context: Any, agent: Any, *args: Any, **kwargs: Any) -> None:
        self.run.agent = agent
        await self.hooks.on_llm_start(context, agent, *args, **kwargs)


def _handing_on(name: str) -> Callable[..., Awaitable[None]]:
    async def hand_on(self: _Hooks, *args: Any, **kwargs: Any) -> None:
        await getattr(self.hooks, name)(*args, **kwargs)

    return hand_on


for _name in dir(RunHooksBase):
    if _name.startswith("on_") and _name not in vars(_Hooks):
        setattr(_Hooks, _name, _handing_on(_name))


@contextmanager
def _watched(options: dict[str, Any]) -> Generator[Run | None]:
    """Make a run the current one and give it our hooks; outside of rollouts do nothing."""
    rollout, hooks = get_rollout_context(), options.get("hooks")
    hooks = hooks.hooks if isinstance(hooks, _Hooks) else RunHooks() if hooks is None else hooks
    if rollout is None or not isinstance(hooks, RunHooksBase):
        yield None
        return
    keep_traces_here()
    run = Run(weakref.ref(rollout), current_scope())
    options["hooks"] = _Hooks(run, hooks)
    token = _run.set(run)
    try:
        yield run
    except AgentsException as error:
        run.outcome = error.run_data
        raise
    finally:
        _run.reset(token)


class _Runner(AgentRunner):
    """The runner that was the default before, watched."""

    def __init__(self, runner: AgentRunner) -> None:
        self._runner = runner

    @override
    async def run(self, *args: Any, **options: Any) -> Any:
        with _watched(options) as run:
            return _noted(run, await self._runner.run(*args, **options))

    @override
    def run_sync(self, *args: Any, **options: Any) -> Any:
        with _watched(options) as run:
            return _noted(run, self._runner.run_sync(*args, **options))

    @override
    def run_streamed(self, *args: Any, **options: Any) -> Any:
        with _watched(options) as run:
            return _noted(run, self._runner.run_streamed(*args, **options))


def _noted(run: Run | None, outcome: Any) -> Any:
    if run is not None:
        run.outcome = outcome
    return outcome


def watch_runs() -> None:
    """From now on, know every run of this process that goes through the SDK's `Runner`."""
    runner = get_default_agent_runner()
    if not isinstance(runner, _Runner):
        set_default_agent_runner(_Runner(runner))


@functools.cache
def keep_traces_here() -> None:
    """Keep what happens in rollouts from the hosted tracing service.

    Only the SDK's own exporting processor is told less; processors of the user's hear everything,
    and so does that one of what happens outside of rollouts.
    """
    processor: Any = default_processor()
    processor.on_trace_start = _outside_rollouts(processor.on_trace_start)
    processor.on_span_end = _outside_rollouts(processor.on_span_end)


def _outside_rollouts(listen: Callable[[Any], None]) -> Callable[[Any], None]:
    def heard(item: Any) -> None:
        if get_rollout_context() is None:
            listen(item)

    return heard
