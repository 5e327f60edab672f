"""Pydantic AI for `osmosis_core.testing.AdapterConformance`."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Tool
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest

from osmosis_core import Message
from osmosis_core.policy import agent_scope
from osmosis_core.testing import AdapterFixtures
from osmosis_pydantic_ai.adapter import OsmosisAgent, OsmosisModel, message_history


class Fixtures(AdapterFixtures):
    """Builds and runs Pydantic AI agents for the suite."""

    capabilities = frozenset({"images", "parallel_tools"})

    def create_model(self) -> OsmosisModel:
        return OsmosisModel({"temperature": 1.0})

    async def call_model(self, model: OsmosisModel) -> None:
        await model_request(model, [ModelRequest.user_text_prompt("hello")])

    async def run_agent(
        self,
        name: str,
        prompt: list[Message],
        *,
        model: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        agent = OsmosisAgent(model, name=name, tools=tools)
        return (await agent.run(message_history=message_history(prompt))).output

    async def stream_agent(self, name: str, prompt: list[Message]) -> AsyncIterator[str]:
        agent = OsmosisAgent(name=name)
        async with agent.run_stream(message_history=message_history(prompt)) as result:
            async for piece in result.stream_text(delta=True, debounce_by=None):
                yield piece

    async def ask_structured(
        self, name: str, prompt: list[Message], schema: type[BaseModel]
    ) -> BaseModel:
        agent = OsmosisAgent(name=name, output_type=schema)
        return (await agent.run(message_history=message_history(prompt))).output

    async def run_team(self, names: Sequence[str], prompt: list[Message]) -> str:
        tools: list[Tool] = []
        for name in reversed(names[1:]):
            tools = [_as_tool(name, OsmosisAgent(name=name, tools=tools))]
        agent = OsmosisAgent(name=names[0], tools=tools)
        return (await agent.run(message_history=message_history(prompt))).output

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name: str, prompt: list[Message]) -> str:
        return OsmosisAgent(name=name).run_sync(message_history=message_history(prompt)).output

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        return await _converse(OsmosisAgent(name=name), turns)

    async def run_trimmed(self, name: str, turns: Sequence[str]) -> str:
        forget = ProcessHistory(lambda messages: messages[-3:])
        return await _converse(OsmosisAgent(name=name, capabilities=[forget]), turns)


def _as_tool(name: str, agent: OsmosisAgent) -> Tool:
    async def ask(task: str) -> str:
        return (await agent.run(task)).output

    return Tool(ask, name=name, description=f"Ask {name}.")


async def _converse(agent: OsmosisAgent, turns: Sequence[str]) -> str:
    result = await agent.run(turns[0])
    for turn in turns[1:]:
        result = await agent.run(turn, message_history=result.all_messages())
    return result.output
