"""What this distribution offers to osmosis; LangChain itself is imported only when it is in use."""

from __future__ import annotations

from osmosis_core import hookimpl
from osmosis_core.hookspecs import Framework, RegisterFramework


@hookimpl
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """LangGraph and LangChain agents; LANGSMITH_TRACING_V2 of the user's comes first."""
    register(
        Framework(
            name="langgraph",
            distribution="langgraph",
            versions=">=1.1.5,<2",
            module="osmosis_langgraph",
            conformance="osmosis_langgraph.conformance:LangGraphAdapter",
            quiet_env=(("LANGSMITH_TRACING", "false"),),
        )
    )
