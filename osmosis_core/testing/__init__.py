"""Policies, fakes and conformance suites for tests: our own, plugin authors' and users'."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_core.testing.adapter_conformance import AdapterConformance, AdapterFixtures
    from osmosis_core.testing.backend_conformance import BackendConformance
    from osmosis_core.testing.demo import DemoPolicy
    from osmosis_core.testing.scripted import (
        Cut,
        Delay,
        Endless,
        Malformed,
        Say,
        ScriptedPolicy,
        Status,
        Tool,
        Turn,
        Web,
    )

__all__ = [
    "AdapterConformance",
    "AdapterFixtures",
    "BackendConformance",
    "Cut",
    "Delay",
    "DemoPolicy",
    "Endless",
    "Malformed",
    "Say",
    "ScriptedPolicy",
    "Status",
    "Tool",
    "Turn",
    "Web",
]

_HOMES = {
    "AdapterConformance": "adapter_conformance",
    "AdapterFixtures": "adapter_conformance",
    "BackendConformance": "backend_conformance",
    "DemoPolicy": "demo",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: workers that run a suite's programs need none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'scripted')}"), name)
