"""What this distribution offers to osmosis; the framework is imported only when it is in use."""

import sys

from osmosis_core import SampleSource, hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework

OSMOSIS_API = 1


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """Describe the framework, its distribution and the versions that are tested."""
    fixtures = "osmosis_acme.conformance:AcmeAdapter"
    register(Framework("acme", "osmosis-acme", ">=0.1,<1", "osmosis_acme.adapter", fixtures))


@hookimpl
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:
    """Make an agent of the framework readable as a sample."""
    if "osmosis_acme.loop" not in sys.modules:
        return None
    from osmosis_acme.adapter import AcmeSource
    from osmosis_acme.loop import Agent

    return AcmeSource(source) if isinstance(source, Agent) else None
