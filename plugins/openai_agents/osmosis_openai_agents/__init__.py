"""OpenAI Agents SDK workflows as osmosis rollouts: change the import, keep the agents."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_openai_agents.agent import OsmosisAgent, OsmosisMemorySession
    from osmosis_openai_agents.model import OsmosisModelProvider, OsmosisRolloutModel

__all__ = ["OsmosisAgent", "OsmosisMemorySession", "OsmosisModelProvider", "OsmosisRolloutModel"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import the SDK."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "agent" if name in ("OsmosisAgent", "OsmosisMemorySession") else "model"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
