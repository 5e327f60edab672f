"""An agent loop as a workflow: the one class that every backend runs."""

from __future__ import annotations

from typing import Any

from osmosis_agent_loop.agent_loop import LOCAL_URL, unpacked_tools
from osmosis_agent_loop.client import speak_to_trainer
from osmosis_agent_loop.config import AgentLoopConfig
from osmosis_agent_loop.running import roll_out
from osmosis_agent_loop.schemas import RolloutRequest
from osmosis_agent_loop.settings import get_settings
from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowContext,
    ConfigError,
    WorkflowError,
    get_rollout_context,
)

ASKED = "osmosis_agent_loop"
"""Key of a row's metadata under which a trainer's request travels to where the loop runs."""


class AgentLoopWorkflow(AgentWorkflow[AgentLoopConfig]):
    """Runs the loop of its config; what the loop returns is the sample, an ERROR fails the rollout.

    Raises:
        ConfigError: it is given no `AgentLoopConfig`.
    """

    def __init__(self, config: AgentLoopConfig | None = None) -> None:
        super().__init__(config)
        if not isinstance(config, AgentLoopConfig):
            raise ConfigError("AgentLoopWorkflow needs workflow_config=AgentLoopConfig(loop=...)")

    async def run(self, ctx: AgentWorkflowContext[AgentLoopConfig]) -> None:
        """Run the loop on the row's prompt and metadata, or on what a trainer asked for."""
        config, rollout = ctx.config, get_rollout_context()
        assert config is not None and rollout is not None
        metadata = dict(ctx.metadata or {})
        asked = metadata.pop(ASKED, None)
        settings = config.settings or get_settings()
        tools, rollout.retry = None, settings.client.retry
        if asked is not None:
            tools = unpacked_tools(asked.pop("tools"))
            speak_to_trainer(rollout, settings.client)
        fields: dict[str, Any] = {
            "server_url": LOCAL_URL,
            "tool_server_url": None,
            "max_turns": config.max_turns,
            "max_tokens_total": config.max_tokens_total,
            "completion_params": config.completion_params,
        }
        fields |= {
            **(asked or {}),
            "rollout_id": rollout.rollout_id,
            "messages": ctx.prompt,
            "metadata": metadata,
            "api_key": rollout.api_key if asked is not None else None,
            "idempotency_key": None,
        }
        request = RolloutRequest.model_construct(None, **fields)
        result = await roll_out(
            config.agent_loop,
            request,
            settings=settings,
            debug_dir=config.debug_dir,
            tools=tools,
        )
        if result.is_error:
            raise WorkflowError(result.error_message or "unknown error")
