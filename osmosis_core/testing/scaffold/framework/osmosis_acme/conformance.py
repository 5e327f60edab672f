"""Acme for `osmosis_core.testing.AdapterConformance`: each further method declares a capability."""

from collections.abc import Callable, Sequence
from typing import Any

from osmosis_acme.adapter import AcmeAgent, AcmeModel
from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures


class AcmeAdapter(AdapterFixtures):
    """Builds and runs agents for the suite."""

    capabilities = frozenset({"images"})
    entry_module = "osmosis_acme.plugin"

    def create_model(self) -> AcmeModel:
        """A model; called outside and inside of rollouts."""
        return AcmeModel()

    async def call_model(self, model: AcmeModel) -> None:
        """Call it once, without an agent."""
        await model.complete([{"role": "user", "content": "hello"}], [])

    async def run_agent(
        self,
        name: str,
        prompt: list[Message],
        *,
        model: AcmeModel | None = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Run an agent with these functions as its tools."""
        return await AcmeAgent(name, prompt, tools, model).run()

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """Run an agent that is not trained on."""
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)
