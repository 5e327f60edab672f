"""The complete native history of a Strands agent, although Strands trims and resets its own."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

from strands import Agent
from strands.hooks import MessageAddedEvent, MessageUpdatedEvent

from osmosis_core import Message, RolloutSample, SampleSource

_INTERNAL = ("tracking_id", "metadata")


class History:
    """Every message that an agent ever held, in the order in which it came to hold them.

    Conversation managers, graphs and agents-as-tools replace `agent.messages`; this listens to
    the agent's own events instead, and picks up what user code put into `agent.messages` by hand.
    """

    def __init__(self, agent: Agent) -> None:
        self.messages: list[Message] = []
        self._tracked: dict[str, int] = {}
        self._agent = weakref.ref(agent)
        self.catch_up()
        agent.add_hook(self._added, MessageAddedEvent)
        agent.add_hook(self._updated, MessageUpdatedEvent)

    def catch_up(self) -> None:
        """Take in messages of `agent.messages` that no event announced."""
        agent = self._agent()
        if agent is not None:
            self._absorb(agent.messages)

    def _added(self, event: MessageAddedEvent[Any]) -> None:
        held = event.agent.messages
        position = next((i for i, m in enumerate(held) if m is event.message), len(held))
        self._absorb(held[:position])
        if event.message.get("tracking_id") not in self._tracked:
            self._append(event.message)

    def _updated(self, event: MessageUpdatedEvent) -> None:
        position = self._tracked.get(event.tracking_id)
        if position is not None:
            self.messages[position] = public(event.message)

    def _absorb(self, messages: Sequence[Any]) -> None:
        unseen: list[Any] = []
        for message in reversed(messages):
            if self._has(message):
                break
            unseen.append(message)
        for message in reversed(unseen):
            self._append(message)

    def _append(self, message: Any) -> None:
        tracking_id = message.get("tracking_id")
        if tracking_id is not None:
            self._tracked[tracking_id] = len(self.messages)
        self.messages.append(public(message))

    def _has(self, message: Any) -> bool:
        """True for a known message; one without a known tracking id is recognised by equality."""
        return message.get("tracking_id") in self._tracked or public(message) in self.messages


_histories: weakref.WeakKeyDictionary[Agent, History] = weakref.WeakKeyDictionary()


class StrandsSampleSource(SampleSource):
    """A Strands agent as a sample: the messages that it held from its registration on."""

    def __init__(self, agent: Agent) -> None:
        self._history = _histories.get(agent) or _histories.setdefault(agent, History(agent))
        self._history.catch_up()
        self._start = len(self._history.messages) - len(agent.messages)

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample, in Strands' message shape without its internal keys."""
        self._history.catch_up()
        messages = copy.deepcopy(self._history.messages[max(self._start, 0) :])
        return RolloutSample(id=sample_id, messages=messages)


def adapt(source: object) -> SampleSource | None:
    """The sample source of a Strands agent, or None for anything else."""
    return StrandsSampleSource(source) if isinstance(source, Agent) else None


def public(message: Any) -> Message:
    """A copy of the message without the keys that Strands keeps for itself."""
    return {key: value for key, value in message.items() if key not in _INTERNAL}
