"""What an evaluation adds up to, kept as running sums: memory does not grow with the rollouts."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from osmosis_core import PolicyCall, RolloutSample, RolloutStatus
from osmosis_eval.runner import Outcome

OTHER = "(others)"
"""Where everything counts whose name is not among the first ones of its group."""
MAX_SAMPLE_IDS = 20
MAX_VALUES = 200
_MAX_MESSAGES = 3


@dataclass(slots=True)
class Rewards:
    """Mean, spread and range of rewards (Welford's recurrence)."""

    count: int = 0
    mean: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    _squares: float = 0.0

    def add(self, reward: float) -> None:
        """Take one reward in."""
        self.count += 1
        delta = reward - self.mean
        self.mean += delta / self.count
        self._squares += delta * (reward - self.mean)
        self.low, self.high = min(self.low, reward), max(self.high, reward)

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None below two rewards."""
        if self.count < 2:
            return None
        return math.sqrt(self._squares / (self.count - 1)) if self._squares >= 0 else math.nan

    def to_json(self) -> dict[str, Any]:
        """The figures; null where there is no reward to speak of."""
        mean = self.mean if self.count else None
        figures = {"mean": mean, "std": self.std, "min": self.low, "max": self.high}
        return {"graded": self.count, **{name: _finite(x) for name, x in figures.items()}}


@dataclass(slots=True)
class Group:
    """The rollouts or samples that share a name."""

    count: int = 0
    rewards: Rewards = field(default_factory=Rewards)


@dataclass(slots=True)
class Groups:
    """Figures by name for the first `limit` names, and together for all others."""

    limit: int
    by_name: dict[str, Group] = field(default_factory=dict[str, Group])

    def get(self, name: str) -> Group:
        """The group that counts `name`."""
        if name not in self.by_name and len(self.by_name) >= self.limit:
            name = OTHER
        return self.by_name.setdefault(name, Group())

    def to_json(self, counted: str) -> dict[str, Any]:
        """Sorted by name; `counted` says what the count of a group counts."""
        return {
            name: {counted: group.count, **group.rewards.to_json()}
            for name, group in sorted(self.by_name.items(), key=lambda i: (i[0] == OTHER, i[0]))
        }


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that the policy says it read and wrote."""

    prompt: int = 0
    completion: int = 0

    @classmethod
    def of(cls, calls: list[PolicyCall]) -> Self:
        """The sum over calls; a call without usage counts nothing."""
        usages = [call.usage for call in calls if call.usage]
        return cls(
            sum(_count(usage.get("prompt_tokens")) for usage in usages),
            sum(_count(usage.get("completion_tokens")) for usage in usages),
        )

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)


def _finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(slots=True)
class Totals:
    """Everything about the rollouts finished so far."""

    planned: int
    by_key: str | None = None
    """Metadata key whose values are counted apart."""
    succeeded: int = 0
    failed: Counter[str] = field(default_factory=Counter[str])
    """By error category, or `cancelled`."""
    rewards: Rewards = field(default_factory=Rewards)
    samples: Groups = field(default_factory=lambda: Groups(MAX_SAMPLE_IDS))
    by_value: Groups = field(default_factory=lambda: Groups(MAX_VALUES))
    truncated_samples: int = 0
    removed_samples: int = 0
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    messages: Counter[str] = field(default_factory=Counter[str])
    """The first distinct error messages; all later ones count as `OTHER`."""
    _began: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> int:
        """Rollouts that ended, well or not."""
        return self.succeeded + self.failed.total()

    def add(self, outcome: Outcome) -> None:
        """Count one rollout; only one that succeeded contributes rewards."""
        group = self._value_group(outcome)
        group.count += 1
        if outcome.result.status is RolloutStatus.SUCCESS:
            self.succeeded += 1
            for sample_id, sample in outcome.result.samples.items():
                self._add_reward(sample_id, sample, group)
        else:
            self.failed[outcome.result.err_category or outcome.result.status] += 1
            self._add_message(outcome.result.err_message or "no message")
        self.truncated_samples += sum(s.truncated for s in outcome.result.samples.values())
        self.calls += len(outcome.calls)
        self.tokens += Tokens.of(outcome.calls)

    def _value_group(self, outcome: Outcome) -> Group:
        if self.by_key is None:
            return Group()
        value = (outcome.row.metadata or {}).get(self.by_key)
        return self.by_value.get("(none)" if value is None else str(value))

    def _add_reward(self, sample_id: str, sample: RolloutSample, group: Group) -> None:
        self.samples.get(sample_id).count += 1
        if sample.remove_sample:
            self.removed_samples += 1
        elif sample.reward is not None:
            for rewards in (self.rewards, self.samples.get(sample_id).rewards, group.rewards):
                rewards.add(sample.reward)

    def _add_message(self, text: str) -> None:
        message = _one_line(text)
        is_known = message in self.messages or len(self.messages) < _MAX_MESSAGES
        self.messages[message if is_known else OTHER] += 1

    def to_json(self) -> dict[str, Any]:
        """The figures as they are in `summary.json`."""
        wall_sec = time.monotonic() - self._began
        by_value = {"by": {self.by_key: self.by_value.to_json("rollouts")}} if self.by_key else {}
        return {
            "rollouts": {
                "planned": self.planned,
                "succeeded": self.succeeded,
                "failed": self.failed.total(),
                "failed_by_category": dict(self.failed),
            },
            "rewards": self.rewards.to_json(),
            "samples": self.samples.to_json("samples"),
            **by_value,
            "truncated_samples": self.truncated_samples,
            "removed_samples": self.removed_samples,
            "calls": self.calls,
            "tokens": {"prompt": self.tokens.prompt, "completion": self.tokens.completion},
            "wall_sec": round(wall_sec, 3),
            "rollouts_per_sec": round(self.finished / wall_sec, 3) if wall_sec else None,
            "errors": [
                {"message": message, "count": count} for message, count in self.messages.items()
            ],
        }


def _one_line(text: str, limit: int = 300) -> str:
    """The text on one line without control characters, cut to `limit` characters."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
