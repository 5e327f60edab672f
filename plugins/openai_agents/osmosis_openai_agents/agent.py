"""The documented names: an agent and a session that live in a rollout."""

# pyright: reportUnknownMemberType=false

import copy
import uuid
from typing import Any

from agents import Agent, TContext
from agents.memory import SessionABC

from osmosis_core import NoActiveRolloutError, get_rollout_context
from osmosis_openai_agents.model import OsmosisRolloutModel


class OsmosisAgent(Agent[TContext]):
    """`agents.Agent` on the policy, unless it is given another model; takes the same arguments.

    It becomes a sample of the active rollout when it first calls the policy, under its name; one
    that is taken gets `-2`. `clone()` gives an agent of its own.

    Raises:
        NoActiveRolloutError: built with an Osmosis model outside a rollout.
    """

    def __post_init__(self) -> None:
        self.model = self.model or OsmosisRolloutModel()
        if isinstance(self.model, OsmosisRolloutModel) and get_rollout_context() is None:
            raise NoActiveRolloutError(type(self).__name__)
        super().__post_init__()


class OsmosisMemorySession(SessionABC):
    """A conversation in memory, for `Runner.run(..., session=...)`; any other session works too.

    It holds what agents are given and say across runs. The sample does not hinge on it, and is
    called after the agent.

    Raises:
        NoActiveRolloutError: built outside a rollout.
    """

    def __init__(self, name: str | None = None) -> None:
        if get_rollout_context() is None:
            raise NoActiveRolloutError(type(self).__name__)
        self.session_id = self.name = name or uuid.uuid4().hex
        self._items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """A copy of the items; with a limit, of the latest so many."""
        return copy.deepcopy(self._items[-limit:] if limit else [] if limit == 0 else self._items)

    async def add_items(self, items: list[Any]) -> None:
        """Append copies of the items."""
        self._items += copy.deepcopy(items)

    async def pop_item(self) -> Any:
        """Remove and return the latest item; None when there is none."""
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        """Forget all items."""
        self._items.clear()
