"""What LangChain does in a rollout: who calls the policy, started by whom, and what was said."""

# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import ParentCommand

from osmosis_core import RolloutContext, SampleError, get_rollout_context
from osmosis_core.policy import current_scope, in_tool_of
from osmosis_langgraph.history import Attempts, History
from osmosis_langgraph.runs import HOOKS, Graph, Run, messages_in

_UNSCOPED = "main"


@dataclass(frozen=True, slots=True)
class Agent:
    """Who calls the policy: a sample, and its history if there is none elsewhere."""

    sample_id: str
    history: History | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A call of a chat model that has begun."""

    run: Run | None = None
    is_aside: bool = False
    """True when the call is about the conversation, not part of it, as a summary is."""
    agent: Agent | None = None
    """None unless it is a call of the policy."""
    talk: Hashable = None
    attempts: Attempts = field(default_factory=dict[str, int])

    def told(self, messages: list[BaseMessage], *, is_answer: bool = False) -> None:
        """Take messages into the agent's history."""
        history = None if self.is_aside or self.agent is None else self.agent.history
        if history is not None:
            if is_answer:
                history.supersede(self.attempts)
            history.absorb(messages, self.talk, self.attempts)


_begun: ContextVar[Call | None] = ContextVar("osmosis_langgraph_call", default=None)


class Watch:
    """The runs, agents and calls of one rollout."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run] = {}
        self._calls: dict[Hashable, Call] = {}
        self._agents: dict[Hashable, Agent] = {}
        self._attempts: Attempts = {}
        self._acting: dict[Graph, Agent] = {}
        self._answered: dict[str, Hashable] = {}
        self._lock = threading.RLock()

    @classmethod
    def active(cls) -> Watch:
        """That of the active rollout; outside of rollouts one that nobody keeps."""
        rollout = get_rollout_context()
        with _watches_lock:
            return cls() if rollout is None else _watches.setdefault(rollout, cls())

    def start(self, event: Mapping[str, Any], name: str, **known: Any) -> None:
        """Take a run into the tree; a node acts on the latest tool calls in its graph."""
        with self._lock:
            parent = self._runs.get(event.get("parent_run_id"))
            scope = current_scope().sample_id
            run = Run(parent, name, event.get("metadata") or {}, scope=scope, **known)
            self._runs[event["run_id"]] = run
            if run.task and (parent is None or run.task != parent.task):
                run.attempt = self._attempts[run.task] = self._attempts.get(run.task, 0) + 1
            if not any(tag.startswith("graph:step:") for tag in event.get("tags") or ()):
                return
            run.node = str(run.metadata.get("langgraph_node"))
            acting = self._acting.get(self._graph(run))
        if acting is not None:
            run.leave = in_tool_of(acting.sample_id)

    def end(self, run_id: Hashable, outputs: Any) -> None:
        """Drop a run; what a node returned becomes part of its agent's history."""
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None or run.node is None:
                return
            if run.leave is not None:
                run.leave()
            graph = self._graph(run)
            _, key, talk = graph.agent(run)
            own, acting = self._agents.get(key), self._acting.get(graph)
            for message in messages_in(outputs):
                if own is not None:
                    Call(agent=own, talk=talk, attempts=run.attempts()).told([message])
                elif isinstance(message, ToolMessage):
                    Call(agent=acting, talk=graph, attempts=run.attempts()).told([message])

    def begin(self, event: Mapping[str, Any]) -> None:
        """Note that a chat model was called; it is not told itself which run it is."""
        with self._lock:
            run = self._runs.get(event.get("parent_run_id"))
            metadata: dict[str, Any] = event.get("metadata") or {}
            is_aside = str(metadata.get("langgraph_node")).endswith(HOOKS)
            call = Call(run, is_aside or "lc_source" in metadata)
            self._calls[event["run_id"]] = call
        _begun.set(call)

    def claim(
        self, rollout: RolloutContext, sample_id: str | None, messages: list[BaseMessage]
    ) -> Agent:
        """Whose the call of the policy is that was begun here; its history has the messages."""
        call, scope = _begun.get() or Call(), current_scope().sample_id
        with self._lock:
            node = call.run.within() if call.run else None
            explicit = sample_id or self._scoped(rollout, scope, node)
            name, key = explicit, cast("Hashable", (None, explicit))
            if call.run is not None and node is not None:
                derived, derived_key, call.talk = self._graph(node).agent(node)
                call.attempts = call.run.attempts()
                name, key = (explicit, key) if explicit else (derived, derived_key)
            if name is None:
                call.agent = Agent(scope)
            else:
                call.agent = self._agent(rollout, name, key, is_derived=explicit is None)
            call.told(messages)
        return call.agent

    def _scoped(self, rollout: RolloutContext, scope: str, node: Run | None) -> str | None:
        """The name that the scope gives to the calls in a node.

        A graph that another framework's agent runs in a tool is no part of that agent, whatever
        scope its adapter is in; a scope that was entered inside of the node always counts.
        """
        if scope == _UNSCOPED:
            return None
        name, key = unquote(scope), (None, unquote(scope))
        if node is not None and node.scope == scope:
            is_new = key not in self._agents
            if is_new and rollout.latest_tool_call(scope) is not None:
                return None
            if self._agent(rollout, name, key).history is None:
                return None
        return name

    def _agent(
        self, rollout: RolloutContext, name: str, key: Hashable, *, is_derived: bool = False
    ) -> Agent:
        if key not in self._agents:
            self._agents[key] = _registered(rollout, name, is_derived=is_derived)
        return self._agents[key]

    def answer(self, run_id: Hashable, answers: list[BaseMessage]) -> None:
        """End a call; who asks for tools acts in its graph until it asks for none."""
        with self._lock:
            call = self._calls.pop(run_id, None)
            if call is None or call.agent is None or not answers:
                return
            call.told(answers, is_answer=True)
            asks = any(isinstance(answer, AIMessage) and answer.tool_calls for answer in answers)
            for run in call.run.upward() if call.run is not None else ():
                if run.is_tool:
                    break
                if run.node is not None:
                    graph = self._graph(run)
                    self._answered |= {str(answer.id): graph.conversation for answer in answers}
                    if asks:
                        self._acting[graph] = call.agent
                    elif self._acting.get(graph) is call.agent:
                        del self._acting[graph]

    def _graph(self, node: Run) -> Graph:
        run = node.parent or node
        if run.graph is None:
            outer_node = run.parent.within() if run.parent else None
            outer = self._graph(outer_node) if outer_node else None
            run.graph = Graph.of(run, outer, outer.conversation if outer else self._talk(run))
        return run.graph

    def _talk(self, run: Run) -> Hashable:
        """A conversation of its own, unless it is of a thread or goes on from an answer."""
        thread_id = run.metadata.get("thread_id")
        if thread_id is not None:
            return ("thread", str(thread_id))
        ids = (str(message.id) for message in messages_in(run.inputs))
        return next((self._answered[i] for i in ids if i in self._answered), object())


def _registered(rollout: RolloutContext, name: str, *, is_derived: bool) -> Agent:
    history = History()
    try:
        return Agent(rollout.register_sample_source(name, history, derived=is_derived), history)
    except SampleError:  # another source tells this sample
        return Agent(name)


_watches: weakref.WeakKeyDictionary[RolloutContext, Watch] = weakref.WeakKeyDictionary()
_watches_lock = threading.Lock()


class _Observer(BaseCallbackHandler):
    """Tells the active rollout's Watch; outside of rollouts it does nothing."""

    run_inline = raise_error = True

    def on_chain_start(self, serialized: Any, inputs: Any, **event: Any) -> None:
        self._start(serialized, event, inputs=inputs)

    def on_tool_start(self, serialized: Any, input_str: str, **event: Any) -> None:
        self._start(serialized, event, is_tool=True)

    def on_retriever_start(self, serialized: Any, query: str, **event: Any) -> None:
        self._start(serialized, event)

    def _start(self, serialized: Any, event: dict[str, Any], **known: Any) -> None:
        named: dict[str, Any] = serialized or event
        Watch.active().start(event, str(event.get("name") or named.get("name")), **known)

    def on_chain_end(self, outputs: Any, *, run_id: Hashable, **event: Any) -> None:
        Watch.active().end(run_id, outputs)

    def on_chain_error(self, error: BaseException, *, run_id: Hashable, **event: Any) -> None:
        is_handing_over = isinstance(error, ParentCommand)
        Watch.active().end(run_id, cast("Any", error).args if is_handing_over else None)

    on_tool_end = on_retriever_end = on_chain_end  # pyright: ignore[reportAssignmentType]
    on_tool_error = on_retriever_error = on_chain_error

    def on_chat_model_start(self, serialized: Any, messages: Any, **event: Any) -> None:
        Watch.active().begin(event)

    def on_llm_end(self, response: Any, *, run_id: Hashable, **event: Any) -> None:
        generations: list[Any] = [g for gs in response.generations for g in gs]
        Watch.active().answer(run_id, [generation.message for generation in generations])

    def on_llm_error(self, error: BaseException, *, run_id: Hashable, **event: Any) -> None:
        Watch.active().answer(run_id, [])


_OBSERVER = _Observer()
register_configure_hook(ContextVar("osmosis_langgraph", default=_OBSERVER), inheritable=True)
