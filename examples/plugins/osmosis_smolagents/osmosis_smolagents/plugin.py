"""What this distribution offers to osmosis."""

import sys

from osmosis_core import SampleSource, hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework

OSMOSIS_API = 1


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """Smolagents."""
    adapter, fixtures = "osmosis_smolagents.adapter", "osmosis_smolagents.conformance:Fixtures"
    register(Framework("smolagents", "smolagents", ">=1.26,<2", adapter, fixtures))


@hookimpl
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:
    """Any agent of smolagents can be read as a sample."""
    if "smolagents" not in sys.modules:
        return None
    from osmosis_smolagents.adapter import adapt

    return adapt(source)
