"""What the two callback protocols have in common: two callbacks to URLs of the request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from starlette.responses import Response

from osmosis_core import ExecutionResult, RolloutErrorCategory
from osmosis_server.protocols.submitting import InitRequest, Key, SubmittedProtocol, Url
from osmosis_server.submissions import Delivery, Submission

_UNKNOWN_TO_THEM = (RolloutErrorCategory.INTERNAL_ERROR, RolloutErrorCategory.LEASE_EXPIRED)


class CallbackRequest(InitRequest):
    """What the bodies of both have."""

    controller_api_key: Key | None = None
    """Bearer key of the callbacks."""
    completion_callback_url: Url
    grader_callback_url: Url | None = None
    """Without it nothing is graded."""


class CallbackProtocol(SubmittedProtocol):
    """Tells the controller twice: when the workflow ended, and when the grader did."""

    accepted_status: int

    def accepted(self, submission: Submission) -> Response:
        """`{}` with the status of this protocol."""
        return Response(b"{}", self.accepted_status, media_type="application/json")

    def workflow_done(self, submission: Submission, result: ExecutionResult) -> Sequence[Delivery]:
        """The completion callback."""
        url, body = submission.reply_to["completion"], self.completion_body(submission, result)
        return (Delivery("completion", url, body),)

    def rollout_done(self, submission: Submission, result: ExecutionResult) -> Sequence[Delivery]:
        """The grader callback, if the request has a URL for it."""
        url = submission.reply_to.get("grader")
        if url is None:
            return ()
        return (Delivery("grader", url, self.grader_body(submission, result)),)

    @abstractmethod
    def completion_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """What the completion callback says."""

    @abstractmethod
    def grader_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        """What the grader callback says."""


def callback_submission(
    asked: CallbackRequest, protocol: str, rollout_id: str, llm_api_key: str | None
) -> Submission:
    """The request as a submission; without a grader URL it is not graded."""
    reply_to = {"completion": asked.completion_callback_url}
    if asked.grader_callback_url is not None:
        reply_to["grader"] = asked.grader_callback_url
    return Submission(
        request=asked.execution_request(rollout_id, grade="grader" in reply_to),
        protocol=protocol,
        chat_completions_url=asked.chat_completions_url,
        llm_api_key=llm_api_key or None,
        reply_to=reply_to,
        reply_key=asked.controller_api_key or None,
    )


def err_category(result: ExecutionResult) -> RolloutErrorCategory | None:
    """The category in the words that callback controllers know: four of them, or null."""
    return None if result.err_category in _UNKNOWN_TO_THEM else result.err_category
