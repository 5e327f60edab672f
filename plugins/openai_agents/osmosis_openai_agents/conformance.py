"""OpenAI Agents for `osmosis_core.testing.AdapterConformance`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import ModelSettings, ModelTracing, Runner, function_tool

from osmosis_core import Message
from osmosis_core.testing.adapter_conformance import AdapterFixtures
from osmosis_openai_agents.agent import OsmosisAgent
from osmosis_openai_agents.model import OsmosisRolloutModel


class OpenAIAgentsAdapter(AdapterFixtures):
    """Builds and runs agents of the SDK for the suite."""

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
        prompt: list[Message],
        *,
        model: Any = None,
        add: Callable[..., int] | None = None,
    ) -> str:
        """Run an OsmosisAgent on the prompt."""
        tools = [function_tool(add, name_override="add")] if add else []
        agent = OsmosisAgent(name=name, model=model or self.create_model(), tools=[*tools])
        given: Any = prompt
        return str((await Runner.run(agent, given)).final_output)
