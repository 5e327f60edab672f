"""The kernel of osmosis: rollouts, samples, graders, backends and plugins for RL on LLM agents."""

# fmt: off
# isort: off
from typing import TYPE_CHECKING, Any

from osmosis_core.active import get_rollout_context
from osmosis_core.backend import ConcurrencyLimiter, ExecutionBackend, ResultCallback
from osmosis_core.backends.local import LocalBackend
from osmosis_core.config import (
    AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig, RetryPolicy, WireOptions,
)
from osmosis_core.context import RolloutContext, SampleSource
from osmosis_core.errors import (
    BackendError, ConfigError, GraderError, NoActiveRolloutError, OsmosisError, PluginError,
    PolicyError, PolicyNotBoundError, RolloutError, SampleError, WorkflowError,
)
from osmosis_core.grader import Grader, GraderContext
from osmosis_core.types import (
    AgentRun, AgentWorkflowOutput, ExecutionRequest, ExecutionResult, Message, PolicyCall,
    RolloutErrorCategory, RolloutSample, RolloutStatus,
)
from osmosis_core.workflow import AgentWorkflow, AgentWorkflowContext

if TYPE_CHECKING:
    from osmosis_core.hookspecs import hookimpl

__all__ = [
    "AgentRun", "AgentWorkflow", "AgentWorkflowConfig", "AgentWorkflowContext",
    "AgentWorkflowOutput", "BackendError", "BaseConfig", "ConcurrencyConfig",
    "ConcurrencyLimiter", "ConfigError", "ExecutionBackend", "ExecutionRequest",
    "ExecutionResult", "Grader", "GraderConfig", "GraderContext", "GraderError", "LocalBackend",
    "Message", "NoActiveRolloutError", "OsmosisError", "PluginError", "PolicyCall",
    "PolicyError", "PolicyNotBoundError", "ResultCallback", "RetryPolicy", "RolloutContext",
    "RolloutError", "RolloutErrorCategory", "RolloutSample", "RolloutStatus", "SampleError",
    "SampleSource", "WireOptions", "WorkflowError", "get_rollout_context", "hookimpl",
]
# fmt: on
# isort: on


def __getattr__(name: str) -> Any:
    """`hookimpl` when it is asked for: only plugins need pluggy, and it is slow to import."""
    if name == "hookimpl":
        from osmosis_core.hookspecs import hookimpl

        return hookimpl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
