"""Rollouts on the workers of a Ray cluster."""

import importlib.util
from typing import TYPE_CHECKING, Any

from osmosis_core import ConfigError

if TYPE_CHECKING:
    from osmosis_ray.backend import RayBackend

__all__ = ["RayBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: finding plugins must not import Ray."""
    if name != "RayBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "the backend 'ray' needs Ray, which is not installed: pip install 'ray>=2.55,<3', on a "
            "Python that it has wheels for"
        )
    from osmosis_ray.backend import RayBackend

    return RayBackend
