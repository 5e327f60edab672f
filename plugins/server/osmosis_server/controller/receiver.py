"""Callbacks of rollout servers: checked, taken once, and acknowledged after that."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from osmosis_core import ExecutionRequest, ExecutionResult
from osmosis_gateway import Refusal
from osmosis_server.controller.callbacks import Callbacks, call_report
from osmosis_server.controller.rollouts import Acknowledged, Registry, digest
from osmosis_server.controller.servers import Json

if TYPE_CHECKING:
    from osmosis_server.controller.modes import Mode

_log = logging.getLogger(__name__)

KINDS = ("completion", "grader")
_TERMINAL = ("success", "failure", "cancelled")
_MAX_BODY_BYTES = 256 * 1024 * 1024


class Receiver:
    """Reads callbacks on the listener's event loop, and takes them on the one it was made on.

    Statuses and details are those of protocol.md 1.6.
    """

    def __init__(self, registry: Registry, *, reports_calls: bool) -> None:
        self._registry, self._reports_calls = registry, reports_calls
        self._loop = asyncio.get_running_loop()
        self.mode: Mode | None = None

    async def answer(self, request: Request, kind: str) -> JSONResponse:
        """Answer one callback; a record that raises makes it 500, so that its server repeats it."""
        rollout_id: str = request.path_params["rollout"]
        try:
            submission = self._registry.keys.check_callbacks(request, rollout_id)
            body, result = await self._read(request, rollout_id, kind)
            taking = self._take(rollout_id, submission, kind, body, result)
            taken = asyncio.run_coroutine_threadsafe(taking, self._loop)
            return JSONResponse(await asyncio.wrap_future(taken))
        except Refusal as refusal:
            detail = "Unauthorized" if refusal.status == 401 else refusal.message
            return JSONResponse({"detail": detail}, refusal.status)
        except Exception:  # boundary: the record is anyone's
            _log.exception("the %s callback of rollout %r was not recorded", kind, rollout_id)
            return JSONResponse({"detail": "the result was not recorded"}, 500)

    async def _read(
        self, request: Request, rollout_id: str, kind: str
    ) -> tuple[Json, ExecutionResult]:
        if not isinstance(self.mode, Callbacks):
            raise Refusal(404, "this controller polls; it takes no callbacks")
        try:
            ExecutionRequest(rollout_id, [])
        except ValueError as error:
            raise Refusal(422, "invalid rollout_id") from error
        body = await _json(request)
        if body.get("rollout_id") not in (None, rollout_id):
            raise Refusal(422, "rollout_id mismatch")
        if body.get("status") not in _TERMINAL:
            raise Refusal(422, f"{kind} callback status must be terminal")
        try:
            return body, self.mode.read(kind, body)
        except ValueError as error:
            raise Refusal(422, f"{kind} callback: {error}") from error

    async def _take(
        self, rollout_id: str, submission: str, kind: str, body: Json, result: ExecutionResult
    ) -> Json:
        if not self._registry.knows(rollout_id):
            raise Refusal(404, "unknown rollout_id")
        taken = self._registry.acknowledged(rollout_id, submission)
        known, is_new = taken.get(kind), digest(body)
        if known is not None:
            if known.digest != is_new:
                _log.warning("rollout %r: a %s callback unlike the first", rollout_id, kind)
            return known.body
        rollout = self._registry.get(rollout_id, submission)
        if rollout is None:
            _log.warning("rollout %r: its %s callback came after its end", rollout_id, kind)
        elif isinstance(self.mode, Callbacks):
            rollout.is_heard = True
            await self.mode.called(rollout, kind, result)
        answer: Json = {"ok": True}
        if rollout is not None and self._reports_calls:
            answer["trajectory"] = call_report(rollout.context.calls)
        return taken.setdefault(kind, Acknowledged(is_new, answer)).body


async def _json(request: Request) -> Json:
    raw = bytearray()
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > _MAX_BODY_BYTES:
                raise Refusal(413, f"the body is larger than {_MAX_BODY_BYTES} bytes")
        body: Any = json.loads(bytes(raw))
    except (ValueError, RecursionError, ClientDisconnect) as error:
        raise Refusal(422, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise Refusal(422, "the body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]
