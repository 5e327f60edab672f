"""What travels between the protocols and the service: submissions, deliveries, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osmosis_core import ExecutionRequest, OsmosisError, RolloutErrorCategory, RolloutStatus


@dataclass(frozen=True, slots=True)
class Submission:
    """One rollout as a controller asked for it."""

    request: ExecutionRequest
    protocol: str
    """Name of the protocol that speaks with its controller."""
    chat_completions_url: str
    """OpenAI base URL of the policy."""
    llm_api_key: str | None = field(default=None, repr=False)
    reply_to: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where deliveries go, by names of the protocol's own, such as `completion` and `grader`."""
    reply_key: str | None = field(default=None, repr=False)
    """Bearer key of deliveries."""
    lease_token: str | None = field(default=None, repr=False)
    """What a polling controller must show; the journal keeps its SHA-256 only."""
    fingerprint: str = ""
    """Digest of the request as it was sent: an equal one is the same submission again."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to a controller; delivered at least once, in the order of `step`."""

    name: str
    """The same for every try, such as `completion`; unique within a rollout."""
    url: str
    body: bytes
    """JSON."""
    quick: tuple[float, ...] | None = None
    """Seconds between its first tries, if not those of the outbox; forgotten by a restart."""


@dataclass(frozen=True, slots=True)
class RolloutView:
    """Where a rollout is, as controllers are told."""

    rollout_id: str
    status: RolloutStatus
    reward: float | None = None
    """The one sample's reward; None while running, and where there are several samples."""
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    body: bytes | None = None
    """The rendered result of a protocol that is polled, once the rollout has ended."""


class Refused(OsmosisError):
    """A submission that is not accepted; nothing of it is kept."""

    status = 500
    retry_after_sec: int | None = None


class ShuttingDown(Refused):
    """The server drains (503)."""

    status = 503


class Full(Refused):
    """No capacity (429); `retry_after_sec` comes from the observed throughput."""

    status = 429

    def __init__(self, message: str, retry_after_sec: int) -> None:
        super().__init__(message)
        self.retry_after_sec = retry_after_sec


class Duplicate(Refused):
    """The id is registered (409); `is_same` when the submission was equal to the first one."""

    status = 409

    def __init__(self, message: str, *, is_same: bool) -> None:
        super().__init__(message)
        self.is_same = is_same


class UnknownRollout(OsmosisError):
    """No rollout with this id is known, or not any more (404)."""

    status = 404

    def __init__(self) -> None:
        super().__init__("unknown rollout_id")


class WrongLease(OsmosisError):
    """The lease token is not the one that this rollout was admitted with (403)."""

    status = 403

    def __init__(self) -> None:
        super().__init__("invalid polling lease")
