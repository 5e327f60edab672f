"""The backend `server`: an ExecutionBackend whose rollouts run on rollout servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from osmosis_core import (
    ConfigError,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    ResultCallback,
    RolloutStatus,
)
from osmosis_core.backend import CancelDisposition
from osmosis_core.plugins import get_plugins
from osmosis_server.controller.client import ControllerClient
from osmosis_server.controller.limits import ControllerLimits, Listen
from osmosis_server.controller.modes import ProtocolName
from osmosis_server.controller.rollouts import Rollout, result_of

_DEFAULT_LIMITS = ControllerLimits()
_DEFAULT_LISTEN = Listen()


class ServerBackend(ExecutionBackend):
    """Sends rollouts to rollout servers; their policy is that of the active `RolloutContext`.

    `servers`, `protocol`, `api_key`, `limits` and `listen` are those of `ControllerClient`;
    `max_concurrent` comes before the limits' `max_in_flight`. Workflow, grader, their configs and
    artifacts are the servers' own: what other backends are given of them is not looked at.

    Raises:
        ConfigError: no server was given, or an argument is unusable.
    """

    def __init__(
        self,
        *,
        servers: str | Sequence[str] = (),
        protocol: ProtocolName = "polling",
        api_key: str | None = None,
        limits: ControllerLimits = _DEFAULT_LIMITS,
        listen: Listen = _DEFAULT_LISTEN,
        max_concurrent: int | None = None,
        workflow: object = None,
        workflow_config: object = None,
        grader: object = None,
        grader_config: object = None,
        artifacts_root: object = None,
    ) -> None:
        if not servers:
            raise ConfigError("the backend 'server' was given no server; give --server URL")
        if max_concurrent is not None:
            limits = replace(limits, max_in_flight=max_concurrent)
        self._client = ControllerClient(
            servers, protocol=protocol, api_key=api_key, limits=limits, listen=listen
        )
        self._slots = asyncio.Semaphore(limits.max_in_flight)
        self._starting = asyncio.Lock()
        self._is_open = False

    async def start(self) -> None:
        """Listen, and see that a server is there; `execute` does it when it was not done.

        Raises:
            ConfigError: no server is ready.
        """
        async with self._starting:
            if not self._is_open:
                await self._client.__aenter__()
                self._is_open = True
                await self._client.check()

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout on a server; both results are reported when it has ended."""
        await self.start()
        if on_grader_complete is None and request.grade:
            request = replace(request, grade=False)
        with get_plugins().observed(request, self) as reported:
            async with self._slots:
                rollout = await self._client.run(request)
            workflow, result = _workflow_of(rollout), result_of(rollout)
            if not request.grade or on_grader_complete is None:
                reported(result)
                await on_workflow_complete(result)
                return
            reported(workflow)
            await on_workflow_complete(workflow)
            reported(result)
            await on_grader_complete(result)

    @property
    def max_concurrency(self) -> int:
        """How many rollouts are under way at once, on all servers together."""
        return self._client.limits.max_in_flight

    def rollout_status(self, rollout_id: str) -> RolloutStatus | None:
        """Where a rollout is; None when unknown or finished."""
        return self._client.status(rollout_id)

    async def cancel_rollouts(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector; each cancelled rollout reports status `cancelled`."""
        return await self._client.cancel(ids, prefix, all)

    async def shutdown(self) -> None:
        """Cancel what is under way, and stop listening."""
        if self._is_open:
            self._is_open = False
            await self._client.__aexit__(None, None, None)


def _workflow_of(rollout: Rollout) -> ExecutionResult:
    """How the workflow ended: as the server told, else as far as the result shows it."""
    result = result_of(rollout)
    told = rollout.workflow or result
    samples = {
        name: sample.model_copy(update={"reward": None}) for name, sample in result.samples.items()
    }
    return replace(told, samples=samples)
