"""Policies, fakes and conformance suites for tests: our own, plugin authors' and users'."""

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
