"""What users subclass to score samples, and what it is given."""

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, SupportsFloat

from osmosis_core.errors import SampleError
from osmosis_core.types import RolloutSample
from osmosis_core.workflow import PhaseContext


class GraderContext(PhaseContext):
    """What `Grader.grade()` is given: the samples, and the label that no workflow sees."""

    __slots__ = ("label", "project_path", "samples")

    def __init__(
        self,
        label: str | None = None,
        samples: dict[str, RolloutSample] | None = None,
        metadata: dict[str, Any] | None = None,
        project_path: str | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        super().__init__(metadata, artifacts_dir)
        self.label = label
        """The row's reference answer."""
        self.samples = samples if samples is not None else {}
        """By sample id."""
        self.project_path = project_path

    def get_samples(self) -> dict[str, RolloutSample]:
        """The samples by id."""
        return self.samples

    @property
    def sample(self) -> RolloutSample:
        """The one sample of the rollout.

        Raises:
            SampleError: there is none, or more than one.
        """
        if len(self.samples) != 1:
            there = ", ".join(self.samples) or "none"
            text = f"ctx.sample needs exactly one sample; there is {there}; use ctx.samples"
            raise SampleError(text)
        return next(iter(self.samples.values()))

    def set_reward(self, reward: SupportsFloat) -> None:
        """Give the one sample its reward; errors as `sample` and `set_sample_reward`."""
        self.set_sample_reward(self.sample.id, reward)

    def set_sample_reward(self, sample_id: str, reward: SupportsFloat) -> None:
        """Give a sample its reward, a finite number (NumPy scalars included).

        Raises:
            SampleError: unknown sample id; the message lists the known ones.
            ValueError: the reward is not a finite number.
        """
        sample = self.samples.get(sample_id)
        if sample is None:
            there = ", ".join(self.samples) or "none"
            raise SampleError(f"no sample {sample_id!r} in this rollout; there is {there}")
        sample.reward = _finite(reward, sample_id)


def _finite(reward: SupportsFloat, sample_id: str) -> float:
    try:
        number = math.nan if isinstance(reward, str | bytes | bytearray) else float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        wanted = "give a finite number, or none at all"
        raise ValueError(f"reward of sample {sample_id!r} is {reward!r}; {wanted}")
    return number


class Grader(ABC):
    """One way of scoring; `grade()` is called once per rollout, on an instance of its own."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Call `ctx.set_sample_reward()` for every sample, or set `sample.remove_sample`."""
