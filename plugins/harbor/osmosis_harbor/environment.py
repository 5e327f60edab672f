"""What a workflow is given of its container."""

# pyright: reportMissingTypeStubs=false

import asyncio
import contextvars
import shlex
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from osmosis_core import AgentWorkflow, AgentWorkflowContext
from osmosis_harbor import untrusted
from osmosis_harbor.untrusted import Limits

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment, ExecResult

_LIMITS = Limits()


class RolloutEnvironment:
    """The container of one rollout, as Harbor's environments are called.

    What comes out of it is hostile: downloads follow no link, leave out special files, and stop at
    a size.
    """

    def __init__(
        self, environment: "BaseEnvironment", scratch: Path, container: str | None = None
    ) -> None:
        self.harbor = environment
        """Harbor's own environment; its downloads trust the container."""
        self._scratch = scratch
        self._container = container

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> "ExecResult":
        """Run a bash command; the result has `stdout`, `stderr` and `return_code`.

        A command that outlives `timeout_sec` raises, and may go on inside until the container ends.
        """
        return await self.harbor.exec(command, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the container."""
        await self.harbor.upload_file(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory of the host into one in the container."""
        await self.exec(f"mkdir -p -- {shlex.quote(target_dir)}", user="root")
        await self.harbor.upload_dir(source_dir, target_dir)

    async def download_file(
        self, source_path: str, target_path: Path | str, limits: Limits = _LIMITS
    ) -> None:
        """Copy a regular file out of the container; the target is replaced.

        Raises:
            BackendError: it is not there, is no regular file, or exceeds the limits.
        """
        await self._download(source_path, Path(target_path), limits, is_dir=False)

    async def download_dir(
        self, source_dir: str, target_dir: Path | str, limits: Limits = _LIMITS
    ) -> None:
        """Copy the regular files below a directory out of the container.

        Directories are made for files only. Errors as `download_file`.
        """
        await self._download(source_dir, Path(target_dir), limits, is_dir=True)

    async def read_file(self, path: str, limit: int) -> bytes:
        """The bytes of a regular file in the container; errors as `download_file`."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            await self.download_file(path, Path(folder, "file"), Limits(limit))
            return untrusted.read_file(Path(folder, "file"), limit)

    async def _download(self, source: str, target: Path, limits: Limits, *, is_dir: bool) -> None:
        if self._container is not None:
            await asyncio.to_thread(
                untrusted.copy_from_container,
                self._container,
                source,
                target,
                limits,
                is_dir=is_dir,
            )
            return
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            copy = Path(folder, PurePosixPath(source).name)
            if is_dir:
                await self.harbor.download_dir(source, copy)
                untrusted.copy_tree(copy, target, limits)
            else:
                await self.harbor.download_file(source, copy)
                untrusted.copy_file(copy, target, limits)


class HarborAgentWorkflowContext[TConfig](AgentWorkflowContext[TConfig]):
    """An `AgentWorkflowContext` with the rollout's container."""

    __slots__ = ("environment",)

    environment: RolloutEnvironment
    """To run commands in, and to exchange files with."""

    @classmethod
    def of(cls, ctx: AgentWorkflowContext[TConfig], environment: RolloutEnvironment) -> Self:
        """The same context with an environment."""
        own = cls(ctx.prompt, ctx.config, ctx.metadata, ctx._artifacts_dir)
        own.environment = environment
        return own


environment_here: contextvars.ContextVar[RolloutEnvironment] = contextvars.ContextVar(
    "osmosis_harbor_environment"
)
"""The container of the rollout whose phase runs here."""


def with_environment(workflow: type[AgentWorkflow[Any]]) -> type[AgentWorkflow[Any]]:
    """The workflow, whose context has the environment of the rollout."""

    async def run(self: AgentWorkflow[Any], ctx: AgentWorkflowContext[Any]) -> Any:
        own = HarborAgentWorkflowContext[Any].of(ctx, environment_here.get())
        return await workflow.run(self, own)

    return type(workflow.__name__, (workflow,), {"run": run, "__module__": workflow.__module__})
