"""Rollouts on the workers of a Ray cluster."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ray.backend import RayBackend

__all__ = ["RayBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: finding plugins must not import Ray."""
    if name != "RayBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ray.backend import RayBackend

    return RayBackend
