"""LangGraph for `osmosis_core.testing.AdapterConformance`."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures
from osmosis_langgraph.model import ChatOsmosis


class LangGraphAdapter(AdapterFixtures):
    """Builds and runs LangChain agents for the suite."""

    capabilities = frozenset({"images", "parallel_tools"})

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
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Run an agent of `create_agent` on the prompt."""
        offered = [StructuredTool.from_function(function) for function in tools]
        agent = self._agent(name, model=model, tools=offered)
        return _text(await agent.ainvoke({"messages": prompt}))

    async def stream_agent(self, name: str, prompt: list[Message]) -> AsyncIterator[str]:
        """The text of stream mode `messages`."""
        stream = self._agent(name).astream({"messages": prompt}, stream_mode="messages")
        try:
            async for chunk, _ in stream:
                yield chunk.text
        finally:
            await stream.aclose()

    async def ask_structured(
        self, name: str, prompt: list[Message], schema: type[BaseModel]
    ) -> BaseModel:
        """By `response_format`."""
        agent = self._agent(name, response_format=schema)
        return (await agent.ainvoke({"messages": prompt}))["structured_response"]

    async def run_team(self, names: Sequence[str], prompt: list[Message]) -> str:
        """Each agent is called by a tool of the one before it."""
        tools: list[Any] = []
        for name in reversed(names[1:]):
            tools = [self._as_tool(name, self._agent(name, tools=tools))]
        agent = self._agent(names[0], tools=tools)
        return _text(await agent.ainvoke({"messages": prompt}))

    def _as_tool(self, name: str, agent: Any) -> StructuredTool:
        async def ask(task: str) -> str:
            return _text(await agent.ainvoke({"messages": [{"role": "user", "content": task}]}))

        return StructuredTool.from_function(coroutine=ask, name=name, description=f"Ask {name}.")

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """An agent inside a scope that is not trainable."""
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name: str, prompt: list[Message]) -> str:
        """By `invoke`."""
        return _text(self._agent(name).invoke({"messages": prompt}))

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        """One thread of a checkpointer."""
        return await self._converse(self._agent(name, checkpointer=InMemorySaver()), turns)

    async def run_trimmed(self, name: str, turns: Sequence[str]) -> str:
        """Middleware that summarises all but the latest messages."""
        forget = SummarizationMiddleware(
            self.create_model(), trigger=("messages", 5), keep=("messages", 2)
        )
        options: dict[str, Any] = {"checkpointer": InMemorySaver(), "middleware": [forget]}
        return await self._converse(self._agent(name, **options), turns)

    async def _converse(self, agent: Any, turns: Sequence[str]) -> str:
        thread = {"configurable": {"thread_id": "1"}}
        state: Any = None
        for turn in turns:
            message = {"role": "user", "content": turn}
            state = await agent.ainvoke({"messages": [message]}, thread)
        return _text(state)

    def _agent(self, name: str, *, model: Any = None, tools: Any = (), **options: Any) -> Any:
        return create_agent(model or self.create_model(), list(tools), name=name, **options)


def _text(state: Any) -> str:
    return state["messages"][-1].text
