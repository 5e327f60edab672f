"""What operators and controllers ask beside rollouts: health, status, cancel, pause, metrics."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field
from starlette.responses import Response

from osmosis_core.errors import describe
from osmosis_server.http import Unprocessable, answer, read_object, route, validated

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from osmosis_server.metrics import Metrics
    from osmosis_server.service import RolloutService

_INSTANCE_ENV = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
_MAX_BODY_BYTES = 4 * 1024 * 1024


class CancelRequest(BaseModel):
    """Exactly one selector; `ids: []` counts as one."""

    ids: list[str] | None = None
    prefix: str | None = None
    cancel_all: bool = Field(False, alias="all")


class Operations:
    """The routes that are the same in every protocol."""

    def __init__(self, service: RolloutService, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._process_id = str(uuid.uuid4())

    def routes(self) -> Sequence[BaseRoute]:
        """Health, metrics, status, cancel, pause and resume."""
        return (
            route("/health", self._health, "GET"),
            route("/metrics", self._render, "GET"),
            route("/rollout/{rollout_id}/status", self._status, "GET"),
            route("/rollout/cancel", self._cancel, "POST"),
            route("/rollout/pause", self._pause, "POST"),
            route("/rollout/resume", self._resume, "POST"),
        )

    async def _health(self, request: Request) -> Response:
        """The backend's health and what every generation adds to it (protocol.md 1.3-1.8)."""
        stats = self._service.stats()
        try:
            health = self._service.health()
        except Exception as error:  # boundary: a backend may be anyone's
            health = {"status": "error", "error": describe(error)}
        lifecycle = {
            "accepting_rollouts": self._service.is_accepting,
            "active_rollouts": stats.queued + stats.running,
            "paused": self._service.is_paused,
        }
        return answer(
            {
                **health,
                "instance_id": os.environ.get(_INSTANCE_ENV) or self._process_id,
                "process_id": self._process_id,
                "lifecycle": lifecycle,
            }
        )

    async def _render(self, request: Request) -> Response:
        body, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    async def _status(self, request: Request) -> Response:
        view = await self._service.view(request.path_params["rollout_id"])
        return answer(
            {
                "rollout_id": view.rollout_id,
                "status": view.status,
                "reward": view.reward,
                "err_message": view.err_message,
            }
        )

    async def _cancel(self, request: Request) -> Response:
        body, _ = await read_object(request, _MAX_BODY_BYTES)
        asked = validated(CancelRequest, body)
        try:
            found = await self._service.cancel(asked.ids, asked.prefix, asked.cancel_all)
        except ValueError as error:  # not exactly one selector
            raise Unprocessable(str(error)) from error
        return answer({"dispositions": found})

    async def _pause(self, request: Request) -> Response:
        self._service.pause()
        return self._paused()

    async def _resume(self, request: Request) -> Response:
        self._service.resume()
        return self._paused()

    def _paused(self) -> Response:
        running = self._service.stats().running
        return answer({"paused": self._service.is_paused, "running": running})
