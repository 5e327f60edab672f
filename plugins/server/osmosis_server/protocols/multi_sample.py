"""The multi-sample callback protocol of osmosis-ai 0.2.18 to 0.2.31 (protocol.md 1.3, 1.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osmosis_core import ExecutionResult, RolloutStatus
from osmosis_server.http import validated
from osmosis_server.protocols.callbacks import (
    CallbackProtocol,
    CallbackRequest,
    callback_submission,
    err_category,
)
from osmosis_server.protocols.submitting import RolloutId
from osmosis_server.protocols.wire import encode, wire_sample
from osmosis_server.submissions import Submission


class MultiSampleRequest(CallbackRequest):
    """`RolloutInitRequest` of 0.2.x; the controller's key is the policy's too."""

    rollout_id: RolloutId


class MultiSampleProtocol(CallbackProtocol):
    """Answers 200; the grader callback carries every sample. Cancelled is a failure here."""

    name = "multi-sample"
    accepted_status = 200

    def submission(self, body: dict[str, Any], headers: Mapping[str, str]) -> Submission:
        """The body as a submission, or `http.Unprocessable`."""
        asked = validated(MultiSampleRequest, body, self.urls)
        return callback_submission(asked, self.name, asked.rollout_id, asked.controller_api_key)

    def completion_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """Status and error; no samples."""
        return encode(
            {
                "rollout_id": submission.request.id,
                "status": _status(result),
                "extra_fields": None,
                "err_message": result.err_message,
                "err_category": err_category(result),
            }
        )

    def grader_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """All samples, also of a failure; none keeps a reward then."""
        has_succeeded = result.status is RolloutStatus.SUCCESS
        samples = {
            sample_id: {"id": sample_id, **wire_sample(sample, has_succeeded=has_succeeded)}
            for sample_id, sample in result.samples.items()
        }
        body = {
            "rollout_id": submission.request.id,
            "status": _status(result),
            "samples": samples,
            "err_message": result.err_message,
            "err_category": err_category(result),
        }
        return encode(body)


def _status(result: ExecutionResult) -> str:
    return "success" if result.status is RolloutStatus.SUCCESS else "failure"
