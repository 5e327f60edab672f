"""What an adapter's author tells the suite: how to build and run agents of the framework."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic import BaseModel

from osmosis_core.types import Message

REQUIRED = (
    "routing",
    "outside",
    "sample_ids",
    "recording",
    "prompts",
    "tools",
    "retries",
    "failures",
    "answers",
    "isolation",
    "threads",
    "cancellation",
    "quiet",
    "secrets",
)
"""What every adapter must do."""

OPTIONAL = {
    "tool_schemas": "take tools= in run_agent",
    "parallel_tools": "name it in capabilities",
    "images": "name it in capabilities",
    "streaming": "implement stream_agent",
    "structured_output": "implement ask_structured",
    "sub_agents": "implement run_team",
    "helpers": "implement run_helper",
    "sync": "implement run_sync",
    "conversations": "implement run_conversation",
    "trimming": "implement run_trimmed",
}
"""Capabilities that a framework may lack, and how fixtures declare that it has them."""

_METHODS = {hint.split()[1]: name for name, hint in OPTIONAL.items() if hint.startswith("impl")}
_NAMED = frozenset(name for name, hint in OPTIONAL.items() if hint.startswith("name"))


class AdapterFixtures(ABC):
    """What an adapter's author provides; name it in `Framework(conformance="module:Class")`.

    Three methods are required. Each further one that is implemented declares a capability, which
    the suite then demands; what is not declared is skipped, and shown as `no` in the table of
    `osmosis plugins check`. Agents are run inside an active rollout, on chat messages.
    """

    capabilities: frozenset[str] = frozenset()
    """Those without a method of their own: `images` (parts of type `image_url` in the prompt) and
    `parallel_tools` (the tool calls of one answer run at the same time)."""

    entry_module: str = ""
    """The module that the plugin's entry point names; when empty it is looked up among the
    installed plugins."""

    @abstractmethod
    def create_model(self) -> Any:
        """A policy model of the framework; called outside and inside of rollouts."""

    @abstractmethod
    async def call_model(self, model: Any) -> None:
        """Call the model once, without an agent."""

    @abstractmethod
    async def run_agent(
        self,
        name: str,
        prompt: list[Message],
        *,
        model: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> str:
        """Run an agent called `name` and return its final text.

        `model` is one of `create_model()`, or None for a fresh one. `tools` are plain functions
        with annotations and a docstring, offered to the policy under their own names.
        """

    def stream_agent(self, name: str, prompt: list[Message]) -> AsyncIterator[str]:
        """Run an agent as the framework streams; yields the pieces of its text (`streaming`)."""
        raise NotImplementedError

    async def ask_structured(
        self, name: str, prompt: list[Message], schema: type[BaseModel]
    ) -> BaseModel:
        """Run an agent whose output is an instance of `schema` (`structured_output`)."""
        raise NotImplementedError

    async def run_team(self, names: Sequence[str], prompt: list[Message]) -> str:
        """Run the first agent; each has the next one as a tool of its name (`sub_agents`)."""
        raise NotImplementedError

    async def run_helper(self, name: str, prompt: list[Message]) -> str:
        """Run an agent whose calls are recorded but never trained on (`helpers`)."""
        raise NotImplementedError

    def run_sync(self, name: str, prompt: list[Message]) -> str:
        """Run an agent by the framework's blocking entry point, without a loop (`sync`)."""
        raise NotImplementedError

    async def run_conversation(self, name: str, turns: Sequence[str]) -> str:
        """Give one agent several user messages, one run after the other (`conversations`)."""
        raise NotImplementedError

    async def run_trimmed(self, name: str, turns: Sequence[str]) -> str:
        """As `run_conversation`, but the framework forgets the first turns (`trimming`)."""
        raise NotImplementedError


def declared(fixtures: AdapterFixtures) -> frozenset[str]:
    """The optional capabilities that fixtures declare.

    Raises:
        ValueError: `capabilities` names one that there is not.
    """
    if unknown := fixtures.capabilities - _NAMED:
        known = ", ".join(sorted(_NAMED))
        raise ValueError(f"capabilities names {sorted(unknown)}; there is {known}")
    kind = type(fixtures)
    found = {n for m, n in _METHODS.items() if getattr(kind, m) is not getattr(AdapterFixtures, m)}
    if "tools" in inspect.signature(fixtures.run_agent).parameters:
        found.add("tool_schemas")
    return fixtures.capabilities | found
