"""The single-sample callback protocol of osmosis-ai 0.3.0 (protocol.md 1.5, 1.6)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import StringConstraints

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_server.http import validated
from osmosis_server.protocols.callbacks import (
    CallbackProtocol,
    CallbackRequest,
    callback_submission,
    err_category,
)
from osmosis_server.protocols.submitting import Key, OneSampleProtocol, RolloutId, only_sample
from osmosis_server.protocols.wire import encode
from osmosis_server.submissions import Submission


class SingleSampleRequest(CallbackRequest):
    """`RolloutInitRequest` of 0.3.0."""

    rollout_id: RolloutId | None = None
    """Without one the server makes a uuid4 in hex."""
    llm_api_key: Annotated[Key, StringConstraints(min_length=1)] | None = None
    """Bearer key of the policy; without one the controller's is it."""


class SingleSampleProtocol(OneSampleProtocol, CallbackProtocol):
    """Answers 202; the grader callback carries one sample."""

    name = "single-sample"
    accepted_status = 202

    def submission(self, body: dict[str, Any], headers: Mapping[str, str]) -> Submission:
        """The body as a submission, or `http.Unprocessable`."""
        asked = validated(SingleSampleRequest, body, self.urls)
        rollout_id = asked.rollout_id or uuid.uuid4().hex
        llm_api_key = asked.llm_api_key or asked.controller_api_key
        return callback_submission(asked, self.name, rollout_id, llm_api_key)

    def completion_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """Status, which may be `cancelled`, and error; no sample."""
        return encode(
            {
                "status": result.status,
                "rollout_id": submission.request.id,
                "extra_fields": None,
                "err_message": result.err_message,
                "err_category": err_category(result),
            }
        )

    def grader_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """The sample, also of a failure; it keeps no reward then."""
        has_succeeded = result.status is RolloutStatus.SUCCESS
        sample = only_sample(result)
        body = {
            "status": "success" if has_succeeded else "failure",
            "rollout_id": submission.request.id,
            "sample": sample,
            "err_message": result.err_message,
            "err_category": err_category(result),
        }
        return encode(body)
