"""OpenAI Agents for `osmosis_core.testing.AdapterConformance`."""

from typing import Any

from agents import Agent, Runner, function_tool

from osmosis_core.testing.adapter_conformance import AdapterFixtures
from osmosis_openai_agents import OsmosisAgent, OsmosisRolloutModel


class OpenAIAgentsAdapter(AdapterFixtures):
    """Builds and runs agents of the SDK for the suite."""

    def create_model(self) -> OsmosisRolloutModel:
        """A model without a rollout."""
        return OsmosisRolloutModel(temperature=1.0)

    async def call_model(self, model: OsmosisRolloutModel) -> None:
        """One call with one user message."""
        await Runner.run(Agent(name="caller", model=model), "hello")

    async def run_agent(self, name: str, prompt: Any, *, model: Any = None, add: Any = None) -> str:
        """Run an OsmosisAgent on the prompt."""
        tools = [function_tool(add, name_override="add")] if add else []
        agent = OsmosisAgent(name=name, model=model or self.create_model(), tools=[*tools])
        return str((await Runner.run(agent, prompt)).final_output)
