"""A trainer's endpoints by URL, for code that runs outside of a server."""

from __future__ import annotations

from typing import Self

from osmosis_agent_loop.client import JSON, PolicyClient, failure, speak_to_trainer
from osmosis_agent_loop.schemas import MessageDict, RolloutMetrics, RolloutResponse, RolloutStatus
from osmosis_agent_loop.settings import RolloutClientSettings, RolloutSettings, get_settings
from osmosis_core import RolloutContext as Rollout
from osmosis_core.policy import WireRequest, bound_headers, exchange


class OsmosisLLMClient(PolicyClient):
    """A trainer's endpoints by URL, outside of a server; an `async with` block.

    Values that are None are those of `settings`, else of the process's settings.
    """

    def __init__(
        self,
        server_url: str,
        rollout_id: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        complete_rollout_retries: int | None = None,
        settings: RolloutClientSettings | RolloutSettings | None = None,
    ) -> None:
        settings = settings or get_settings()
        chosen = settings.client if isinstance(settings, RolloutSettings) else settings
        given = {
            "timeout_seconds": timeout_seconds,
            "max_retries": max_retries,
            "complete_rollout_retries": complete_rollout_retries,
        }
        chosen = chosen.model_copy(update={k: v for k, v in given.items() if v is not None})
        rollout = Rollout(f"{server_url.rstrip('/')}/v1", api_key or "", rollout_id)
        speak_to_trainer(rollout, chosen)
        super().__init__(rollout, "main", is_trainer=True, settings=chosen)

    async def complete_rollout(
        self,
        status: RolloutStatus | str,
        final_messages: list[MessageDict],
        finish_reason: str = "stop",
        error_message: str | None = None,
        metrics: RolloutMetrics | None = None,
        reward: float | None = None,
    ) -> None:
        """Report the end of the rollout; any 2xx is an acknowledgement.

        Raises:
            OsmosisValidationError: the trainer refused it.
            OsmosisServerError, OsmosisTransportError: no acknowledgement in all tries.
        """
        body = RolloutResponse(
            rollout_id=self._rollout.rollout_id,
            status=RolloutStatus(status),
            final_messages=final_messages,
            finish_reason=finish_reason,
            error_message=error_message,
            metrics=metrics,
            reward=reward,
        )
        text = body.model_dump_json(exclude_none=True).encode()
        tries = self._settings.complete_rollout_retries
        report = self._rollout.for_rollout(self._rollout.rollout_id)
        report.retry = self._settings.model_copy(update={"max_retries": tries}).retry
        headers = {**JSON, **bound_headers(report, "main")}
        timeout = self._settings.timeout_seconds
        answer = await exchange(WireRequest("POST", "/rollout/completed", headers, text, timeout))
        if answer.status >= 300:
            raise failure(answer)

    async def close(self) -> None:
        """Do nothing: connections belong to the process."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
