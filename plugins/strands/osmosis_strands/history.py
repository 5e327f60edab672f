"""The complete native history of a Strands agent, although Strands trims and resets its own."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

from strands import Agent
from strands.hooks import MessageAddedEvent, MessageUpdatedEvent
from strands.types.session import encode_bytes_values

from osmosis_core import (
    Message,
    RolloutContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)

_INTERNAL = ("tracking_id", "metadata")


class History:
    """Every message that an agent ever held, in the order in which it came to hold them.

    Conversation managers, graphs and agents-as-tools replace `agent.messages`; this listens to
    the agent's own events instead, and picks up what managers and user code put into
    `agent.messages` by hand.
    """

    def __init__(self, agent: Agent) -> None:
        self.messages: list[Message] = []
        self._rollouts: list[weakref.ref[RolloutContext] | None] = []
        self._tracked: dict[str, int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}
        self._first: list[Message] = []
        self._agent = weakref.ref(agent)
        self.catch_up()
        self._first = list(self.messages)
        agent.add_hook(self._added, MessageAddedEvent)
        agent.add_hook(self._updated, MessageUpdatedEvent)

    @classmethod
    def of(cls, agent: Agent) -> History:
        """The agent's one history; it begins when it is first asked for."""
        return _histories.get(agent) or _histories.setdefault(agent, cls(agent))

    def catch_up(self) -> None:
        """Take in messages of `agent.messages` that no event announced."""
        agent = self._agent()
        if agent is not None:
            self._absorb(agent.messages)

    def keep_aside(self, messages: Sequence[Any]) -> None:
        """Take in an exchange that Strands itself does not keep."""
        self._absorb(messages[:-1])
        self._append(messages[-1])

    def of_rollout(self, start: int, held: int, rollout: RolloutContext | None) -> list[Message]:
        """The messages from `start`: up to `held` all of them, then those of the rollout."""
        return [
            message
            for index, message in enumerate(self.messages)
            if index >= start and (index < held or self._is_of(index, rollout))
        ]

    def _is_of(self, index: int, rollout: RolloutContext | None) -> bool:
        owner = self._rollouts[index]
        return owner is None or rollout is None or owner() is rollout

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
        for position, message in enumerate(messages):
            known = self._known(message, position)
            if known is None:
                self._append(message)
            else:
                self._track(message, known)

    def _append(self, message: Any) -> None:
        self._track(message, len(self.messages))
        self.messages.append(public(message))
        self._rollouts.append(_weak(get_rollout_context()))

    def _track(self, message: Any, position: int) -> None:
        self._seen[id(message)] = (message, position)
        tracking_id = message.get("tracking_id")
        if tracking_id is not None:
            self._tracked[tracking_id] = position

    def _known(self, message: Any, position: int) -> int | None:
        """Where a message is in the history: known by its tracking id, as the same object, or as
        a copy of what the agent began with, to which graphs and tools reset it."""
        known = self._tracked.get(message.get("tracking_id"))
        if known is None and id(message) in self._seen:
            known = self._seen[id(message)][1]
        if known is None and self._first[position : position + 1] == [public(message)]:
            known = position
        return known


_histories: weakref.WeakKeyDictionary[Agent, History] = weakref.WeakKeyDictionary()


class StrandsSampleSource(SampleSource):
    """A Strands agent as a sample: what it held when it was registered, and what came to it since.

    An agent that serves several rollouts is a sample of each, with that rollout's messages.
    """

    def __init__(self, agent: Agent) -> None:
        self._history = History.of(agent)
        self._history.catch_up()
        self._rollout = _weak(get_rollout_context())
        self._held = len(self._history.messages)
        self._start = max(self._held - len(agent.messages), 0)

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample, in Strands' message shape without its internal keys; bytes are written as
        in Strands' session files."""
        self._history.catch_up()
        rollout = self._rollout() if self._rollout else None
        messages = self._history.of_rollout(self._start, self._held, rollout)
        return RolloutSample(id=sample_id, messages=encode_bytes_values(copy.deepcopy(messages)))


def _weak(rollout: RolloutContext | None) -> weakref.ref[RolloutContext] | None:
    return None if rollout is None else weakref.ref(rollout)


def adapt(source: object) -> SampleSource | None:
    """The sample source of a Strands agent, or None for anything else."""
    return StrandsSampleSource(source) if isinstance(source, Agent) else None


def public(message: Any) -> Message:
    """A copy of the message without the keys that Strands keeps for itself."""
    return {key: value for key, value in message.items() if key not in _INTERNAL}
