"""Osmosis rollouts in worker processes: blocking code, crashes and leaks stay there."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_process.backend import ProcessBackend

__all__ = ["ProcessBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: finding plugins must cost nothing."""
    if name != "ProcessBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_process.backend import ProcessBackend

    return ProcessBackend
