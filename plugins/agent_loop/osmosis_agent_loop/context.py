"""What a loop's `run` is given, and what it returns."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat, cast

from osmosis_agent_loop.client import CompletionsResult, LLMClientProtocol
from osmosis_agent_loop.debug import write_event
from osmosis_agent_loop.schemas import MessageDict, RolloutMetrics, RolloutRequest, RolloutStatus


@dataclass
class RolloutResult:
    """How a rollout ended; made by `ctx.complete` and `ctx.error`.

    Raises:
        ValueError: the status is none, or the reward is not a finite number.
    """

    status: RolloutStatus | str
    final_messages: list[MessageDict] = field(default_factory=list[MessageDict])
    finish_reason: str = "stop"
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None

    def __post_init__(self) -> None:
        self.status = RolloutStatus(self.status)
        self.reward = None if self.reward is None else _finite(self.reward)

    @property
    def is_error(self) -> bool:
        """True when the rollout failed."""
        return self.status == RolloutStatus.ERROR


@dataclass
class RolloutContext:
    """One rollout of a loop: the request, the tools, and the road to the policy."""

    request: RolloutRequest
    tools: list[Any]
    """What `get_tools` returned."""
    llm: LLMClientProtocol
    _start_time: float = 0.0
    """`time.monotonic()`; 0 stands for now."""
    _tool_latency_ms: float = 0.0
    _num_tool_calls: int = 0
    _debug_dir: str | Path | None = None
    _executed: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self._start_time = self._start_time or time.monotonic()

    async def chat(
        self, messages: list[MessageDict] | None = None, /, **kwargs: Any
    ) -> CompletionsResult:
        """Ask the policy for the next message; `kwargs` are sampling parameters.

        Give the whole conversation each time, and only ever append to it. Each call is tried as
        often as the settings say.

        Raises:
            OsmosisValidationError: the request cannot be sent, or was refused.
            OsmosisServerError, OsmosisTimeoutError, OsmosisTransportError: no answer in all tries.
        """
        given: Any = kwargs.pop("messages", None) if messages is None else messages
        if not isinstance(given, list):
            raise TypeError(f"ctx.chat() was given {type(given).__name__}; give a list of messages")
        return await self.llm.chat_completions(cast("list[MessageDict]", given), **kwargs)

    def complete(
        self,
        messages: list[MessageDict] | None = None,
        finish_reason: str = "stop",
        reward: SupportsFloat | None = None,
        *,
        final_messages: list[MessageDict] | None = None,
    ) -> RolloutResult:
        """The result of a rollout that went well; raises ValueError for a reward such as NaN."""
        final = messages if messages is not None else final_messages or []
        number = None if reward is None else _finite(reward)
        return RolloutResult(
            RolloutStatus.COMPLETED, final, finish_reason, None, self._metrics(), number
        )

    def error(
        self,
        message: str | None = None,
        final_messages: list[MessageDict] | None = None,
        *,
        error_message: str | None = None,
    ) -> RolloutResult:
        """The result of a rollout that failed, and why."""
        text = message if message is not None else error_message
        final = final_messages or []
        return RolloutResult(
            RolloutStatus.ERROR, final, "error", text or "unknown error", self._metrics()
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Count a tool call that took so many milliseconds."""
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    @property
    def debug_enabled(self) -> bool:
        """True when `log_event` writes."""
        return self._debug_dir is not None

    def log_event(self, event_name: str | None = None, **data: Any) -> None:
        """Write an event to the rollout's debug log; does nothing without one."""
        name = event_name if event_name is not None else data.pop("event_type", "event")
        if self._debug_dir is not None:
            write_event(Path(self._debug_dir), self.request.rollout_id, name, data)

    def count_executed(self, calls: int, latency_ms: float) -> None:
        """Take note of tool calls that `execute_tool_calls` ran."""
        self._executed = self._executed[0] + calls, self._executed[1] + latency_ms

    def _metrics(self) -> RolloutMetrics:
        recorded = self._num_tool_calls, self._tool_latency_ms
        calls, latency_ms = recorded if self._num_tool_calls else self._executed
        metrics = self.llm.get_metrics().model_copy()
        metrics.total_latency_ms = (time.monotonic() - self._start_time) * 1000
        metrics.num_tool_calls, metrics.tool_latency_ms = calls, latency_ms
        return metrics


def _finite(reward: Any) -> float:
    is_number = hasattr(reward, "__float__") and not isinstance(reward, bool)
    try:
        number = float(reward) if is_number else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the reward is {reward!r}; give a finite number, or None")
    return number
