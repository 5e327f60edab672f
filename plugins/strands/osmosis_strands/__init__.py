"""Strands agents as osmosis rollouts: change the import, keep the agent."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_strands.agent import OsmosisStrandsAgent
    from osmosis_strands.history import StrandsSampleSource
    from osmosis_strands.litellm import LiteLLMRolloutModel as LiteLLMRolloutModel
    from osmosis_strands.model import OsmosisRolloutModel
    from osmosis_strands.prompts import strands_prompt

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent", "StrandsSampleSource", "strands_prompt"]

_HOMES = {
    "LiteLLMRolloutModel": "litellm",  # not in __all__: it needs the extra of that name
    "OsmosisRolloutModel": "model",
    "OsmosisStrandsAgent": "agent",
    "StrandsSampleSource": "history",
    "strands_prompt": "prompts",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import Strands."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
