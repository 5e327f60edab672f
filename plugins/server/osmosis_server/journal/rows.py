"""What goes into the journal and comes out of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_core import ExecutionRequest
from osmosis_server.submissions import RolloutView, Submission

if TYPE_CHECKING:
    from osmosis_server.journal.keys import Keys

SUBMISSION = "seq, id, protocol, fingerprint, request, llm_key, reply_key"
"""The columns of `read_submission`."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Admission:
    """A rollout that is being written."""

    seq: int
    """Its number; they follow the order of admission."""
    size: int
    """Characters of its request as JSON."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rollout ended, as it is kept until its retention ends."""

    view: RolloutView
    ended_at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A rollout that has ended."""

    view: RolloutView
    lease: bytes | None
    """SHA-256 of its lease token."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A rollout that had not ended when the journal was opened."""

    seq: int
    has_begun: bool
    """Whether it may have run already."""
    is_told: bool
    """Whether what the controller is told when the workflow ended has been written."""
    lease: bytes | None
    size: int
    """Characters of its request as JSON."""
    submission: Submission


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A delivery that no controller has taken yet, without its body."""

    seq: int
    step: int
    rollout_id: str
    name: str
    url: str
    made_at: float
    """Unix time."""
    reply_key: str | None


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge found and left."""

    forgotten: int
    used_bytes: int


def lease_digest(token: str | None) -> bytes | None:
    """What the journal keeps of a lease token."""
    return None if token is None else hashlib.sha256(token.encode()).digest()


def dump_request(submission: Submission) -> str:
    """All of a submission that is neither a column of its own nor secret, as JSON."""
    request = submission.request
    fields: dict[str, Any] = {
        "prompt": request.prompt,
        "label": request.label,
        "metadata": request.metadata,
        "agent_timeout_sec": request.agent_timeout_sec,
        "grader_timeout_sec": request.grader_timeout_sec,
        "grade": request.grade,
        "extra_fields": request.extra_fields,
    }
    return _encode([fields, submission.chat_completions_url, dict(submission.reply_to)])


def read_submission(row: tuple[Any, ...], keys: Keys) -> Submission:
    """The submission of a row of SUBMISSION; its lease token is not known any more."""
    _, rollout_id, protocol, fingerprint, request, llm_key, reply_key = row
    fields, url, reply_to = json.loads(request)
    return Submission(
        request=ExecutionRequest(rollout_id, **fields),
        protocol=protocol,
        chat_completions_url=url,
        llm_api_key=keys.unseal(llm_key),
        reply_to=reply_to,
        reply_key=keys.unseal(reply_key),
        fingerprint=fingerprint,
    )
