"""A calculator written by hand: the loop, its tools and its reward, served with `osmosis serve`."""

from __future__ import annotations

import time

from osmosis_agent_loop import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult
from osmosis_agent_loop.tools import execute_tool_calls
from rewards import reward_of
from tools import TOOLS, execute_tool


class CalculatorAgent(RolloutAgentLoop):
    """Asks the policy, runs the tools that it calls, and asks again."""

    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> list:
        """The same tools for every rollout."""
        return TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Go on until an answer calls no tool."""
        messages, tokens = list(ctx.request.messages), 0
        finish_reason = "max_turns"
        for turn in range(ctx.request.max_turns):
            ctx.log_event("pre_llm", turn=turn, num_messages=len(messages))
            result = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(result.message)
            tokens += result.usage.get("completion_tokens", 0)
            if tokens >= ctx.request.max_tokens_total:
                finish_reason = "max_tokens"
                break
            if not result.has_tool_calls:
                finish_reason = result.finish_reason
                break
            began = time.monotonic()
            messages.extend(await execute_tool_calls(result.tool_calls, execute_tool))
            ctx.log_event("tools_executed", turn=turn, seconds=time.monotonic() - began)
        reward = reward_of(messages, ctx.request.metadata.get("ground_truth"))
        return ctx.complete(messages, finish_reason=finish_reason, reward=reward)


agent_loop = CalculatorAgent()
