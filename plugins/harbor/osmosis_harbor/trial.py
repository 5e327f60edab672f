"""A Harbor trial that stays open while the phases of a rollout run on the host."""

# pyright: reportMissingTypeStubs=false

import asyncio
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.trial.config import (
    AgentConfig,
    EnvironmentConfig,
    TaskConfig,
    TrialConfig,
    VerifierConfig,
)
from harbor.models.trial.result import TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.trial.queue import TrialQueue
from harbor.verifier.base import BaseVerifier

from osmosis_core import BackendError
from osmosis_harbor.docker import last_line

logger = logging.getLogger(__name__)

FOREVER_SEC = 10.0 * 365 * 24 * 3600
"""For Harbor's own deadlines: those of a rollout are kept by its phases."""

_CLOSING_SEC = 60.0
_sessions: dict[str, "Session"] = {}


class HeldAgent(BaseAgent):
    """Hands the environment over and waits for the workflow to end."""

    def __init__(self, *args: Any, session: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        self._session = _sessions[session]

    @staticmethod
    def name() -> str:
        """What Harbor writes into its records."""
        return "osmosis"

    def version(self) -> str | None:
        """None: it is the workflow's business."""
        return None

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing to install."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        """Wait until the workflow has ended."""
        await self._session.hold_agent(environment)
        context.metadata = {"rollout_id": self._session.rollout_id}


class HeldVerifier(BaseVerifier):
    """Waits until the rollout is graded, and tells Harbor its reward."""

    def __init__(self, *, session: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._session = _sessions[session]

    async def verify(self) -> VerifierResult:
        """The rewards of the rollout; none when it was not graded."""
        return VerifierResult(rewards=await self._session.hold_verifier())


class Session:
    """One trial from its start to the removal of its container; used on one event loop.

    Args:
        rollout_id: for Harbor's records.
        directory: of this rollout's own; it is removed at the end.
    """

    def __init__(self, rollout_id: str, directory: Path) -> None:
        self.rollout_id = rollout_id
        self.key = uuid.uuid4().hex[:16]
        self.directory = directory / self.key
        self.directory.mkdir(mode=0o700, parents=True)
        self.task_dir, self.sockets = self.directory / "task", self.directory / "run"
        self.sockets.mkdir()
        self.sockets.chmod(0o755)  # a container's user is anybody; the way here is not open
        self.rewards: dict[str, float] = {}
        self._task: asyncio.Task[TrialResult] | None = None
        self._environment: asyncio.Future[BaseEnvironment] = asyncio.Future()
        self._workflow_ended, self._verifying = asyncio.Event(), asyncio.Event()
        self._graded = asyncio.Event()

    async def start(
        self,
        queue: TrialQueue,
        environment: EnvironmentConfig,
        trial_name: str,
        trials_dir: Path,
    ) -> BaseEnvironment:
        """Submit the trial and return its environment once that is up.

        Raises:
            BackendError: Harbor ended the trial before.
        """
        _sessions[self.key] = self
        held = {"session": self.key}
        config = TrialConfig(
            task=TaskConfig(path=self.task_dir),
            trial_name=trial_name,
            trials_dir=trials_dir,
            environment=environment,
            agent=AgentConfig(
                import_path=f"{__name__}:{HeldAgent.__name__}",
                kwargs=held,
                override_timeout_sec=FOREVER_SEC,
            ),
            verifier=VerifierConfig(
                import_path=f"{__name__}:{HeldVerifier.__name__}",
                kwargs=held,
                override_timeout_sec=FOREVER_SEC,
            ),
        )
        self._task = asyncio.create_task(_submitted(queue, config))
        self._task.add_done_callback(self._ended)
        await self._unless_ended(self._environment, self._task)
        return self._environment.result()

    async def begin_grading(self) -> None:
        """Tell Harbor that the agent is done; returns when it verifies.

        Raises:
            BackendError: Harbor ended the trial before.
        """
        assert self._task is not None
        self._workflow_ended.set()
        verifying = asyncio.ensure_future(self._verifying.wait())
        try:
            await self._unless_ended(verifying, self._task)
        finally:
            verifying.cancel()

    async def close(self, *, was_good: bool) -> None:
        """End the trial, which removes its container; one that was not good ends at once."""
        if self._task is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        self._workflow_ended.set()
        self._graded.set()
        if not was_good:
            self._task.cancel()
        _, pending = await asyncio.wait({self._task}, timeout=_CLOSING_SEC)
        for task in pending:
            logger.warning("trial of rollout %r does not end", self.rollout_id)
            task.cancel()

    async def hold_agent(self, environment: BaseEnvironment) -> None:
        """Called by Harbor: the container is up."""
        self._environment.set_result(environment)
        await self._workflow_ended.wait()

    async def hold_verifier(self) -> dict[str, float | int]:
        """Called by Harbor: the agent phase is over."""
        self._verifying.set()
        await self._graded.wait()
        return dict(self.rewards)

    async def _unless_ended(
        self, awaited: asyncio.Future[Any], task: asyncio.Task[TrialResult]
    ) -> None:
        await asyncio.wait({awaited, task}, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            return
        try:
            info = task.result().exception_info
            why = info.exception_message if info else "it says no reason"
        except Exception as error:  # boundary: Harbor may raise anything
            raise BackendError(f"Harbor ended the trial: {_said(str(error))}") from error
        raise BackendError(f"Harbor ended the trial: {_said(why)}")

    def _ended(self, task: asyncio.Task[TrialResult]) -> None:
        del _sessions[self.key]
        shutil.rmtree(self.directory, ignore_errors=True)
        _forget_loggers(self.key)
        if not task.cancelled():
            task.exception()  # it was told by _unless_ended, or came too late to matter


async def _submitted(queue: TrialQueue, config: TrialConfig) -> TrialResult:
    return await queue.submit(config)


def _forget_loggers(key: str) -> None:
    """Harbor names loggers after trials, and `logging` keeps a logger for ever."""
    known = logging.Logger.manager.loggerDict
    gone = [known.pop(name) for name in list(known) if key in name]
    for holder in list(known.values()):
        if isinstance(holder, logging.PlaceHolder):
            for logger in gone:
                holder.loggerMap.pop(logger, None)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _said(text: str) -> str:
    """Of what a failed compose command printed, the last line, which is what went wrong."""
    printed = text.partition("Stdout:")[2] or text
    return last_line(printed.replace("Stderr: None", "").rstrip(". \n"))
