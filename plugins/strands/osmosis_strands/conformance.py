"""Strands for `osmosis_core.testing.AdapterConformance`."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strands import tool

from osmosis_core import Message
from osmosis_core.testing.adapter_conformance import AdapterFixtures
from osmosis_strands.agent import OsmosisStrandsAgent
from osmosis_strands.model import OsmosisRolloutModel


class StrandsAdapter(AdapterFixtures):
    """Builds and runs Strands agents for the suite."""

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
        agent = OsmosisStrandsAgent(
            name=name,
            model=model or self.create_model(),
            messages=prompt,
            tools=[tool(function) for function in tools],
            callback_handler=None,
        )
        return str(await agent.invoke_async())
