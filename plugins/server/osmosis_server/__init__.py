"""The rollout server: published protocols over durable results, as an application or a command."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_server.app import create_rollout_server
    from osmosis_server.protocols.base import Protocol
    from osmosis_server.service import RolloutService
    from osmosis_server.settings import ServerSettings
    from osmosis_server.submissions import Delivery, Submission

__all__ = [
    "Delivery",
    "Protocol",
    "RolloutService",
    "ServerSettings",
    "Submission",
    "create_rollout_server",
]

_HOMES = {
    "Delivery": "submissions",
    "Protocol": "protocols.base",
    "RolloutService": "service",
    "ServerSettings": "settings",
    "Submission": "submissions",
    "create_rollout_server": "app",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must not import a web server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
