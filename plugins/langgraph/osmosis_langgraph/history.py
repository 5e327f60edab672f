"""The complete native history of an agent, although its state trims, rewrites and runs again."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message

from osmosis_core import Message, RolloutSample, SampleSource

_ROLES = {"human": "user", "ai": "assistant"}

type Attempts = dict[str, int]
"""The tasks of graphs in which something happened, and which run of each task it was."""


@dataclass(slots=True, eq=False)
class _Entry:
    message: BaseMessage
    position: int
    conversation: Hashable
    attempts: Attempts

    def is_older(self, attempts: Attempts) -> bool:
        return any(self.attempts.get(task, run) < run for task, run in attempts.items())


class History(SampleSource):
    """Every message that an agent's model was shown or gave, once, in order.

    A message is known by its id, as the same object, or, without an id, as the next one that says
    the same. Conversations that an agent leads in parallel follow each other.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._by_id: dict[str, _Entry] = {}
        self._by_object: dict[int, _Entry] = {}
        self._lock = threading.Lock()

    def absorb(
        self, messages: Iterable[BaseMessage], conversation: Hashable, attempts: Attempts
    ) -> None:
        """Take in the messages that are not known yet, from one of the agent's conversations."""
        with self._lock:
            position = -1
            for message in messages:
                entry = self._known(message, position, conversation)
                if entry is None:
                    entry = self._append(message, conversation, attempts)
                elif entry.is_older(attempts):
                    entry.attempts = attempts
                position = entry.position

    def supersede(self, attempts: Attempts) -> None:
        """Forget what earlier runs of these tasks added and the latest ones did not see again."""
        with self._lock:
            kept = [entry for entry in self._entries if not entry.is_older(attempts)]
            if len(kept) < len(self._entries):
                self._entries, self._by_id, self._by_object = [], {}, {}
                for entry in kept:
                    self._append(entry.message, entry.conversation, entry.attempts)

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample, in LangChain's message shape with a chat message's `role`."""
        conversations: dict[Hashable, list[Message]] = {}
        with self._lock:
            for entry in self._entries:
                conversations.setdefault(entry.conversation, []).append(_native(entry.message))
        messages = [message for told in conversations.values() for message in told]
        return RolloutSample(id=sample_id, messages=messages)

    def _append(self, message: BaseMessage, conversation: Hashable, attempts: Attempts) -> _Entry:
        entry = _Entry(message, len(self._entries), conversation, attempts)
        self._entries.append(entry)
        self._index(message, entry)
        return entry

    def _index(self, message: BaseMessage, entry: _Entry) -> None:
        self._by_object[id(entry.message)] = entry
        if message.id:  # reducers give one to messages that came without
            self._by_id[message.id] = entry

    def _known(self, message: BaseMessage, position: int, conversation: Hashable) -> _Entry | None:
        entry = self._by_object.get(id(message)) or self._by_id.get(message.id or "")
        if entry is not None:
            self._index(message, entry)
        elif not message.id:
            later = (
                entry
                for entry in self._entries[position + 1 :]
                if entry.conversation == conversation or message.type == "system"
            )
            entry = next((entry for entry in later if _says_the_same(entry.message, message)), None)
        return entry


def _says_the_same(one: BaseMessage, other: BaseMessage) -> bool:
    return all(
        getattr(one, name, None) == getattr(other, name, None)
        for name in ("type", "content", "tool_calls", "tool_call_id")
    )


def _native(message: BaseMessage) -> Message:
    if isinstance(message, BaseMessageChunk):
        message = message_chunk_to_message(message)
    native: dict[str, Any] = message.model_dump(exclude_none=True)
    return {"role": _ROLES.get(message.type, message.type), **native}
