"""smolagents for `osmosis_core.testing.AdapterConformance`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from smolagents import Tool

from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures
from osmosis_smolagents.adapter import ChatPrompt, OsmosisModel, OsmosisToolCallingAgent


class Fixtures(AdapterFixtures):
    """Builds and runs tool calling agents for the suite; `final_answer` is always offered."""

    capabilities = frozenset({"parallel_tools"})

    def create_model(self) -> OsmosisModel:
        """A model without a rollout."""
        return OsmosisModel(temperature=1.0)

    async def call_model(self, model: OsmosisModel) -> None:
        """One call with one user message."""
        await asyncio.to_thread(model.generate, [{"role": "user", "content": "hello"}])

    async def run_agent(
        self, name: str, prompt: list[Message], *, model: Any = None, add: Any = None
    ) -> str:
        """Run an agent on the prompt; `add` takes two integers."""
        agent = OsmosisToolCallingAgent([_tool(add)] if add else [], model, name=name, max_steps=5)
        return str(await agent.arun(ChatPrompt(prompt)))

    async def run_team(self, names: Sequence[str], prompt: list[Message]) -> str:
        """Each agent manages the next one."""
        agents: list[Any] = []
        for name in reversed(names):
            about = f"Ask {name}."
            agent = OsmosisToolCallingAgent(name=name, description=about, managed_agents=agents)
            agents = [agent]
        return str(await agents[0].arun(ChatPrompt(prompt)))

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """An agent inside a scope that is not trainable."""
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name: str, prompt: list[Message]) -> str:
        """By `run`."""
        return str(OsmosisToolCallingAgent(name=name).run(ChatPrompt(prompt)))

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        """One agent that is not reset."""
        agent = OsmosisToolCallingAgent(name=name)
        return str([await agent.arun(turn, reset=False) for turn in turns][-1])


def _tool(function: Callable[..., Any]) -> Tool:
    class Given(Tool):
        name, description, output_type = function.__name__, function.__doc__ or "", "any"
        inputs = {n: {"type": "integer", "description": n} for n in ("a", "b")}  # noqa: RUF012

        def forward(self, a: int, b: int) -> Any:
            return function(a, b)

    return Given()
