"""The values that travel between the parts: requests, results, samples, policy calls."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, field_serializer, field_validator

from osmosis_core.record_json import Record, dump_calls, load_calls
from osmosis_core.records import Finding, Message, PolicyCall

type FiniteFloat = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class RolloutStatus(StrEnum):
    """Where a rollout is; the last three that a run can end in are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        """True for success, failure and cancelled."""
        return self in (self.SUCCESS, self.FAILURE, self.CANCELLED)


class RolloutErrorCategory(StrEnum):
    """Why a rollout failed, in the words of the wire protocols."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    LEASE_EXPIRED = "lease_expired"
    INTERNAL_ERROR = "internal_error"


class RolloutSample(BaseModel):
    """One agent's conversation in a rollout; what gets a reward (protocol.md 1.4)."""

    model_config = ConfigDict(
        validate_assignment=True, arbitrary_types_allowed=True, defer_build=True
    )

    id: str
    messages: list[Message] = Field(default_factory=list[Message])
    """The framework's own history, complete and in its own shape; documented graders walk it."""
    label: str | None = None
    reward: FiniteFloat | None = None
    remove_sample: bool = False
    """Set by a grader: keep this sample out of training; it needs no reward."""
    trainable: bool = True
    """False for helper agents whose calls are recorded but never trained on."""
    truncated: bool = False
    """True when an answer of the policy ended with finish reason `length`."""
    metrics: dict[str, Any] = Field(default_factory=dict[str, Any])
    extra_fields: dict[str, Any] = Field(default_factory=dict[str, Any])
    calls: SkipValidation[list[PolicyCall]] = Field(default_factory=list[PolicyCall])
    """Every policy call made under this sample's id, in order: the truth for training."""

    @property
    def findings(self) -> list[Finding]:
        """Where a framework rewrote the history that the policy was shown, call by call."""
        return [finding for call in self.calls for finding in call.findings]

    @field_serializer("calls")
    def _dump_calls(self, calls: list[PolicyCall]) -> list[Record]:
        return dump_calls(calls)

    @field_validator("calls", mode="before")
    @classmethod
    def _load_calls(cls, calls: Any) -> Any:
        return load_calls(calls) if calls and isinstance(calls[0], dict) else calls


class AgentWorkflowOutput(BaseModel):
    """What a workflow may return instead of relying on registered agents (protocol.md 2.6)."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    messages: list[Message] | None = None
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict[str, float])
    info: dict[str, Any] = Field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One rollout to execute.

    Raises:
        ValueError: the id is not one path segment of 1 to 256 characters without control
            characters, or a timeout is not finite.
    """

    id: str
    prompt: list[Message]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: float | None = None
    """Seconds from submission, queueing included, for the workflow; <= 0 has expired already."""
    grader_timeout_sec: float | None = None
    """Seconds for the grader, counted from when it starts."""
    grade: bool = True
    """False asks for the samples only; the grader is not run and not reported."""
    extra_fields: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_rollout_id(self.id)
        for name in ("agent_timeout_sec", "grader_timeout_sec"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; give finite seconds, or None for no limit")


@dataclass(slots=True)
class AgentRun:
    """One agent at work, and the agents that its tool calls and handoffs started."""

    sample_id: str
    calls: list[PolicyCall] = field(default_factory=list[PolicyCall])
    children: list[AgentRun] = field(default_factory=list["AgentRun"])

    def __str__(self) -> str:
        """One line per agent, indented below the one that started it."""
        count = len(self.calls)
        lines = [f"{self.sample_id}: {count} call{'s' * (count != 1)}"]
        lines += [f"  {line}" for child in self.children for line in str(child).splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What a backend reports: once after the workflow, once after the grader."""

    status: RolloutStatus
    samples: dict[str, RolloutSample] = field(default_factory=dict[str, RolloutSample])
    """By sample id; on a failure, whatever was collected until then."""
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Diagnostics: `queued_sec`, `duration_sec`, `grading_sec`, the workflow's returned `info`."""

    @property
    def sample(self) -> RolloutSample | None:
        """The sample when there is exactly one, else None."""
        return next(iter(self.samples.values())) if len(self.samples) == 1 else None

    def tree(self) -> list[AgentRun]:
        """Who started whom, by `PolicyCall.started_by`; the agents that the workflow ran itself."""
        runs: dict[tuple[str, int | None], AgentRun] = {}
        calls = sorted((c for s in self.samples.values() for c in s.calls), key=lambda c: c.index)
        for call in calls:
            key = call.sample_id, call.started_by
            runs.setdefault(key, AgentRun(call.sample_id)).calls.append(call)
        by_call = {call.index: run for run in runs.values() for call in run.calls}
        roots: list[AgentRun] = []
        for (_, starter), run in runs.items():
            parent = None if starter is None else by_call.get(starter)
            (roots if parent is None else parent.children).append(run)
        called = {run.sample_id for run in runs.values()}
        return roots + [
            AgentRun(sample_id) for sample_id in self.samples if sample_id not in called
        ]


def check_rollout_id(rollout_id: str) -> str:
    """Return the id if it is one path segment (protocol.md 1.7), else raise ValueError."""
    if not 1 <= len(rollout_id) <= 256:
        raise ValueError(f"rollout id has {len(rollout_id)} characters; give 1 to 256")
    if (
        rollout_id in (".", "..")
        or any(c in "/\\" for c in rollout_id)
        or any(unicodedata.category(c) in ("Cc", "Cs") for c in rollout_id)
    ):
        raise ValueError(
            f"rollout id {rollout_id!r} is not one path segment; leave out slashes and control "
            "characters"
        )
    return rollout_id
