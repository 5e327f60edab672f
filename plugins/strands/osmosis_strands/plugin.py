"""What this distribution offers to osmosis; Strands itself is imported only when it is in use."""

from __future__ import annotations

import sys

from osmosis_core import SampleSource, hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """Strands Agents."""
    register(
        Framework(
            name="strands",
            distribution="strands-agents",
            versions=">=1.62,<2",
            module="osmosis_strands",
            conformance="osmosis_strands.conformance:StrandsAdapter",
        )
    )


@hookimpl
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:
    """Any Strands agent can be read as a sample."""
    if "strands" not in sys.modules:
        return None
    from osmosis_strands.history import adapt

    return adapt(source)
