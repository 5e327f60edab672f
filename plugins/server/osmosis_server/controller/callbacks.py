"""What the two callback protocols share: waiting to be called (protocol.md 1.4 and 1.6)."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from osmosis_core import (
    BackendError,
    ExecutionResult,
    PolicyCall,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_server.controller.modes import Mode
from osmosis_server.controller.operations import health_of, takes_repetitions
from osmosis_server.controller.results import read_result
from osmosis_server.controller.rollouts import Rollout
from osmosis_server.controller.servers import Answer, Json, Lost, Server, Unsent

_SETTLE_SEC = 5.0
"""How long the grader's callback may follow that of a failed workflow."""
_ASK_SEC = 0.5
_ASKED_SEC = 5.0


class Callbacks(Mode):
    """A mode in which the server calls back once for the workflow and once for the grader."""

    @abstractmethod
    def samples(self, body: Json) -> dict[str, Any]:
        """The samples in a grader's callback, by name."""

    def common(self, rollout: Rollout) -> Json:
        """Fields that both callback protocols have."""
        request, listener = rollout.request, self.wire.listener
        grader_url = listener.callback_url(request.id, "grader") if request.grade else None
        return {
            "rollout_id": request.id,
            "initial_messages": request.prompt,
            "label": request.label,
            "metadata": request.metadata,
            "controller_api_key": self.wire.keys.callbacks(request.id, rollout.submission),
            "completion_callback_url": listener.callback_url(request.id, "completion"),
            "grader_callback_url": grader_url,
            "agent_timeout_sec": request.agent_timeout_sec,
            "grader_timeout_sec": request.grader_timeout_sec,
            "extra_fields": request.extra_fields,
        }

    def check_accepted(self, rollout: Rollout, answer: Answer) -> None:
        """Refuse a server that waits to be polled: it would never call back."""
        if "polling_lease_token" in answer.object:
            raise BackendError(
                f"{rollout.server and rollout.server.url} waits to be polled; use protocol "
                "'polling'",
                category=RolloutErrorCategory.VALIDATION_ERROR,
            )

    async def recover(self, rollout: Rollout, server: Server, reason: str) -> None:
        """Wait for a sign of life: a call of it, or a status.

        Only servers that are known to run no repetition twice are sent the same submission again.
        """
        until = time.monotonic() + self.wire.limits.lost_answer_sec
        while not (rollout.is_heard or await self._is_there(rollout, server)):
            if time.monotonic() >= until:
                raise BackendError(
                    f"{server.url} may have the rollout, but its answer was lost ({reason}), and "
                    f"nothing was heard of it for {self.wire.limits.lost_answer_sec:g} s",
                    category=RolloutErrorCategory.HTTP_ERROR,
                )
            await asyncio.sleep(_ASK_SEC)
        rollout.is_accepted = True

    async def _is_there(self, rollout: Rollout, server: Server) -> bool:
        path = f"/rollout/{quote(rollout.request.id, safe='')}/status"
        try:
            answer = await server.ask(self.wire.session, "GET", path, timeout_sec=_ASKED_SEC)
            if answer.status == 200 and answer.object.get("status") not in (None, "unknown"):
                return True
            if not takes_repetitions(await health_of(self.wire.session, server)):
                return False
            again = await self.submit(rollout, server, self.encoded(rollout))
        except (Unsent, Lost):
            return False
        return again.status == self.accepts

    async def follow(self, rollout: Rollout) -> ExecutionResult:
        """Wait for the callback that ends the rollout."""
        rollout.status = max(rollout.status, RolloutStatus.RUNNING, key=_order)
        await rollout.changed.wait()
        if rollout.result is not None:
            return rollout.result
        assert rollout.workflow is not None
        rollout.changed.clear()
        is_well = rollout.workflow.status is RolloutStatus.SUCCESS
        grading_sec = rollout.request.grader_timeout_sec
        patience_sec = None if grading_sec is None else grading_sec + self.wire.limits.grace_sec
        try:
            async with asyncio.timeout(patience_sec if is_well else _SETTLE_SEC):
                await rollout.changed.wait()
        except TimeoutError:
            if not is_well:
                return rollout.workflow
            raise BackendError(
                "the workflow ended well, but no terminal grader callback came within "
                f"{patience_sec:g} s",
                category=RolloutErrorCategory.TIMEOUT,
            ) from None
        assert rollout.result is not None
        return rollout.result

    async def called(self, rollout: Rollout, kind: str, result: ExecutionResult) -> None:
        """Take a callback; when this returns the server may be told that it was taken."""
        if kind == "grader" or not rollout.request.grade:
            await self.wire.listener.end_calls(rollout)
            await rollout.settle(_with_reason(result, rollout.workflow))
        elif rollout.workflow is None:
            rollout.workflow, rollout.status = result, RolloutStatus.GRADING
            rollout.changed.set()

    def read(self, kind: str, body: Json) -> ExecutionResult:
        """A callback's result; raises ValueError when it is none."""
        if kind == "grader":
            return read_result(body, self.samples(body))
        return read_result(body, {})


def _with_reason(result: ExecutionResult, workflow: ExecutionResult | None) -> ExecutionResult:
    """The grader's result; after a failed workflow it is that failure, with the same samples."""
    if workflow is None or workflow.status is RolloutStatus.SUCCESS:
        return result
    return replace(workflow, samples=result.samples)


def _order(status: RolloutStatus) -> int:
    return list(RolloutStatus).index(status)


def call_report(calls: Sequence[PolicyCall]) -> Json:
    """What an acknowledgement may tell about a rollout's calls (protocol.md 2.8)."""
    samples: dict[str, Any] = {}
    for call in calls:
        if call.received:
            of = samples.setdefault(call.sample_id, {"llm_call_metrics": []})
            of["llm_call_metrics"].append(_metrics(call))
    return {"samples": samples}


def _metrics(call: PolicyCall) -> Json:
    usage = call.usage or {}
    details: Json = usage.get("prompt_tokens_details") or {}
    metrics: Json = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
        "prompt_token_ids": _list(call.prompt_token_ids),
        "completion_token_ids": _list(call.completion_token_ids),
        "logprobs": _list(call.logprobs),
        "model_name": call.model,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _list(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
