"""Offers `--backend process`."""

from __future__ import annotations

from typing import Any

from osmosis_core import ExecutionBackend, hookimpl
from osmosis_core.hookspecs import BackendFactory, Register

OSMOSIS_API = 1


@hookimpl
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """Worker processes, started when the first rollout runs."""
    register("process", _create)


def _create(**options: Any) -> ExecutionBackend:
    from osmosis_process.backend import ProcessBackend

    return ProcessBackend(**options)
