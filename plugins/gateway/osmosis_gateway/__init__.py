"""An OpenAI- and Anthropic-compatible endpoint in front of a policy, for what takes no client."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_gateway.admission import Admit, Caller, InFlight, Refusal, by_headers
    from osmosis_gateway.app import create_app
    from osmosis_gateway.gateway import Endpoint, Gateway
    from osmosis_gateway.litellm import litellm_policy

__all__ = [
    "Admit",
    "Caller",
    "Endpoint",
    "Gateway",
    "InFlight",
    "Refusal",
    "by_headers",
    "create_app",
    "litellm_policy",
]

_HOMES = {
    "Admit": "admission",
    "Caller": "admission",
    "Endpoint": "gateway",
    "Gateway": "gateway",
    "InFlight": "admission",
    "Refusal": "admission",
    "by_headers": "admission",
    "create_app": "app",
    "litellm_policy": "litellm",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import a web server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
