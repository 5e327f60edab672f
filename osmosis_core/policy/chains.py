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
from osmosis_core.policy.rewrites import Key, as_generated, departure, message_key
from osmosis_core.records import Finding, Message, PolicyCall, resent


class _Node:
    """A message at its place in a conversation."""

    __slots__ = ("__weakref__", "above", "answered", "asked", "below", "generated", "key",
                 "message", "source", "written")  # fmt: skip

    def __init__(self, above: _Node | None, key: Key, message: Message) -> None:
        self.above, self.key = above and weakref.ref(above), key
        self.message = self.written = message
        """As it is sent again, or was first sent; and as the framework writes it."""
        self.generated: Message | None = None
        """The answer that this is, to be sent again."""
        self.below: _Node | dict[Key, _Node] | None = None
        """What follows: mostly one message."""
        self.source: PolicyCall | None = None
        """The call that generated the message, here or in a conversation that this one rewrites;
        of a tool's result, the call that asked for it."""
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
        while node is not None and node.above is not None:
            found.append(node.key)
            node = node.above()
        return found[::-1]


class Conversations:
    """The conversations of one rollout; calls may begin and end in any thread."""

    def __init__(self) -> None:
        self._roots: list[tuple[Any, _Node]] = []
        self._generated: dict[Hashable, PolicyCall | None] = {}
        """By the key of an answer, and by it and that of the message that it answers; None for an
        answer that was written, as an example of one, before it was ever generated."""
        self._tool_calls: dict[Hashable, PolicyCall] = {}
        """By sample and id, the call whose answer asked for a tool."""
        self._places: dict[int, tuple[_Node, PolicyCall | None]] = {}
        """By index of a call: where its request ended, and the call that it goes on from."""
        self._heads: list[PolicyCall | None] = []
        """By number of a chain: the call that its next one must go on from."""
        self._told: dict[tuple[int, str], PolicyCall] = {}
        """By number of a chain, and sample: its latest call that was answered."""
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
            path = self._walk(self._root(call), call, replay)
            before = self._before(path, call.sample_id)
            call.continues = before.index if before else None
            call.chain = self._chain(before, path[-1])
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
            node.message = node.generated = message
            node.source = self._told[call.chain, call.sample_id] = call
            node.answered += (call,)
            self._generated[place.key, key] = call
            if self._generated.get(key, call) is not None:
                self._generated[key] = call
            for tool in message.get("tool_calls", ()):
                self._tool_calls[call.sample_id, str(tool.get("id"))] = call

    def _root(self, call: PolicyCall) -> _Node:
        """Where conversations with these tools begin: a model reads them before any message."""
        for tools, root in self._roots:
            if tools == call.tools:
                if tools:
                    call.request["tools"] = tools
                return root
        self._roots.append((call.tools, _Node(None, ("", "", None), {})))
        return self._roots[-1][1]

    def _walk(self, node: _Node, call: PolicyCall, replay: bool) -> list[_Node]:
        path, messages = [node], call.messages
        for place, message in enumerate(messages):
            below = node.below
            if isinstance(below, _Node) and below.message == message:
                messages[place] = below.message
            else:
                if not isinstance(below, _Node) or below.written != message:
                    below = self._slow(node, message, call.sample_id)
                is_replayed = replay and below.generated is not None
                messages[place] = below.message if is_replayed else below.written
            node = below
            path.append(node)
        return path

    def _slow(self, node: _Node, message: Message, sample_id: str) -> _Node:
        key = message_key(message)
        below = node.find(key) or self._new(node, key, message, sample_id)
        below.written = message
        if below.generated is not None:
            below.message = as_generated(below.generated, message)
        return below

    def _new(self, node: _Node, key: Key, message: Message, sample_id: str) -> _Node:
        below = node.add(key, message)
        if key[0] == "tool":
            below.source = self._tool_calls.get((sample_id, key[2]))
        elif key[0] == "assistant":
            moved = self._generated.get((node.key, key))
            below.source = moved or self._generated.setdefault(key, None)
            below.generated = resent(moved.answer) if moved and moved.answer else None
        return below

    def _before(self, path: list[_Node], sample_id: str) -> PolicyCall | None:
        """The call whose answer comes last in a request; of several the sample's own, and of these
        one that nothing goes on from."""
        answered = next((node.answered for node in reversed(path) if node.answered), ())
        own = [call for call in answered if call.sample_id == sample_id] or answered
        free = (call for call in reversed(own) if self._heads[call.chain] is call)
        return next(free, None) or (own[-1] if own else None)

    def _chain(self, before: PolicyCall | None, end: _Node) -> int:
        if before is not None and self._heads[before.chain] is before:
            return before.chain
        failed = (c.chain for c in end.asked if before is None and self._heads[c.chain] is None)
        number = next(failed, len(self._heads))
        if number == len(self._heads):
            self._heads.append(None)
        return number

    def _findings(
        self, call: PolicyCall, before: PolicyCall | None, path: list[_Node]
    ) -> list[Finding]:
        asked = (c for c in path[-1].asked if c.sample_id == call.sample_id)
        again = next((c for c in asked if c.answer is not None), None)
        if again is not None:
            text = f"asks again what call {again.index} was answered"
            return [Finding("duplicate", call.index, again.index, text)]
        source = _source(path, before)
        if source is None:
            return []
        is_own = source.sample_id == call.sample_id
        last = self._told[source.chain, source.sample_id] if is_own else source
        return [] if before is last else self._departed(call, last, path[-1])

    def _departed(self, call: PolicyCall, last: PolicyCall, end: _Node) -> list[Finding]:
        answer: Any = last.answer
        is_handoff = last.sample_id != call.sample_id
        told = [*self._places[last.index][0].keys(), message_key(answer)]
        found = departure(told, end.keys(), is_handoff=is_handoff)
        if found is None:
            if is_handoff:
                return []
            found = "tools", "other tools are offered"
        kind, text = found
        text = f"does not go on from call {last.index}: {text}"
        return [Finding(kind, call.index, last.index, text)]


def _source(path: list[_Node], before: PolicyCall | None) -> PolicyCall | None:
    """The call whose answer comes last in a request, be it only by the id of a tool call."""
    known = [node for node in reversed(path) if node.source is not None]
    answers = [node for node in known if node.key[0] == "assistant"]
    last = next(iter(answers or known), None)
    return before if last is None or last.answered else last.source


_lock = threading.Lock()
_conversations: weakref.WeakKeyDictionary[RolloutContext, Conversations] = (
    weakref.WeakKeyDictionary()
)


def conversations(context: RolloutContext) -> Conversations:
    """The conversations of a rollout."""
    with _lock:
        found = _conversations.get(context)
        return found or _conversations.setdefault(context, Conversations())
