"""The complete native history of an agent, whatever session it has or has not."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Sequence
from typing import Any

from agents import Agent
from agents.items import HandoffOutputItem, ToolCallOutputItem

from osmosis_core import Message, RolloutContext, RolloutSample, SampleSource, get_rollout_context
from osmosis_openai_agents.runs import Run

_INCIDENTAL = ("id", "status")


class AgentHistory(SampleSource):
    """Every item that an agent of one rollout was shown or said, once, in the SDK's item shape.

    The model notes what it is asked and what it answers, so a session is not needed, a turn that
    makes the run fail is kept, and what filters take away later is kept too.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        self.messages: list[Message] = []
        self._agent = agent
        self._keys: list[str] = []
        self._conversations: dict[Run, list[int]] = {}

    def asked(self, run: Run, items: Sequence[Any]) -> None:
        """Take in the items of a request; those that the conversation has are not new."""
        held = self._conversations.get(run)
        if held is None:
            held = self._continued([_key(item) for item in items])
        at, conversation = 0, list[int]()
        for item in items:
            found = self._find(item, held, at)
            at = at if found is None else found + 1
            conversation.append(self._append(item) if found is None else held[found])
        self._conversations[run] = conversation

    def answered(self, run: Run, output: Sequence[Any]) -> None:
        """Take in the items of an answer."""
        for item in output:
            said: Message = item.model_dump(exclude_unset=True)
            self._conversations[run].append(self._append(said))

    def _find(self, item: Any, held: list[int], at: int) -> int | None:
        """Where the conversation has the item, from `at` on; in most cases there."""
        if at < len(held) and self.messages[held[at]] == item:
            return at
        key = _key(item) if at < len(held) else ""
        return next((i for i in range(at, len(held)) if self._keys[held[i]] == key), None)

    def _continued(self, keys: list[str]) -> list[int]:
        """The conversation that a new run goes on with: the request begins with its end."""
        for conversation in reversed(self._conversations.values()):
            told = [self._keys[position] for position in conversation]
            starts = [start for start, key in enumerate(told) if [key] == keys[:1]]
            if any(told[start:] == keys[: len(told) - start] for start in starts):
                return conversation
        return []

    def _append(self, item: Any) -> int:
        self.messages.append(copy.deepcopy(item))
        self._keys.append(_key(item))
        return len(self.messages) - 1

    def _catch_up(self) -> None:
        """Take in the results of tools after which the model was not called again."""
        known = {message.get("call_id") for message in self.messages if "output" in message}
        for run in self._conversations:
            for item in getattr(run.outcome, "new_items", ()):
                is_result = isinstance(item, ToolCallOutputItem | HandoffOutputItem)
                if is_result and item.agent is self._agent:
                    result: Any = item.to_input_item()
                    if result.get("call_id") not in known:
                        self._append(result)

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample."""
        self._catch_up()
        return RolloutSample(id=sample_id, messages=copy.deepcopy(self.messages))


_histories: weakref.WeakKeyDictionary[RolloutContext, dict[int, AgentHistory]] = (
    weakref.WeakKeyDictionary()
)


def history_of(agent: Agent[Any], rollout: RolloutContext) -> AgentHistory:
    """The history of an agent in a rollout; it holds the agent, so the key stays its own."""
    histories = _histories.setdefault(rollout, {})
    return histories.get(id(agent)) or histories.setdefault(id(agent), AgentHistory(agent))


def adapt(source: object) -> SampleSource | None:
    """The sample source of an agent in the active rollout, or None for anything else."""
    if not isinstance(source, Agent):
        return None
    rollout = get_rollout_context()
    return AgentHistory(source) if rollout is None else history_of(source, rollout)


def _key(item: Any) -> str:
    """What makes an item that item: sessions and filters change or drop the rest."""
    return json.dumps(_told(item, _INCIDENTAL), sort_keys=True, default=str)


def _told(value: Any, dropped: tuple[str, ...] = ()) -> Any:
    if isinstance(value, dict):
        kept = {key: _told(item) for key, item in value.items() if key not in dropped}
        return {key: item for key, item in kept.items() if item not in (None, [])}
    return [_told(item) for item in value] if isinstance(value, list) else value
