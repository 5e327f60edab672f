"""What users subclass to say what their agent does, and what it is given."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from osmosis_core.types import Message

logger = logging.getLogger(__name__)


class ArtifactsDir:
    """A directory for one rollout's files, created when it is first asked for."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def open(self) -> Path | None:
        """The existing directory, or None when there is none or it cannot be created."""
        if self._path is not None:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                logger.warning("artifacts directory %s cannot be created: %s", self._path, error)
                self._path = None
        return self._path


class AgentWorkflowContext[TConfig]:
    """What `AgentWorkflow.run()` is given; all of it is the rollout's own copy."""

    __slots__ = ("_artifacts", "config", "metadata", "prompt")

    def __init__(
        self,
        prompt: list[Message],
        config: TConfig | None = None,
        metadata: dict[str, Any] | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        self.prompt = prompt
        """OpenAI chat messages of the dataset row."""
        self.config = config
        """The workflow's config, or None when none was given."""
        self.metadata = metadata
        """The row's metadata, or None."""
        self._artifacts = ArtifactsDir(artifacts_dir)

    @property
    def artifacts_dir(self) -> Path | None:
        """A directory of this rollout's own for files worth keeping; None without a place."""
        return self._artifacts.open()


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
        raise NotImplementedError
