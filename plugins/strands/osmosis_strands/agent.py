"""The documented drop-in for `strands.Agent`: bound to the rollout and registered as a sample."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, cast

from strands import Agent
from strands.agent import AgentResult
from strands.models import Model
from strands.types.exceptions import MaxTokensReachedException

from osmosis_core import NoActiveRolloutError, get_rollout_context
from osmosis_strands.callers import close_streams
from osmosis_strands.model import OsmosisRolloutModel, PolicyModel
from osmosis_strands.prompts import strands_prompt


class OsmosisStrandsAgent(Agent):
    """`strands.Agent` whose calls and conversation belong to the active rollout.

    Takes the arguments of `strands.Agent`, positional ones too. `messages` may be chat messages
    such as `ctx.prompt`; they are copied and converted, and their system messages join
    `system_prompt`. Without a model it uses OsmosisRolloutModel. With another model it is a plain
    agent, neither bound nor registered. The sample id is the agent's name, else its agent_id,
    else a fresh one; a name that is taken gets `-2`.

    An answer that ends at its token limit ends the run: the result's stop reason is `max_tokens`
    and the sample is truncated, where `strands.Agent` raises MaxTokensReachedException.

    Raises:
        NoActiveRolloutError: built with an Osmosis model outside a rollout.
        ValueError: a prompt message cannot be carried by Strands.
    """

    def __init__(
        self,
        model: Any = None,
        messages: Sequence[Any] | None = None,
        tools: Any = None,
        system_prompt: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        model = OsmosisRolloutModel() if model is None else model
        rollout = get_rollout_context()
        is_bound = isinstance(model, PolicyModel)
        if is_bound and rollout is None:
            raise NoActiveRolloutError(type(self).__name__)
        converted, system = strands_prompt(messages or [])
        prompt = _joined(system_prompt, system)
        super().__init__(model, converted, tools, prompt, *args, **kwargs)  # pyright: ignore[reportArgumentType]
        if is_bound and rollout is not None:
            self.model = cast("Model", model.for_agent(self, rollout))

    async def stream_async(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the agent and yield its events; see `strands.Agent.stream_async`."""
        stream = cast("AsyncGenerator[Any]", super().stream_async(*args, **kwargs))
        try:
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    yield event
        except MaxTokensReachedException:
            invocation_state: dict[str, Any] = kwargs.get("invocation_state") or {}
            state = invocation_state.get("request_state", {})
            result = AgentResult("max_tokens", self.messages[-1], self.event_loop_metrics, state)
            self.callback_handler(result=result)
            yield {"result": result}
        finally:
            await close_streams(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the agent and wait, in a thread and event loop of its own.

        Inside `async def run()` this blocks the event loop of every other rollout, so it warns;
        `await agent.invoke_async()` does not block.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return super().__call__(*args, **kwargs)
        warnings.warn(
            f"{type(self).__name__}(...) blocks the event loop and every rollout on it; "
            "use `await agent.invoke_async(...)`",
            RuntimeWarning,
            stacklevel=2,
        )
        return super().__call__(*args, **kwargs)


def _joined(system_prompt: Any, blocks: list[dict[str, Any]]) -> Any:
    """The agent's system prompt followed by what the prompt's system messages say."""
    if not blocks:
        return system_prompt
    if isinstance(system_prompt, list):
        return [*system_prompt, *blocks]  # pyright: ignore[reportUnknownVariableType]
    if all("text" in block for block in blocks):
        texts = [system_prompt] if system_prompt else []
        return "\n\n".join([*texts, *(block["text"] for block in blocks)])
    return [{"text": system_prompt}, *blocks] if system_prompt else blocks
