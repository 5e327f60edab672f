"""Configuration objects that users write next to their workflow, and the retry settings."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class BaseConfig(BaseModel):
    """Open configuration: extra fields are allowed, assignments are validated."""

    model_config = ConfigDict(
        extra="allow", validate_assignment=True, arbitrary_types_allowed=True, defer_build=True
    )

    name: str
    """Identifier of the workflow or grader."""
    description: str | None = None

    def for_rollout(self) -> Self:
        """A deep copy for one rollout; what cannot be copied (a lock, a client) is shared."""
        memo: dict[int, Any] = {}
        copied = self.model_copy()
        for values in (vars(copied), copied.__pydantic_extra__, copied.__pydantic_private__):
            if values is not None:
                values.update({k: _copy_or_share(v, memo) for k, v in values.items()})
        return copied


def _copy_or_share(value: Any, memo: dict[int, Any]) -> Any:
    before = dict(memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # user objects raise anything when copied; sharing is documented
        memo.clear()
        memo.update(before)  # half-made copies must not reach the values after this one
        memo[id(value)] = value
        return value


class ConcurrencyConfig(BaseModel):
    """How many rollouts may run at once."""

    model_config = ConfigDict(defer_build=True)

    max_concurrent: int | None = Field(default=None, ge=1)
    """None means unlimited."""


class AgentWorkflowConfig(BaseConfig):
    """Base of a workflow's configuration."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """Base of a grader's configuration."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a policy call is tried again; the transport is the only place that retries.

    Raises:
        ValueError: fewer than one attempt, or a negative time.
    """

    max_attempts: int = 5
    """Tries, the first included, for 408, 425, 429, 5xx (but 501 and 505), lost connections and
    malformed answers."""
    base_delay_sec: float = 0.5
    """Doubles with every try, with jitter; a `Retry-After` of the server comes first."""
    max_delay_sec: float = 8.0
    pause_budget_sec: float = 600.0
    """How long one call waits in all because `Retry-After` asks for it (a weight update)."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts!r}; give 1 or more")
        if min(self.base_delay_sec, self.max_delay_sec, self.pause_budget_sec) < 0:
            raise ValueError(f"{self!r} has a negative time; give seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class WireOptions:
    """How the policy is asked, below every framework."""

    stream: bool = True
    """Stream on the wire, whatever the framework asks for; False for plain answers."""
    replay: bool = True
    """Answers come back in later requests as they were generated (arguments text, reasoning) where
    the framework's copy is equal but not identical; False sends its copy."""
    tee: bool = False
    """Give frameworks that stream the real deltas, at the price of their parsing each one."""
    capture: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields added to every request, such as `{"logprobs": True, "return_token_ids": True}` for
    vLLM. What they yield is recorded and kept from frameworks that did not ask for it."""
