"""A stand-in for the framework that you integrate: an agent, its model, its tools."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pydantic import TypeAdapter

type Message = dict[str, Any]


class Model(Protocol):
    """What an agent asks."""

    async def complete(self, messages: list[Message], tools: list[Message]) -> Message:
        """The next message of the assistant."""
        ...


class Agent:
    """Asks the model and calls tools until there is an answer."""

    def __init__(
        self, model: Model, messages: Sequence[Message], tools: Sequence[Callable[..., Any]] = ()
    ) -> None:
        self.model, self.messages = model, copy.deepcopy(list(messages))
        self.tools = {tool.__name__: tool for tool in tools}

    async def run(self) -> str:
        """The answer's text."""
        schemas = [schema(tool) for tool in self.tools.values()]
        while True:
            answer = await self.model.complete(self.messages, schemas)
            self.messages.append(answer)
            if not answer.get("tool_calls"):
                return answer["content"] or ""
            for call in answer["tool_calls"]:
                result = self.call(call["function"])
                self.messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": result}
                )

    def call(self, function: Message) -> str:
        """The result of a tool, or what is wrong with the call."""
        try:
            return str(self.tools[function["name"]](**json.loads(function["arguments"])))
        except Exception as error:
            return f"error: {type(error).__name__}: {error}"


def schema(tool: Callable[..., Any]) -> Message:
    """A function as OpenAI's API describes it."""
    parameters: Any = TypeAdapter[Any](tool).json_schema()  # pyright: ignore[reportArgumentType]
    function = {
        "name": tool.__name__,
        "description": tool.__doc__ or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}
