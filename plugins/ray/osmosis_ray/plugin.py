"""What this distribution offers to osmosis; Ray itself is imported when a backend is built."""

from __future__ import annotations

from typing import Any

from osmosis_core import ExecutionBackend, hookimpl
from osmosis_core.hookspecs import BackendFactory, Register


@hookimpl
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """Ray clusters."""
    register("ray", _create)


def _create(**options: Any) -> ExecutionBackend:
    from osmosis_ray import RayBackend

    return RayBackend(**options)
