"""`POST /rollout`: one path for three protocols, told apart by what the body says."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo

from osmosis_core import ExecutionRequest, ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_server.http import read_object, route
from osmosis_server.protocols.base import Protocol
from osmosis_server.protocols.wire import wire_sample
from osmosis_server.security import UrlPolicy
from osmosis_server.submissions import Duplicate, Submission

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from osmosis_server.service import RolloutService


def _one_segment(rollout_id: str) -> str:
    return ExecutionRequest(rollout_id, []).id


def _allowed(url: str, info: ValidationInfo) -> str:
    return cast("UrlPolicy", info.context).check(url)


def _header_value(key: str) -> str:
    if not key.isprintable() or key != key.strip():
        raise ValueError("no header can carry it; leave out control characters and outer blanks")
    return key


type RolloutId = Annotated[str, AfterValidator(_one_segment)]
type Url = Annotated[str, AfterValidator(_allowed)]
type Key = Annotated[str, AfterValidator(_header_value)]
type Timeout = Annotated[float, Field(allow_inf_nan=False)]


class InitRequest(BaseModel):
    """What the bodies of all three protocols have; unknown fields are ignored."""

    initial_messages: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    chat_completions_url: Url
    agent_timeout_sec: Timeout | None = None
    """Finite; 0 or less has expired already."""
    grader_timeout_sec: Timeout | None = None
    extra_fields: dict[str, Any] | None = None

    def execution_request(self, rollout_id: str, *, grade: bool) -> ExecutionRequest:
        """What the backend is asked for."""
        return ExecutionRequest(
            id=rollout_id,
            prompt=self.initial_messages,
            label=self.label,
            metadata=self.metadata,
            agent_timeout_sec=self.agent_timeout_sec,
            grader_timeout_sec=self.grader_timeout_sec,
            grade=grade,
            extra_fields=self.extra_fields,
        )


class SubmittedProtocol(Protocol):
    """A protocol whose rollouts come in at `POST /rollout`."""

    def __init__(self, service: RolloutService) -> None:
        self.service = service
        self.urls = UrlPolicy(service.settings.allow_hosts)

    def routes(self) -> Sequence[BaseRoute]:
        """Nothing beside the path that all share."""
        return ()

    @abstractmethod
    def submission(self, body: dict[str, Any], headers: Mapping[str, str]) -> Submission:
        """The body as a submission, or `http.Unprocessable`; the fingerprint is set later."""

    @abstractmethod
    def accepted(self, submission: Submission) -> Response:
        """The answer to a submission that was admitted, and to an equal one that comes again."""


class OneSampleProtocol(SubmittedProtocol):
    """A protocol that carries one sample: several are a failure that names them.

    Samples of helpers that were declared not trainable do not count.
    """

    def settle(self, submission: Submission, result: ExecutionResult) -> ExecutionResult:
        """The result, or the failure that says which samples there are."""
        ids = [sample_id for sample_id, sample in result.samples.items() if sample.trainable]
        if len(ids) <= 1 or result.status is not RolloutStatus.SUCCESS:
            return result
        why = (
            f"the rollout has {len(ids)} samples ({', '.join(ids)}); the {self.name} protocol "
            "carries one; use the multi-sample protocol, or mark helpers with trainable=False"
        )
        category = RolloutErrorCategory.VALIDATION_ERROR
        return ExecutionResult(RolloutStatus.FAILURE, result.samples, why, category)


def only_sample(result: ExecutionResult) -> dict[str, Any] | None:
    """The sample to carry as it is on the wire; None when there is none, or no single one."""
    samples = list(result.samples.values())
    found = [sample for sample in samples if sample.trainable] or samples
    if len(found) != 1:
        return None
    return wire_sample(found[0], has_succeeded=result.status is RolloutStatus.SUCCESS)


def submit_route(choose: Callable[[dict[str, Any]], SubmittedProtocol], limit: int) -> BaseRoute:
    """The route; `choose` says which protocol a body speaks, `limit` how many bytes it may have."""

    async def submit(request: Request) -> Response:
        body, raw = await read_object(request, limit)
        protocol = choose(body)
        made = protocol.submission(body, request.headers)
        submission = replace(made, fingerprint=_digest(made, raw))
        try:
            await protocol.service.admit(submission)
        except Duplicate as duplicate:
            if not duplicate.is_same:
                raise
        return protocol.accepted(submission)

    return route("/rollout", submit, "POST")


def _digest(made: Submission, raw: bytes) -> str:
    """A lease token that the server made is in it too: such a submission never comes again."""
    whose = f"{made.protocol}\0{made.lease_token or ''}\0"
    return hashlib.sha256(whose.encode() + raw).hexdigest()
