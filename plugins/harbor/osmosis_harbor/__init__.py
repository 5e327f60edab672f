"""Rollouts in Harbor tasks: a fresh container each, which the agent drives or runs in."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_harbor.backend import HarborBackend
    from osmosis_harbor.environment import HarborAgentWorkflowContext, RolloutEnvironment
    from osmosis_harbor.light import LightEnvironment

__all__ = [
    "HarborAgentWorkflowContext",
    "HarborBackend",
    "LightEnvironment",
    "RolloutEnvironment",
]

_HOMES = {
    "HarborAgentWorkflowContext": "environment",
    "HarborBackend": "backend",
    "LightEnvironment": "light",
    "RolloutEnvironment": "environment",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import Harbor."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
