"""LangChain and LangGraph agents as osmosis rollouts: swap the model, keep the graph."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_langgraph.model import ChatOsmosis, OsmosisRolloutModel

__all__ = ["ChatOsmosis", "OsmosisRolloutModel"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import LangChain."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.model"), name)
