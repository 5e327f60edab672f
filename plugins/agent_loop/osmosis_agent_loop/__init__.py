"""Agent loops written by hand: RolloutAgentLoop, its tools, settings, protocol and commands."""

# fmt: off
# isort: off
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_agent_loop.agent_loop import RolloutAgentLoop
    from osmosis_agent_loop.client import CompletionsResult, LLMClientProtocol
    from osmosis_agent_loop.config import AgentLoopConfig
    from osmosis_agent_loop.context import RolloutContext, RolloutResult
    from osmosis_agent_loop.errors import (
        AgentLoopError, AgentLoopNotFoundError, AgentLoopValidationError,
        OsmosisRolloutError, OsmosisServerError, OsmosisTimeoutError, OsmosisTransportError,
        OsmosisValidationError, ToolArgumentError, ToolExecutionError,
    )
    from osmosis_agent_loop.llm_client import OsmosisLLMClient
    from osmosis_agent_loop.registry import (
        AgentLoopRegistry, get_agent_loop, list_agent_loops, register_agent_loop,
        unregister_agent_loop,
    )
    from osmosis_agent_loop.rewards import osmosis_reward, osmosis_rubric
    from osmosis_agent_loop.rubric import (
        MissingAPIKeyError, ModelNotFoundError, ProviderRequestError, evaluate_rubric,
    )
    from osmosis_agent_loop.running import run_agent_loop
    from osmosis_agent_loop.schemas import (
        InitResponse, OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest,
        RolloutResponse, RolloutStatus,
    )
    from osmosis_agent_loop.server import (
        DEFAULT_HOST, DEFAULT_PORT, create_app, serve_agent_loop, validate_and_report,
    )
    from osmosis_agent_loop.settings import (
        RolloutClientSettings, RolloutServerSettings, RolloutSettings, configure,
        get_settings, reset_settings,
    )
    from osmosis_agent_loop.target import agent_loop_program
    from osmosis_agent_loop.tools import (
        create_tool_error_result, create_tool_result, execute_tool_calls,
        get_tool_call_info, parse_tool_arguments, serialize_tool_result,
    )
    from osmosis_agent_loop.validator import ValidationError, ValidationResult, validate_agent_loop
    from osmosis_agent_loop.workflow import AgentLoopWorkflow

__all__ = [
    "DEFAULT_HOST", "DEFAULT_PORT", "AgentLoopConfig", "AgentLoopError",
    "AgentLoopNotFoundError", "AgentLoopRegistry", "AgentLoopValidationError",
    "AgentLoopWorkflow", "CompletionsResult", "InitResponse", "LLMClientProtocol",
    "MissingAPIKeyError", "ModelNotFoundError", "OpenAIFunctionToolSchema", "OsmosisLLMClient",
    "OsmosisRolloutError", "OsmosisServerError", "OsmosisTimeoutError", "OsmosisTransportError",
    "OsmosisValidationError", "ProviderRequestError", "RolloutAgentLoop",
    "RolloutClientSettings", "RolloutContext", "RolloutMetrics", "RolloutRequest",
    "RolloutResponse", "RolloutResult", "RolloutServerSettings", "RolloutSettings",
    "RolloutStatus", "ToolArgumentError", "ToolExecutionError", "ValidationError",
    "ValidationResult", "agent_loop_program", "configure", "create_app",
    "create_tool_error_result", "create_tool_result", "evaluate_rubric", "execute_tool_calls",
    "get_agent_loop", "get_settings", "get_tool_call_info", "list_agent_loops",
    "osmosis_reward", "osmosis_rubric", "parse_tool_arguments", "register_agent_loop",
    "reset_settings", "run_agent_loop", "serialize_tool_result", "serve_agent_loop",
    "unregister_agent_loop", "validate_agent_loop", "validate_and_report",
]

_NAMES = {
    "agent_loop": "RolloutAgentLoop",
    "client": "CompletionsResult LLMClientProtocol",
    "config": "AgentLoopConfig",
    "context": "RolloutContext RolloutResult",
    "errors": "AgentLoopError AgentLoopNotFoundError AgentLoopValidationError "
    "OsmosisRolloutError OsmosisServerError OsmosisTimeoutError OsmosisTransportError "
    "OsmosisValidationError ToolArgumentError ToolExecutionError",
    "llm_client": "OsmosisLLMClient",
    "registry": "AgentLoopRegistry get_agent_loop list_agent_loops register_agent_loop "
    "unregister_agent_loop",
    "rewards": "osmosis_reward osmosis_rubric",
    "rubric": "MissingAPIKeyError ModelNotFoundError ProviderRequestError evaluate_rubric",
    "running": "run_agent_loop",
    "schemas": "InitResponse OpenAIFunctionToolSchema RolloutMetrics RolloutRequest "
    "RolloutResponse RolloutStatus",
    "server": "DEFAULT_HOST DEFAULT_PORT create_app serve_agent_loop validate_and_report",
    "settings": "RolloutClientSettings RolloutServerSettings RolloutSettings configure "
    "get_settings reset_settings",
    "target": "agent_loop_program",
    "tools": "create_tool_error_result create_tool_result execute_tool_calls "
    "get_tool_call_info parse_tool_arguments serialize_tool_result",
    "validator": "ValidationError ValidationResult validate_agent_loop",
    "workflow": "AgentLoopWorkflow",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
# isort: on
# fmt: on


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: finding plugins must import nothing heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
