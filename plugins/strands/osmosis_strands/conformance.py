"""Strands for `osmosis_core.testing.AdapterConformance`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from strands import tool
from strands.agent.conversation_manager import SlidingWindowConversationManager

from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures
from osmosis_strands.agent import OsmosisStrandsAgent
from osmosis_strands.model import OsmosisRolloutModel


class StrandsAdapter(AdapterFixtures):
    """Builds and runs Strands agents for the suite."""

    capabilities = frozenset({"images", "parallel_tools"})

    def create_model(self) -> OsmosisRolloutModel:
        """A model without a rollout."""
        return OsmosisRolloutModel(params={"temperature": 1.0})

    async def call_model(self, model: OsmosisRolloutModel) -> None:
        """One call with one user message."""
        async for _ in model.stream([{"role": "user", "content": [{"text": "hello"}]}]):
            pass

    async def run_agent(
        self,
        name: str,
        prompt: list[Message],
        *,
        model: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Run an OsmosisStrandsAgent on the prompt."""
        functions = [tool(function) for function in tools]
        agent = self._agent(name, model=model, messages=prompt, tools=functions)
        return str(await agent.invoke_async())

    async def stream_agent(self, name: str, prompt: list[Message]) -> AsyncIterator[str]:
        """The `data` of the agent's events."""
        stream: Any = self._agent(name, messages=prompt).stream_async()
        async with aclosing(stream) as events:
            async for event in events:
                if "data" in event:
                    yield event["data"]

    async def ask_structured(
        self, name: str, prompt: list[Message], schema: type[BaseModel]
    ) -> BaseModel:
        """By `structured_output_model`."""
        agent = self._agent(name, messages=prompt)
        output = (await agent.invoke_async(structured_output_model=schema)).structured_output
        assert output is not None
        return output

    async def run_team(self, names: Sequence[str], prompt: list[Message]) -> str:
        """Each agent is a tool of the one before it."""
        tools: list[Any] = []
        for name in reversed(names[1:]):
            tools = [self._agent(name, tools=tools).as_tool()]
        agent = self._agent(names[0], messages=prompt, tools=tools)
        return str(await agent.invoke_async())

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """An agent inside a scope that is not trainable."""
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name: str, prompt: list[Message]) -> str:
        """By calling the agent."""
        return str(self._agent(name, messages=prompt)())

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        """One agent, invoked again and again."""
        return await self._converse(self._agent(name), turns)

    async def run_trimmed(self, name: str, turns: Sequence[str]) -> str:
        """A sliding window of four messages."""
        window = SlidingWindowConversationManager(window_size=4)
        return await self._converse(self._agent(name, conversation_manager=window), turns)

    async def _converse(self, agent: OsmosisStrandsAgent, turns: Sequence[str]) -> str:
        said = [str(await agent.invoke_async(turn)) for turn in turns]
        return said[-1]

    def _agent(self, name: str, *, model: Any = None, **options: Any) -> OsmosisStrandsAgent:
        return OsmosisStrandsAgent(
            model or self.create_model(), name=name, callback_handler=None, **options
        )
