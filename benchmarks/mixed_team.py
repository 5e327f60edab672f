"""Teams across frameworks: agents that each ask the next one, and a policy that plays them all."""

import asyncio
import importlib
import itertools
import json

import openai
from agents import Agent, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.tools import tool as langchain_tool
from strands import Agent as StrandsAgent
from strands import tool as strands_tool

from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client, client
from osmosis_core.testing import Tool, Turn
from osmosis_langgraph import ChatOsmosis
from osmosis_openai_agents import OsmosisRolloutModel
from osmosis_strands import OsmosisRolloutModel as StrandsModel

HTTP = importlib.import_module("httpx2" if openai.VERSION >= "3" else "httpx")
MODELS = {"langgraph": ChatOsmosis(), "strands": StrandsModel(), "agents": OsmosisRolloutModel()}
"""Shared by every agent and every rollout of these tests."""
OPTIONS = {"base_url": BASE_URL, "api_key": "-", "max_retries": 0}
ASYNC_SDK = openai.AsyncOpenAI(http_client=async_client(HTTP), **OPTIONS)
SDK = openai.OpenAI(http_client=client(HTTP), **OPTIONS)
DESCRIPTION = "Ask somebody else."
PARAMETERS = {"type": "object", "properties": {"question": {"type": "string"}}}


class Langgraph:
    def __init__(self, name, asks):
        tools = [langchain_tool(ask.__name__, description=DESCRIPTION)(ask) for ask in asks]
        prompt = f"You are {name}."
        self.agent = create_agent(MODELS["langgraph"], tools, name=name, system_prompt=prompt)

    async def run(self, question):
        return (await self.agent.ainvoke({"messages": question}))["messages"][-1].text

    async def stream(self, question):
        given = {"messages": question}
        states = [state async for state in self.agent.astream(given, stream_mode="values")]
        return states[-1]["messages"][-1].text

    def block(self, question):
        return self.agent.invoke({"messages": question})["messages"][-1].text


class Strands:
    def __init__(self, name, asks):
        self.options = {
            "name": name,
            "system_prompt": f"You are {name}.",
            "callback_handler": None,
            "tools": [
                strands_tool(name=ask.__name__, description=DESCRIPTION)(ask) for ask in asks
            ],
        }

    @property
    def agent(self):
        return StrandsAgent(MODELS["strands"], **self.options)

    async def run(self, question):
        return str(await self.agent.invoke_async(question)).strip()

    async def stream(self, question):
        events = [event async for event in self.agent.stream_async(question)]
        return str(events[-1]["result"]).strip()

    def block(self, question):
        return str(self.agent(question)).strip()


class OpenAIAgents:
    def __init__(self, name, asks):
        tools = [function_tool(ask, description_override=DESCRIPTION) for ask in asks]
        options = {"instructions": f"You are {name}.", "model": MODELS["agents"]}
        self.agent = Agent(name=name, tools=tools, **options)

    async def run(self, question):
        return (await Runner.run(self.agent, question)).final_output

    async def stream(self, question):
        result = Runner.run_streamed(self.agent, question)
        async for _ in result.stream_events():
            pass
        return result.final_output

    def block(self, question):
        return asyncio.run(Runner.run(self.agent, question)).final_output


class Bare:
    """A loop written by hand over the bare SDK."""

    def __init__(self, name, asks, *, trainable=True):
        self.name, self.asks = name, {ask.__name__: ask for ask in asks}
        self.trainable = trainable

    def _request(self, question):
        system = {"role": "system", "content": f"You are {self.name}."}
        functions = [{"name": name, "parameters": PARAMETERS} for name in self.asks]
        tools = [{"type": "function", "function": function} for function in functions]
        messages = [system, {"role": "user", "content": question}]
        return {"model": MODEL, "messages": messages, **({"tools": tools} if tools else {})}

    async def run(self, question):
        request = self._request(question)
        with agent_scope(self.name, trainable=self.trainable):
            while True:
                answer = (await ASYNC_SDK.chat.completions.create(**request)).choices[0].message
                if not answer.tool_calls:
                    return answer.content
                asked = [(call.id, *self._asked(call)) for call in answer.tool_calls]
                values = await asyncio.gather(*(ask(**arguments) for _, ask, arguments in asked))
                request["messages"] += self._results(answer, asked, values)

    async def stream(self, question):
        return await self.run(question)

    def block(self, question):
        request = self._request(question)
        with agent_scope(self.name, trainable=self.trainable):
            while True:
                answer = SDK.chat.completions.create(**request).choices[0].message
                if not answer.tool_calls:
                    return answer.content
                asked = [(call.id, *self._asked(call)) for call in answer.tool_calls]
                values = [ask(**arguments) for _, ask, arguments in asked]
                request["messages"] += self._results(answer, asked, values)

    def _asked(self, call):
        return self.asks[call.function.name], json.loads(call.function.arguments)

    def _results(self, answer, asked, values):
        results = zip(asked, values, strict=True)
        told = [{"role": "tool", "tool_call_id": i[0], "content": value} for i, value in results]
        return [answer.model_dump(exclude_none=True), *told]


KINDS = {"langgraph": Langgraph, "strands": Strands, "agents": OpenAIAgents, "bare": Bare}
ORDERS = list(itertools.permutations(KINDS))


def asking(name, inner, mode):
    """A tool that asks an agent: awaited, streamed, or in the thread of a synchronous tool."""

    async def ask(question: str) -> str:
        return await getattr(inner, mode)(question)

    def block(question: str) -> str:
        return inner.block(question)

    tool = block if mode == "block" else ask
    tool.__name__ = f"ask_{name}"
    tool.__doc__ = DESCRIPTION
    return tool


def chain(kinds, mode="run"):
    """Agents of the given kinds, named after them, each of which asks the next; the first one."""
    inner, asks = None, []
    for kind in reversed(kinds):
        inner = KINDS[kind](kind, asks)
        asks = [asking(kind, inner, mode)]
    return inner


def speaker(messages):
    """Whose request this is, by its system prompt."""
    content = messages[0]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return text.removeprefix("You are ").removesuffix(".")


def play(body):
    """Ask everybody that may be asked, with one's own question, then say what they said."""
    messages, name = body["messages"], speaker(body["messages"])
    told = [message for message in messages if message["role"] == "tool"]
    if told:
        return f"{name}({', '.join(str(texts(message)) for message in told)})"
    question = texts(next(message for message in messages if message["role"] == "user"))
    tools = [tool["function"]["name"] for tool in body.get("tools") or []]
    asks = tuple(Tool(tool, {"question": question}) for tool in tools)
    return Turn(asks) if asks else f"{name}:{question}"


def texts(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
