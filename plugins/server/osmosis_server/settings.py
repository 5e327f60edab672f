"""Every limit of a rollout server in one place; `osmosis serve` has an option for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

type Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServerSettings(BaseModel):
    """Settings of a rollout server; times in seconds.

    Raises:
        pydantic.ValidationError: a value is out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    callback_protocol: Literal["multi-sample", "single-sample"] = "multi-sample"
    """What a request with callback URLs means: osmosis-ai 0.2.x (answers 200, plural samples) or
    0.3.0 (202, one sample). The requests cannot be told apart (protocol.md 0)."""
    journal: Path | Literal[":memory:"] = Path(".osmosis/server/journal.db")
    """File in which everything accepted survives a killed server, or `:memory:`."""
    survive_power_loss: bool = False
    """Wait for the disk at each commit; a killed process loses nothing either way."""
    on_restart: Literal["fail", "rerun"] = "fail"
    """What becomes of rollouts that had begun when the server was killed; others just run."""
    max_pending: Annotated[int, Field(ge=1)] = 10_000
    """Rollouts admitted and not ended; one more is answered 429."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    """The largest request body; a larger one is answered 413 without being read."""
    result_wait_timeout_sec: Seconds = 30.0
    """How long a poll waits for a change (protocol.md 1.8)."""
    polling_lease_timeout_sec: Seconds = 120.0
    """How long a rollout lives on without a poll; more than the wait of a poll."""
    result_retention_sec: Seconds = 900.0
    """How long a finished rollout is kept, and its id taken."""
    max_journal_bytes: Annotated[int, Field(ge=1024 * 1024)] = 8 * 1024**3
    """Finished rollouts beyond it are forgotten before their retention ends, oldest first, unless
    their deliveries are outstanding."""
    delivery_timeout_sec: Seconds = 10.0
    """How long one try of a callback may take."""
    delivery_deadline_sec: Seconds = 24 * 3600.0
    """How long deliveries are retried after the quick tries of the protocols."""
    drain_grace_sec: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    """How long running rollouts may go on after SIGTERM before they are cancelled."""
    allow_hosts: tuple[str, ...] = ()
    """Patterns (`*.example.com`, `10.0.0.0/8`, with `:port` or without) of the hosts that requests
    may name; empty allows all but link-local and metadata addresses."""
    max_artifact_bytes: Annotated[int, Field(ge=0)] = 1024**3
    """How much a rollout may leave in its artifacts directory."""
    max_artifact_files: Annotated[int, Field(ge=0)] = 10_000
    """How many files it may leave there."""
    trajectories: bool = True
    """Whether trajectories and diagnostics are written beside the artifacts."""

    @model_validator(mode="after")
    def _lease_outlives_a_poll(self) -> Self:
        if self.polling_lease_timeout_sec <= self.result_wait_timeout_sec:
            raise ValueError("polling_lease_timeout_sec must be more than result_wait_timeout_sec")
        return self
