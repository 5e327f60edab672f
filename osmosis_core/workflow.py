"""What users subclass to say what their agent does, and what it is given."""

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from osmosis_core.types import Message

logger = logging.getLogger(__name__)


class PhaseContext:
    """What workflows and graders are given alike."""

    __slots__ = ("_artifacts_dir", "metadata")

    def __init__(self, metadata: dict[str, Any] | None, artifacts_dir: Path | None) -> None:
        self.metadata = metadata
        """The row's metadata, or None."""
        self._artifacts_dir = artifacts_dir

    @property
    def artifacts_dir(self) -> Path | None:
        """A directory of this rollout's own for files worth keeping; None without a place.

        The workflow and its grader share it; it is created when it is first asked for.
        """
        if self._artifacts_dir is not None:
            try:
                self._artifacts_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                text = "artifacts directory %s cannot be created: %s"
                logger.warning(text, self._artifacts_dir, error)
                self._artifacts_dir = None
        return self._artifacts_dir


class AgentWorkflowContext[TConfig](PhaseContext):
    """What `AgentWorkflow.run()` is given; all of it is the rollout's own copy."""

    __slots__ = ("config", "prompt")

    def __init__(
        self,
        prompt: list[Message],
        config: TConfig | None = None,
        metadata: dict[str, Any] | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        super().__init__(metadata, artifacts_dir)
        self.prompt = prompt
        """OpenAI chat messages of the dataset row."""
        self.config = config
        """The workflow's config, or None when none was given."""


class AgentWorkflow[TConfig](ABC):
    """One agent behaviour; `run()` is called once per rollout, on an instance of its own."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        """Build and run agents against the policy.

        Return None, and the samples are what agents registered and the wire recorded; or return
        a list of messages or an `AgentWorkflowOutput`, which wins over a registered history.
        """
