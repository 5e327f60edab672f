"""The adapter for `tiny_agents`: right, until a test breaks it."""

import asyncio
import copy
import json
from contextlib import asynccontextmanager

import httpx2
import tiny_agents

from osmosis_core import NoActiveRolloutError, RolloutSample, SampleSource, get_rollout_context
from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client, current_scope
from osmosis_core.testing import AdapterFixtures

URL = f"{BASE_URL}/chat/completions"


class TinyModel:
    async def complete(self, messages, tools=(), **options):
        body = {"model": MODEL, "messages": messages, **options}
        if tools:
            body["tools"] = tools
        response = await async_client(httpx2).post(URL, json=body)
        response.raise_for_status()
        return response.json()["choices"][0]["message"]

    @asynccontextmanager
    async def stream(self, messages):
        body = {"model": MODEL, "messages": messages, "stream": True}
        async with async_client(httpx2).stream("POST", URL, json=body) as response:
            response.raise_for_status()
            deltas = self._deltas(response)
            try:
                yield deltas
            finally:
                await deltas.aclose()

    async def _deltas(self, response):
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                for choice in json.loads(data)["choices"]:
                    if choice["delta"].get("content"):
                        yield choice["delta"]["content"]


class TinySource(SampleSource):
    def __init__(self, agent):
        self.agent = agent

    async def get_sample(self, sample_id):
        return RolloutSample(id=sample_id, messages=copy.deepcopy(self.agent.messages))


class TinyAgent(tiny_agents.Agent):
    def __init__(self, name, messages=(), tools=(), model=None, **options):
        rollout = get_rollout_context()
        if rollout is None:
            raise NoActiveRolloutError("TinyAgent")
        messages = copy.deepcopy(messages)
        super().__init__(name, model or TinyModel(), messages, tools, **options)
        self.sample_id = rollout.register_agent(name, TinySource(self), derived=True)

    def scope(self):
        return agent_scope(self.sample_id, trainable=current_scope().trainable)

    async def run(self, text=None):
        with self.scope():
            return await super().run(text)

    async def ask(self, schema):
        with self.scope():
            return await super().ask(schema)


class TinyAdapter(AdapterFixtures):
    capabilities = frozenset({"images", "parallel_tools"})
    entry_module = "tiny_plugin"

    def create_model(self):
        return TinyModel()

    async def call_model(self, model):
        await model.complete([{"role": "user", "content": "hello"}])

    async def run_agent(self, name, prompt, *, model=None, tools=()):
        return await TinyAgent(name, prompt, tools, model).run()

    async def stream_agent(self, name, prompt):
        agent = TinyAgent(name, prompt)
        with agent.scope():
            stream = agent.stream()
            try:
                async for piece in stream:
                    yield piece
            finally:
                await stream.aclose()

    async def ask_structured(self, name, prompt, schema):
        return await TinyAgent(name, prompt).ask(schema)

    async def run_team(self, names, prompt):
        tools = []
        for name in reversed(names[1:]):
            tools = [TinyAgent(name, tools=tools).as_tool()]
        return await TinyAgent(names[0], prompt, tools).run()

    async def run_helper(self, name, prompt):
        with agent_scope(name, trainable=False):
            return await self.run_agent(name, prompt)

    def run_sync(self, name, prompt):
        return asyncio.run(self.run_agent(name, prompt))

    async def run_conversation(self, name, turns):
        return await self._converse(TinyAgent(name), turns)

    async def run_trimmed(self, name, turns):
        return await self._converse(TinyAgent(name, window=3), turns)

    async def _converse(self, agent, turns):
        for turn in turns:
            said = await agent.run(turn)
        return said
