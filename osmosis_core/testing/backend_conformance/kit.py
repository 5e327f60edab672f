"""What the suite stands on: running rollouts and keeping what they report."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_core.backend import ExecutionBackend
from osmosis_core.config import AgentWorkflowConfig, GraderConfig, RetryPolicy
from osmosis_core.context import RolloutContext
from osmosis_core.grader import Grader
from osmosis_core.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_core.workflow import AgentWorkflow

FAST_RETRY = RetryPolicy(max_attempts=2, base_delay_sec=0)
CATEGORIES = {
    "TimeoutError": RolloutErrorCategory.TIMEOUT,
    "ValueError": RolloutErrorCategory.VALIDATION_ERROR,
    "TypeError": RolloutErrorCategory.VALIDATION_ERROR,
    "AssertionError": RolloutErrorCategory.AGENT_ERROR,
    "RuntimeError": RolloutErrorCategory.AGENT_ERROR,
    "SystemExit": RolloutErrorCategory.AGENT_ERROR,
}


class CallbackRaised(Exception):
    """Raised by the callbacks of this suite that are told to raise."""


@dataclass(slots=True)
class Reported:
    """What one rollout told its callbacks; `raising` names the one that raises."""

    raising: str = ""
    order: list[str] = field(default_factory=list[str])
    results: list[ExecutionResult] = field(default_factory=list[ExecutionResult])

    async def on_workflow_complete(self, result: ExecutionResult, /) -> None:
        """Take the workflow's result."""
        await self._take("workflow", result)

    async def on_grader_complete(self, result: ExecutionResult, /) -> None:
        """Take the grader's result."""
        await self._take("grader", result)

    async def _take(self, phase: str, result: ExecutionResult) -> None:
        self.results.append(result)
        self.order.append(f"{phase} begins")
        await asyncio.sleep(0)
        self.order.append(f"{phase} ends")
        if phase == self.raising:
            raise CallbackRaised(phase)

    @property
    def workflow(self) -> ExecutionResult:
        """The first result."""
        return self.results[0]

    @property
    def grader(self) -> ExecutionResult:
        """The second result."""
        return self.results[1]


def request(
    rollout_id: str = "r-1", *, label: str | None = "42", **fields: Any
) -> ExecutionRequest:
    """A rollout with a prompt and a label."""
    return ExecutionRequest(rollout_id, [{"role": "user", "content": "6 * 7?"}], label, **fields)


async def run(backend: ExecutionBackend, request: ExecutionRequest, raising: str = "") -> Reported:
    """Run a rollout to its end with both callbacks."""
    reported = Reported(raising)
    await backend.execute(request, reported.on_workflow_complete, reported.on_grader_complete)
    return reported


async def until(condition: Callable[[], bool], patience_sec: float = 30.0) -> None:
    """Wait for something that must become true."""
    async with asyncio.timeout(patience_sec):
        while not condition():  # noqa: ASYNC110 - backends notify nobody
            await asyncio.sleep(0.002)


@asynccontextmanager
async def in_flight(
    backend: ExecutionBackend,
    *requests: ExecutionRequest,
    status: RolloutStatus = RolloutStatus.RUNNING,
) -> AsyncGenerator[list[asyncio.Task[Reported]]]:
    """Rollouts of which each has reached a status; what is left of them is cancelled after."""
    tasks = [asyncio.create_task(run(backend, request)) for request in requests]
    try:
        for one in requests:
            await until(lambda one=one: backend.rollout_status(one.id) is status)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def unreachable() -> Generator[RolloutContext]:
    """A policy URL where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with RolloutContext(url, retry=FAST_RETRY) as context:
            yield context


def said(result: ExecutionResult) -> str:
    """The last message of a rollout's one sample."""
    assert result.sample is not None, f"expected one sample, got {list(result.samples)}"
    return result.sample.messages[-1]["content"]


def rewards(result: ExecutionResult) -> list[float | None]:
    """The rewards of a result."""
    return [sample.reward for sample in result.samples.values()]


def is_empty(directory: Path) -> bool:
    """True when nothing is in the directory."""
    return not any(directory.iterdir())


def most_at_once(samples: Iterable[RolloutSample]) -> int:
    """How many runs of `TimesItself` overlapped."""
    spans = [(sample.metrics["began"], sample.metrics["ended"]) for sample in samples]
    return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)


class BackendSuite(ABC):
    """What every part of the suite builds on."""

    patience_sec: float = 60.0
    """Longest time that one test's backend may take; a guard against hanging, not a measure."""
    crowd: int = 50
    """Rollouts at once where isolation is tested; lower it where each is a process."""

    many: int = 1000
    """Executions that must not grow anything; lower it where each takes long."""

    def leftovers(self) -> set[str]:
        """What there is that a backend must not leave: child processes, as far as is known here.

        Override it to add what yours starts, such as containers.
        """
        return {
            child
            for children in Path("/proc/self/task").glob("*/children")
            for child in children.read_text().split()
        }

    @abstractmethod
    def create_backend(
        self,
        *,
        workflow: type[AgentWorkflow[Any]],
        grader: type[Grader] | None = None,
        workflow_config: AgentWorkflowConfig | None = None,
        grader_config: GraderConfig | None = None,
        **options: Any,
    ) -> ExecutionBackend:
        """A new backend with a concurrency cap of at least 2 when `workflow_config` is None.

        `options` holds `artifacts_root`, a `Path` to an empty directory (default: the backend's
        own place); a backend that cannot be told where to put artifacts ignores it.
        """

    @asynccontextmanager
    async def opened(
        self,
        workflow: type[AgentWorkflow[Any]],
        grader: type[Grader] | None = None,
        workflow_config: AgentWorkflowConfig | None = None,
    ) -> AsyncGenerator[ExecutionBackend]:
        """A backend that is shut down at the end."""
        with tempfile.TemporaryDirectory() as root:
            backend = self.create_backend(
                workflow=workflow,
                grader=grader,
                workflow_config=workflow_config,
                artifacts_root=Path(root),
            )
            try:
                async with asyncio.timeout(self.patience_sec):
                    yield backend
            finally:
                await backend.shutdown()

    async def ran(
        self,
        request: ExecutionRequest,
        workflow: type[AgentWorkflow[Any]],
        grader: type[Grader] | None = None,
        workflow_config: AgentWorkflowConfig | None = None,
    ) -> Reported:
        """What one rollout reports on a backend of its own."""
        async with self.opened(workflow, grader, workflow_config) as backend:
            return await run(backend, request)


def assert_timeout(result: ExecutionResult) -> None:
    """The result is a failure of category `timeout`."""
    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.TIMEOUT, result.err_message
