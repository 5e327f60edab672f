"""OpenAI Agents for `osmosis_core.testing.AdapterConformance`."""

# pyright: reportUnknownMemberType=false

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents import ModelSettings, ModelTracing, Runner, SessionSettings, function_tool
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures
from osmosis_openai_agents import OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel


class OpenAIAgentsAdapter(AdapterFixtures):
    """Builds and runs agents of the SDK for the suite."""

    capabilities = frozenset({"images", "parallel_tools"})

    def create_model(self) -> OsmosisRolloutModel:
        """A model without a rollout."""
        return OsmosisRolloutModel(temperature=1.0)

    async def call_model(self, model: OsmosisRolloutModel) -> None:
        """One call with one user message."""
        await model.get_response(
            None,
            "hello",
            ModelSettings(),
            [],
            None,
            [],
            ModelTracing.DISABLED,
            previous_response_id=None,
            conversation_id=None,
            prompt=None,
        )

    async def run_agent(
        self,
        name: str,
        prompt: Any,
        *,
        model: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Run an OsmosisAgent on the prompt."""
        functions: list[Any] = [function_tool(function) for function in tools]
        agent = OsmosisAgent(name=name, model=model or self.create_model(), tools=functions)
        return str((await Runner.run(agent, prompt)).final_output)

    async def stream_agent(self, name: str, prompt: Any) -> AsyncIterator[str]:
        """The text deltas of `Runner.run_streamed`, which is cancelled when it is left early."""
        result = Runner.run_streamed(OsmosisAgent(name=name), prompt)
        try:
            async for event in result.stream_events():
                data = getattr(event, "data", None)
                if isinstance(data, ResponseTextDeltaEvent):
                    yield data.delta
        finally:
            result.cancel()

    async def ask_structured(self, name: str, prompt: Any, schema: type[BaseModel]) -> BaseModel:
        """By `output_type`."""
        agent = OsmosisAgent(name=name, output_type=schema)
        return (await Runner.run(agent, prompt)).final_output_as(schema)

    async def run_team(self, names: Sequence[str], prompt: Any) -> str:
        """Each agent is a tool of the one before it."""
        tools: list[Any] = []
        for name in reversed(names[1:]):
            tools = [OsmosisAgent(name=name, tools=tools).as_tool(name, f"Ask {name}.")]
        return str(
            (await Runner.run(OsmosisAgent(name=names[0], tools=tools), prompt)).final_output
        )

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """An agent inside a scope that is not trainable."""
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name: str, prompt: Any) -> str:
        """By `Runner.run_sync`, which leaves the loop that it runs on to others to close."""
        with asyncio.Runner() as own:
            asyncio.set_event_loop(own.get_loop())
            return str(Runner.run_sync(OsmosisAgent(name=name), prompt).final_output)

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        """One agent and one session."""
        return await self._converse(name, turns, OsmosisMemorySession(name))

    async def run_trimmed(self, name: str, turns: Sequence[str]) -> str:
        """A session of which the SDK reads the latest items only."""
        session = OsmosisMemorySession(name)
        session.session_settings = SessionSettings(limit=3)
        return await self._converse(name, turns, session)

    async def _converse(self, name: str, turns: Sequence[str], session: Any) -> str:
        agent = OsmosisAgent(name=name)
        said = [(await Runner.run(agent, turn, session=session)).final_output for turn in turns]
        return str(said[-1])
