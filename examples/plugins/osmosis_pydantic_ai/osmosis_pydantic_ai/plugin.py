"""What this distribution offers to osmosis."""

import sys

from osmosis_core import SampleSource, hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework

OSMOSIS_API = 1


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """Pydantic AI."""
    adapter, fixtures = "osmosis_pydantic_ai.adapter", "osmosis_pydantic_ai.conformance:Fixtures"
    register(Framework("pydantic_ai", "pydantic-ai-slim", ">=2.68,<3", adapter, fixtures))


@hookimpl
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:
    """Any Pydantic AI agent can be read as a sample."""
    if "pydantic_ai" not in sys.modules:
        return None
    from osmosis_pydantic_ai.adapter import adapt

    return adapt(source)
