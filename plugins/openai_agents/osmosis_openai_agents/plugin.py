"""What this distribution offers to osmosis; the SDK itself is imported only when it is in use."""

import sys

from osmosis_core import SampleSource, hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """OpenAI Agents SDK."""
    register(
        Framework(
            name="openai-agents",
            distribution="openai-agents",
            versions=">=0.20,<0.25",
            module="osmosis_openai_agents",
            conformance="osmosis_openai_agents.conformance:OpenAIAgentsAdapter",
            quiet_env=(("OPENAI_AGENTS_DISABLE_TRACING", "1"),),
        )
    )


@hookimpl
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:
    """Any agent of the SDK can be read as a sample."""
    if "agents" not in sys.modules:
        return None
    from osmosis_openai_agents.history import adapt

    return adapt(source)
