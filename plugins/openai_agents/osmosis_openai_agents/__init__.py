"""OpenAI Agents SDK workflows as osmosis rollouts: change the import, keep the agents."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_openai_agents.agent import OsmosisAgent, OsmosisMemorySession
    from osmosis_openai_agents.model import OsmosisModelProvider, OsmosisRolloutModel

__all__ = ["OsmosisAgent", "OsmosisMemorySession", "OsmosisModelProvider", "OsmosisRolloutModel"]

_HOMES = {
    "OsmosisAgent": "agent",
    "OsmosisMemorySession": "agent",
    "OsmosisModelProvider": "model",
    "OsmosisRolloutModel": "model",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import the SDK."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
