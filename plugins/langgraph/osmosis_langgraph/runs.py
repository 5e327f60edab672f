"""LangChain's tree of runs: which graph a call is made in, and as part of what."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import BaseMessage, RemoveMessage
from langgraph.types import Command

from osmosis_langgraph.history import Attempts

_UNNAMED = "LangGraph"
HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
"""How the names of nodes end in which middleware runs beside an agent's model."""


@dataclass(slots=True, eq=False)
class Run:
    """A chain, tool or retriever at work; what a node has for a parent is a graph."""

    parent: Run | None
    name: str
    metadata: Mapping[str, Any]
    scope: str = ""
    """The sample of the `agent_scope` that it began in."""
    inputs: Any = None
    is_tool: bool = False
    node: str | None = None
    attempt: int | None = None
    """Counts the runs of one task; None for what is not a task of a graph."""
    graph: Graph | None = None
    leave: Callable[[], None] | None = None
    """Ends what the run is in: a node, the tool of the agent that acts."""

    @property
    def task(self) -> str:
        """The innermost task of a graph that this run is part of; empty outside of graphs."""
        return self.metadata.get("langgraph_checkpoint_ns") or ""

    @property
    def path(self) -> tuple[Any, ...]:
        """How the task came about: LangGraph's `langgraph_path`."""
        return tuple(self.metadata.get("langgraph_path") or ("", ""))

    def upward(self) -> Iterator[Run]:
        """This run and those that it is part of, innermost first."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def within(self) -> Run | None:
        """The innermost node that this run is part of."""
        return next((run for run in self.upward() if run.node is not None), None)

    def attempts(self) -> Attempts:
        """The tasks that, run again, would run this again."""
        found: Attempts = {}
        for run in self.upward():
            if run.attempt is not None:
                found[run.task] = run.attempt
                if not isinstance(run.path[1], str | int):
                    break  # a task of the functional API: once done it is not run again
        return found


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph at work: what it is called, and as part of what."""

    conversation: Hashable
    """The run of an outermost graph, or what it continues."""
    place: tuple[str, ...]
    name: str | None
    task: str = ""
    """The task of the enclosing graph in which it runs."""

    @classmethod
    def of(cls, run: Run, outer: Graph | None, conversation: Hashable) -> Graph:
        """What a graph's run is, given the graph that it is part of."""
        above = list(run.upward())[1:]
        given = run.metadata.get("lc_agent_name")
        if given is None or any(given == other.metadata.get("lc_agent_name") for other in above):
            given = run.name if run.name != _UNNAMED else None  # inherited from an outer agent
        if outer is None:
            return cls(conversation, (given,) if given else (), given)
        caller = next(other.name for other in above if other.is_tool or other.node)
        return cls(conversation, (given,) if given else (*outer.place, caller), given, run.task)

    def agent(self, node: Run) -> tuple[str, Hashable, Hashable]:
        """The agent that a node is part of: its name, what identifies it, and its conversation."""
        if self.name is not None:
            return self.name, (self.conversation, self.place), self
        name = "model" if str(node.node).endswith(HOOKS) else str(node.node)
        talk = (self, node.task) if node.path[0] == "__pregel_push" else self
        return name, (self.conversation, (*self.place, name)), talk


def messages_in(value: Any) -> Iterator[BaseMessage]:
    """The messages that a node returned or a command carries."""
    if isinstance(value, Command):
        value = cast("Any", value.update)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(value, BaseMessage) and not isinstance(value, RemoveMessage):
        yield value
    elif isinstance(value, dict | list | tuple):
        members: Any = value.values() if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
        for member in members:
            yield from messages_in(member)
