"""Agents of one framework on the stub, in whichever interpreter runs it. Prints one JSON object.

`frameworks_load.py FRAMEWORK-LOAD ROOT NUMBER`. Where the peer is installed its agents run, and
otherwise ours, the bare framework's and, for tokens, the bare SDK's, by turns in one process.
"""

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec

from transport_load import HI, LONG, TURNS, cpu, said, sdk, url

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
HAS_PEER = find_spec("osmosis_ai") is not None
ROUNDS = 5
QUESTION = HI[0]["content"]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@contextmanager
def rollout(kind, has_tools):
    if HAS_PEER:
        from osmosis_ai.rollout.context import RolloutContext
    else:
        from osmosis_core import RolloutContext
    with RolloutContext(url(kind), "key", "r") as context:
        yield
    if not HAS_PEER:
        assert len(context.calls) == (TURNS if has_tools else 1), context.calls


def strands(kind, has_tools):
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    options = {"tools": [tool(add)] if has_tools else [], "callback_handler": None}
    streams = kind.endswith("stream")

    async def bare():
        model = OpenAIModel(client=client, model_id="m", stream=streams)
        await Agent(model=model, **options).invoke_async(QUESTION)

    async def wrapped():
        with rollout(kind, has_tools):
            model = OsmosisRolloutModel(**{} if streams else {"stream": False})
            await OsmosisStrandsAgent(model=model, messages=HI, **options).invoke_async()

    if HAS_PEER:
        from osmosis_ai.rollout.integrations.agents.strands import (
            OsmosisRolloutModel,
            OsmosisStrandsAgent,
        )

        return {"peer": wrapped}
    from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent

    client = sdk("bare", kind)
    return {"ours": wrapped, "bare": bare}


def openai_agents(kind, has_tools):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool

    tools = [function_tool(add)] if has_tools else []

    async def taken(agent, session=None):
        if not kind.endswith("stream"):
            return await Runner.run(agent, QUESTION, session=session)
        async for _ in Runner.run_streamed(agent, QUESTION, session=session).stream_events():
            pass

    async def bare():
        model = OpenAIChatCompletionsModel("m", client)
        settings = ModelSettings(include_usage=True)
        await taken(Agent("a", tools=tools, model=model, model_settings=settings))

    async def wrapped():
        with rollout(kind, has_tools):
            agent = OsmosisAgent(name="a", tools=tools, model=OsmosisRolloutModel())
            await taken(agent, OsmosisMemorySession() if HAS_PEER else None)

    if HAS_PEER:
        from osmosis_ai.rollout.integrations.agents.openai_agents import (
            OsmosisAgent,
            OsmosisMemorySession,
            OsmosisRolloutModel,
        )

        return {"peer": wrapped}
    from osmosis_openai_agents import OsmosisAgent, OsmosisRolloutModel

    client = sdk("bare", kind)
    return {"ours": wrapped, "bare": bare}


def langgraph(kind, has_tools):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    from osmosis_langgraph import ChatOsmosis

    tools = [add] if has_tools else []
    client = sdk("bare", kind)
    options = {"base_url": url(kind), "api_key": "key", "max_retries": 0, "stream_usage": True}
    chat = ChatOpenAI(
        model="m", root_async_client=client, async_client=client.chat.completions, **options
    )
    graphs = [create_agent(model, tools, name="a") for model in (chat, ChatOsmosis())]

    async def taken(graph):
        if not kind.endswith("stream"):
            return await graph.ainvoke({"messages": HI})
        async for _ in graph.astream({"messages": HI}, stream_mode="messages"):
            pass

    async def wrapped():
        with rollout(kind, has_tools):
            await taken(graphs[1])

    return {"ours": wrapped, "bare": lambda: taken(graphs[0])}


async def tokens(framework, count):
    """CPU milliseconds for 1,000 streamed tokens, by side: medians of rounds of `count` runs."""
    kind = f"{LONG}-stream"
    sides = framework(kind, False)
    if not HAS_PEER:
        client = sdk("bare", kind)
        sides["sdk"] = lambda: said(client, True)
    spent = {side: [] for side in sides}
    for number in range(ROUNDS + 1):
        for side, run in sides.items():
            gc.collect()
            began = cpu()
            for _ in range(count if number else 1):
                await run()
            spent[side].append(1000 * (cpu() - began) / count)
    return {side: statistics.median(rounds[1:]) for side, rounds in spent.items()}


async def turns(framework, count, kind):
    """Wall milliseconds of a turn: the bare one's median, and quartiles of what ours adds."""
    sides = framework(kind, True)
    spent = {side: [] for side in sides}
    for number in range(count + 2):
        for side in sorted(sides, reverse=bool(number % 2)):
            began = time.perf_counter()
            await sides[side]()
            spent[side].append(1000 * (time.perf_counter() - began) / TURNS)
    pairs = list(zip(spent["ours"][2:], spent["bare"][2:], strict=True))
    added = statistics.quantiles([ours - bare for ours, bare in pairs])
    return {"bare": statistics.median(bare for _, bare in pairs), "added": added}


async def main():
    name, _, load = sys.argv[1].partition("-")
    framework, count = globals()[name], int(sys.argv[3])
    if load == "tokens":
        return await tokens(framework, count)
    return await turns(framework, count, f"24-{load}")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
