"""A small agent framework, for the adapter next to it."""

import asyncio
import inspect
import json

from pydantic import TypeAdapter


class Agent:
    def __init__(self, name, model, messages=(), tools=(), window=None):
        self.name, self.model, self.window = name, model, window
        self.messages = list(messages)
        self.tools = {tool.__name__: tool for tool in tools}

    async def run(self, text=None):
        self._begin(text)
        while True:
            answer = await self.model.complete(self._shown(), self._schemas())
            self.messages.append(answer)
            if not answer.get("tool_calls"):
                return answer.get("content") or ""
            results = [self._call(call) for call in answer["tool_calls"]]
            self.messages += await asyncio.gather(*results)

    async def stream(self, text=None):
        self._begin(text)
        pieces = []
        async with self.model.stream(self._shown()) as deltas:
            async for piece in deltas:
                pieces.append(piece)
                yield piece
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    async def ask(self, schema):
        tool = schema_of(schema.__name__, schema.__doc__, schema.model_json_schema())
        answer = await self.model.complete(self._shown(), [tool], tool_choice="required")
        self.messages.append(answer)
        return schema.model_validate_json(answer["tool_calls"][0]["function"]["arguments"])

    def as_tool(self):
        async def ask(input: str) -> str:
            """Ask the agent."""
            return await self.run(input)

        ask.__name__ = self.name
        return ask

    def _begin(self, text):
        if text is not None:
            self.messages.append({"role": "user", "content": text})

    def _shown(self):
        return self.messages[-self.window :] if self.window else self.messages

    def _schemas(self):
        return [
            schema_of(name, tool.__doc__, TypeAdapter(tool).json_schema())
            for name, tool in self.tools.items()
        ]

    async def _call(self, call):
        try:
            function = self.tools[call["function"]["name"]]
            arguments = json.loads(call["function"]["arguments"])
            if inspect.iscoroutinefunction(function):
                value = await function(**arguments)
            else:
                value = await asyncio.to_thread(function, **arguments)
        except Exception as error:
            value = f"Error: {error!r}"
        return {"role": "tool", "tool_call_id": call["id"], "content": str(value)}


def schema_of(name, description, parameters):
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}
