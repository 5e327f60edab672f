"""The complete native history of an agent, whatever session it has or has not."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import copy
import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agents import Agent

from osmosis_core import Message, RolloutContext, RolloutSample, SampleSource, get_rollout_context
from osmosis_openai_agents.runs import Run


class AgentHistory(SampleSource):
    """Every item that an agent of one rollout was shown or said, once, in the SDK's item shape.

    The model notes what it is asked and what it answers, so a session is not needed, a turn that
    makes the run fail is kept, and what filters take away later is kept too.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        self.messages: list[Message] = []
        self._agent = agent
        self._answers: set[str] = set()
        self._told: dict[Run, Counter[str]] = {}

    def asked(self, run: Run, items: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
        """Take in the items of a request that were not told in this run, as often as they occur.

        A run whose request holds an answer of the agent goes on with the run that had it last.
        Returns what takes in the items of the answer.
        """
        if run not in self._told:
            ours = self._answers.intersection(map(_key, items))
            earlier = (told for told in reversed([*self._told.values()]) if ours & told.keys())
            self._told[run] = Counter(next(earlier, None))
        known = self._told[run].copy()
        for item in items:
            known[key := _key(item)] -= 1
            if known[key] < 0:
                self._tell(run, item, key)

        def answered(output: Sequence[Any]) -> None:
            for item in output:
                said: Message = item.model_dump(exclude_unset=True)
                self._answers.add(key := _key(said))
                self._tell(run, said, key)

        return answered

    def _tell(self, run: Run, item: Any, key: str) -> None:
        self.messages.append(copy.deepcopy(item))
        self._told[run][key] += 1

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample, with the results of tools after which the model was not called again."""
        for run in list(self._told):  # other threads may begin runs
            mine = [i for i in getattr(run.outcome, "new_items", ()) if i.agent is self._agent]
            self.asked(run, [i.to_input_item() for i in mine if i.type.endswith("output_item")])
        return RolloutSample(id=sample_id, messages=copy.deepcopy(self.messages))


_histories: weakref.WeakKeyDictionary[RolloutContext, Any] = weakref.WeakKeyDictionary()


def history_of(agent: Agent[Any], rollout: RolloutContext) -> AgentHistory:
    """The history of an agent in a rollout, which holds it; it holds the agent."""
    histories = _histories.setdefault(rollout, weakref.WeakValueDictionary())
    return histories.get(id(agent)) or histories.setdefault(id(agent), AgentHistory(agent))


def adapt(source: object) -> SampleSource | None:
    """The sample source of an agent in the active rollout, or None for anything else."""
    rollout = get_rollout_context()
    return history_of(source, rollout) if rollout and isinstance(source, Agent) else None


def _key(item: Any) -> str:
    """What makes an item that item: sessions and filters drop or change the rest."""
    kept = {name: value for name, value in item.items() if value and name not in ("id", "status")}
    return json.dumps(kept, sort_keys=True, default=str)
