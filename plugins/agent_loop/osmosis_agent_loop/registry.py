"""Agent loops by name."""

from __future__ import annotations

import threading

from osmosis_agent_loop.agent_loop import RolloutAgentLoop
from osmosis_agent_loop.errors import AgentLoopNotFoundError


class AgentLoopRegistry:
    """Agent loops by name; may be used from any thread."""

    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}
        self._lock = threading.Lock()

    def register(self, agent_loop: RolloutAgentLoop) -> None:
        """Add a loop; raises ValueError when its name is taken."""
        with self._lock:
            if agent_loop.name in self._loops:
                raise ValueError(f"agent loop {agent_loop.name!r} is registered; unregister it")
            self._loops[agent_loop.name] = agent_loop

    def unregister(self, name: str) -> bool:
        """Remove a loop; False when there was none."""
        with self._lock:
            return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """A loop, or None."""
        with self._lock:
            return self._loops.get(name)

    def list_names(self) -> list[str]:
        """The names, in the order in which they came."""
        with self._lock:
            return list(self._loops)

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._loops.clear()


_registry = AgentLoopRegistry()


def register_agent_loop(agent_loop: RolloutAgentLoop) -> None:
    """Add a loop to the process's registry; raises ValueError when its name is taken."""
    _registry.register(agent_loop)


def unregister_agent_loop(name: str) -> bool:
    """Remove a loop from the process's registry; False when there was none."""
    return _registry.unregister(name)


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """A loop of the process's registry.

    Raises:
        AgentLoopNotFoundError: there is none of that name.
    """
    found = _registry.get(name)
    if found is None:
        raise AgentLoopNotFoundError(name, _registry.list_names())
    return found


def list_agent_loops() -> list[str]:
    """Names in the process's registry."""
    return _registry.list_names()
