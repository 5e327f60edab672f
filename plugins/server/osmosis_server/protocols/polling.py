"""The polling lease protocol of osmosis-ai 0.3.7 and later (protocol.md 1.8): no callbacks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import StringConstraints
from starlette.responses import Response

from osmosis_core import ExecutionResult
from osmosis_server.http import Unprocessable, answer, route, validated
from osmosis_server.protocols.submitting import (
    InitRequest,
    Key,
    OneSampleProtocol,
    RolloutId,
    only_sample,
)
from osmosis_server.protocols.wire import encode
from osmosis_server.submissions import RolloutView, Submission

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

LEASE_HEADER = "X-Osmosis-Rollout-Lease"
_MIN_TOKEN = 16


class PollingRequest(InitRequest):
    """`RolloutInitRequest` of 0.3.7."""

    rollout_id: RolloutId
    llm_api_key: Annotated[Key, StringConstraints(min_length=1)] | None = None
    grade: bool = True


class PollingProtocol(OneSampleProtocol):
    """Answers 202 with a lease token; the controller reads the result with it."""

    name = "polling"

    def routes(self) -> Sequence[BaseRoute]:
        """`GET /rollout/{rollout_id}/result`."""
        return (route("/rollout/{rollout_id}/result", self._result, "GET"),)

    def submission(self, body: dict[str, Any], headers: Mapping[str, str]) -> Submission:
        """The body as a submission, or `http.Unprocessable`.

        A controller that chooses the lease token itself, by the header of result requests, may
        send an equal request again when the answer was lost.
        """
        asked = validated(PollingRequest, body, self.urls)
        chosen = headers.get(LEASE_HEADER)
        if chosen is not None and len(chosen) < _MIN_TOKEN:
            text = f"String should have at least {_MIN_TOKEN} characters"
            raise Unprocessable([_header_issue("string_too_short", text)])
        return Submission(
            request=asked.execution_request(asked.rollout_id, grade=asked.grade),
            protocol=self.name,
            chat_completions_url=asked.chat_completions_url,
            llm_api_key=asked.llm_api_key,
            lease_token=chosen or secrets.token_urlsafe(32),
        )

    def accepted(self, submission: Submission) -> Response:
        """The token and the waits."""
        settings = self.service.settings
        return answer(
            {
                "rollout_id": submission.request.id,
                "status": "queued",
                "polling_lease_token": submission.lease_token,
                "result_wait_timeout_sec": settings.result_wait_timeout_sec,
                "polling_lease_timeout_sec": settings.polling_lease_timeout_sec,
            },
            202,
        )

    def result_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """What `GET .../result` answers from now on."""
        sample = only_sample(result)
        body = {
            "rollout_id": submission.request.id,
            "status": result.status,
            "sample": sample,
            "err_message": result.err_message,
            "err_category": result.err_category,
        }
        return encode(body)

    async def _result(self, request: Request) -> Response:
        token = request.headers.get(LEASE_HEADER)
        if token is None:
            raise Unprocessable([_header_issue("missing", "Field required")])
        if not token:
            text = "String should have at least 1 character"
            raise Unprocessable([_header_issue("string_too_short", text)])
        wait_sec = self.service.settings.result_wait_timeout_sec
        view = await self.service.wait(request.path_params["rollout_id"], token, wait_sec)
        return Response(view.body or _unfinished(view), media_type="application/json")


def _header_issue(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "loc": ["header", LEASE_HEADER], "msg": text}


def _unfinished(view: RolloutView) -> bytes:
    nothing = {"sample": None, "err_message": None, "err_category": None}
    return encode({"rollout_id": view.rollout_id, "status": view.status, **nothing})
