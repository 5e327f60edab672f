"""LangGraph for `osmosis_core.testing.AdapterConformance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.tools import StructuredTool

from osmosis_core import Message
from osmosis_core.testing.adapter_conformance import AdapterFixtures
from osmosis_langgraph.model import ChatOsmosis


class LangGraphAdapter(AdapterFixtures):
    """Builds and runs LangChain agents for the suite."""

    def create_model(self) -> ChatOsmosis:
        """A model without a rollout."""
        return ChatOsmosis(temperature=1.0)

    async def call_model(self, model: ChatOsmosis) -> None:
        """One call with one user message."""
        await model.ainvoke("hello")

    async def run_agent(
        self,
        name: str,
        prompt: list[Message],
        *,
        model: Any = None,
        add: Callable[..., int] | None = None,
    ) -> str:
        """Run an agent of `create_agent` on the prompt."""
        described = {"name": "add", "description": "Add two numbers."}
        tools = [StructuredTool.from_function(add, **described)] if add else []  # pyright: ignore
        agent: Any = create_agent(model or self.create_model(), tools, name=name)  # pyright: ignore
        state = await agent.ainvoke({"messages": prompt})
        return state["messages"][-1].text
