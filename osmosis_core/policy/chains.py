"""Conversations rebuilt from the wire: which call a request goes on from, and which it rewrites.

A request goes on from a call when it begins with that call's messages and its answer. The messages
of a rollout form a tree, and a request is a walk down from its root: the cost is linear, and what
requests have in common is stored once. Sources: training.md 3, frameworks.md 4.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from typing import Any

from osmosis_core.context import RolloutContext
from osmosis_core.policy.rewrites import Key, departure, message_key
from osmosis_core.records import Finding, Message, PolicyCall, resent


class _Node:
    """A message at its place in a conversation."""

    __slots__ = ("above", "answered", "asked", "below", "key", "message", "source", "written")

    def __init__(self, above: _Node | None, key: Key, message: Message) -> None:
        self.above, self.key = above, key
        self.message = self.written = message
        """As it was generated, or first sent; and as the framework writes it."""
        self.below: _Node | dict[Key, _Node] | None = None
        """What follows: mostly one message."""
        self.source: PolicyCall | None = None
        """The call that generated the message, here or in a conversation that this one rewrites."""
        self.answered: tuple[PolicyCall, ...] = ()
        """The calls whose request ended above and whose answer this is."""
        self.asked: tuple[PolicyCall, ...] = ()
        """The calls whose request ended here."""

    def find(self, key: Key) -> _Node | None:
        below = self.below
        if isinstance(below, dict):
            return below.get(key)
        return below if below is not None and below.key == key else None

    def add(self, key: Key, message: Message) -> _Node:
        node, below = _Node(self, key, message), self.below
        if below is None:
            self.below = node
        else:
            self.below = below if isinstance(below, dict) else {below.key: below}
            self.below[key] = node
        return node

    def keys(self) -> list[Key]:
        """The conversation from its first message to this one."""
        found: list[Key] = []
        node = self
        while node.above is not None:
            found.append(node.key)
            node = node.above
        return found[::-1]


class Conversations:
    """The conversations of one rollout; calls may begin and end in any thread."""

    def __init__(self) -> None:
        self._roots: list[tuple[Any, _Node]] = []
        self._generated: dict[Key, PolicyCall] = {}
        self._tool_calls: dict[Hashable, PolicyCall] = {}
        """By id, the call whose answer asked for a tool."""
        self._places: dict[int, tuple[_Node, PolicyCall | None]] = {}
        """By index of a call: where its request ended, and the call that it goes on from."""
        self._heads: list[PolicyCall | None] = []
        """By number of a chain: the call that its next one must go on from."""
        self._told: dict[int, PolicyCall] = {}
        """By number of a chain: its latest call that was answered."""
        self._lock = threading.Lock()

    def begin(self, call: PolicyCall, replay: bool) -> None:
        """Find the place of a call's request, whose messages are then shared with earlier ones.

        With `replay`, a turn that was generated in this rollout is put back as it was generated
        where the framework's copy is equal but not identical.
        """
        messages: list[Any] = call.messages
        if not all(isinstance(message, dict) for message in messages):
            return
        with self._lock:
            path = self._walk(self._root(call), messages, replay)
            before = _latest(path, call.sample_id)
            call.continues = before.index if before else None
            call.chain = self._chain(before)
            call.findings = self._findings(call, before, path)
            self._heads[call.chain] = call
            path[-1].asked += (call,)
            self._places[call.index] = (path[-1], before)

    def end(self, call: PolicyCall) -> None:
        """Take in the answer of a call; one that failed leaves its place in the chain."""
        with self._lock:
            place, before = self._places.get(call.index, (None, None))
            call.pack(before)
            if place is None:
                return
            if call.answer is None:
                if self._heads[call.chain] is call:
                    self._heads[call.chain] = before
                return
            message = resent(call.answer)
            key = message_key(message)
            node = place.find(key) or place.add(key, message)
            node.message = message
            node.source = self._generated[key] = self._told[call.chain] = call
            node.answered += (call,)
            for tool in message.get("tool_calls", ()):
                self._tool_calls[str(tool.get("id"))] = call

    def _root(self, call: PolicyCall) -> _Node:
        """Where conversations with these tools begin: a model reads them before any message."""
        for tools, root in self._roots:
            if tools == call.tools:
                if "tools" in call.request:
                    call.request["tools"] = tools
                return root
        self._roots.append((call.tools, _Node(None, ("", "", None), {})))
        return self._roots[-1][1]

    def _walk(self, node: _Node, messages: list[Message], replay: bool) -> list[_Node]:
        path = [node]
        for place, message in enumerate(messages):
            below = node.below
            if isinstance(below, _Node) and below.message == message:
                messages[place] = below.message
            else:
                if not isinstance(below, _Node) or below.written != message:
                    below = self._slow(node, message)
                is_replayed = replay and below.source is not None
                messages[place] = below.message if is_replayed else below.written
            node = below
            path.append(node)
        return path

    def _slow(self, node: _Node, message: Message) -> _Node:
        key = message_key(message)
        below = node.find(key)
        if below is None:
            below = node.add(key, message)
            below.source = self._generated.get(key)
            if below.source is not None and below.source.answer is not None:
                below.message = resent(below.source.answer)
        below.written = message
        return below

    def _chain(self, before: PolicyCall | None) -> int:
        if before is not None and self._heads[before.chain] is before:
            return before.chain
        if before is None and self._heads and self._heads[-1] is None:
            return len(self._heads) - 1
        self._heads.append(None)
        return len(self._heads) - 1

    def _findings(
        self, call: PolicyCall, before: PolicyCall | None, path: list[_Node]
    ) -> list[Finding]:
        asked = (c for c in path[-1].asked if c.sample_id == call.sample_id)
        again = next((c for c in asked if c.answer is not None), None)
        if again is not None:
            text = f"asks again what call {again.index} was answered"
            return [Finding("duplicate", call.index, again.index, text)]
        source = self._source(path)
        if source is None:
            return []
        is_handoff = source.sample_id != call.sample_id
        last = source if is_handoff else self._told[source.chain]
        if before is last:
            return []
        return self._departed(call, last, path[-1], is_handoff)

    def _source(self, path: list[_Node]) -> PolicyCall | None:
        """The call whose answer comes last in a request, be it only by the id of a tool call."""
        sources = (node.source for node in reversed(path) if node.source is not None)
        results = (node.key[2] for node in reversed(path) if node.key[0] == "tool")
        asked = (self._tool_calls[id_] for id_ in results if id_ in self._tool_calls)
        return next(sources, None) or next(asked, None)

    def _departed(
        self, call: PolicyCall, last: PolicyCall, end: _Node, is_handoff: bool
    ) -> list[Finding]:
        answer: Any = last.answer
        told = [*self._places[last.index][0].keys(), message_key(answer)]
        found = departure(told, end.keys(), is_handoff=is_handoff)
        if found is None:
            if is_handoff:
                return []
            found = "tools", "other tools are offered"
        kind, text = found
        text = f"does not go on from call {last.index}: {text}"
        return [Finding(kind, call.index, last.index, text)]


def _latest(path: list[_Node], sample_id: str) -> PolicyCall | None:
    """The call whose answer comes last in a request; of several the sample's own."""
    answered = next((node.answered for node in reversed(path) if node.answered), ())
    return next((c for c in reversed(answered) if c.sample_id == sample_id), None) or (
        answered[-1] if answered else None
    )


_lock = threading.Lock()
_conversations: weakref.WeakKeyDictionary[RolloutContext, Conversations] = (
    weakref.WeakKeyDictionary()
)


def conversations(context: RolloutContext) -> Conversations:
    """The conversations of a rollout."""
    with _lock:
        return _conversations.setdefault(context, Conversations())
