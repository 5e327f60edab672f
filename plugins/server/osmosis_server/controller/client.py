"""The controller: give it servers and a policy, ask for rollouts, get their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from typing import Self

from osmosis_core import (
    BackendError,
    ConfigError,
    ExecutionRequest,
    ExecutionResult,
    RolloutContext,
    RolloutError,
    RolloutStatus,
    WireOptions,
    get_rollout_context,
)
from osmosis_core.backend import CancelDisposition, select_rollouts
from osmosis_core.errors import nearest
from osmosis_core.execution import failed
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.plugins import get_plugins
from osmosis_server.controller.flow import flow
from osmosis_server.controller.limits import ControllerLimits, Listen
from osmosis_server.controller.listener import Listener
from osmosis_server.controller.modes import Mode, ProtocolName, Wire
from osmosis_server.controller.multi_sample import MultiSample
from osmosis_server.controller.operations import cancel_at, health_of, is_well, switch
from osmosis_server.controller.polling import Polling
from osmosis_server.controller.receiver import Receiver
from osmosis_server.controller.rollouts import Keys, Record, Registry, Rollout, result_of
from osmosis_server.controller.servers import Json, Pool, Server, open_session
from osmosis_server.controller.single_sample import SingleSample

type Policy = str | PolicyEndpoint | AbstractAsyncContextManager[PolicyEndpoint]
"""A registered policy by name (`demo`), an endpoint, or what yields one (`litellm_policy(...)`)."""

_MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Polling, SingleSample, MultiSample)}
_NO_KEY = "-"
"""Sent to a policy without a key, so that none is taken from the environment."""
_DEFAULT_LIMITS = ControllerLimits()
_DEFAULT_LISTEN = Listen()
_DEFAULT_WIRE = WireOptions()
_CLOSE_SEC = 5.0


class ControllerClient:
    """Drives rollouts on rollout servers, and is the policy endpoint of their agents.

    `async with ControllerClient("http://127.0.0.1:9000", "demo") as client:` starts one listener,
    for callbacks and for policy calls; every call is recorded in the sample that it belongs to.

    Args:
        servers: URL of one rollout server or of several; each rollout goes to the least loaded.
        policy: where agents' calls go; by default the active `RolloutContext`'s policy.
        protocol: `polling` (osmosis-ai 0.3.7 and later), `single-sample` (0.3.0) or
            `multi-sample` (0.2.x).
        api_key: the servers' key.
        limits: how many rollouts at once, and how long to wait for what.
        listen: where to listen, and how servers get there.
        wire: how the policy is asked.
        record: awaited with each result before its callback is acknowledged and before it is
            returned; in the callback protocols a server repeats what could not be recorded.
        reports_calls: tell servers token counts, ids and log-probs of the calls when their
            callbacks are acknowledged, for their trajectories (protocol.md 2.8).

    Raises:
        ConfigError: an argument is unusable.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        policy: Policy | None = None,
        *,
        protocol: ProtocolName = "polling",
        api_key: str | None = None,
        limits: ControllerLimits = _DEFAULT_LIMITS,
        listen: Listen = _DEFAULT_LISTEN,
        wire: WireOptions = _DEFAULT_WIRE,
        record: Record | None = None,
        reports_calls: bool = False,
    ) -> None:
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls:
            raise ConfigError("no rollout server was given; give one URL or more")
        if protocol not in _MODES:
            there = ", ".join(_MODES)
            raise ConfigError(
                f"no protocol {protocol!r}; there is {there}{nearest(protocol, _MODES)}"
            )
        self.limits = limits
        self._pool = Pool([Server(url, api_key) for url in urls])
        listen.check(urls)
        self._policy, self._wire, self._listen = policy, wire, listen
        self._record, self._reports_calls = record, reports_calls
        self._kind = _MODES[protocol]
        self._registry = Registry(Keys())
        self._stack = AsyncExitStack()
        self._mode: Mode | None = None
        self._context: RolloutContext | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._policy is not None:
                endpoint = await stack.enter_async_context(_endpoint(self._policy))
                self._context = RolloutContext(
                    endpoint.base_url,
                    endpoint.api_key or _NO_KEY,
                    model=endpoint.model,
                    wire=self._wire,
                )
            session = await stack.enter_async_context(open_session())
            receiver = Receiver(self._registry, reports_calls=self._reports_calls)
            listener = Listener(self._registry, receiver, self._listen)
            stack.push_async_callback(listener.stop)
            wire = Wire(session, listener, self._registry.keys, self._pool, self.limits)
            self._mode = receiver.mode = self._kind(wire)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Cancel what is under way, and stop listening."""
        await self.cancel(all=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SEC):
                while list(self._registry):  # noqa: ASYNC110 - their callers take them out
                    await asyncio.sleep(0.01)
        self._mode = None
        await self._stack.aclose()

    async def rollout(self, request: ExecutionRequest) -> ExecutionResult:
        """Run one rollout on a server and return its result; a failed one is a result too.

        Cancelling the caller's task cancels the rollout on its server.

        Raises:
            BackendError: a rollout with this id is under way here.
        """
        return result_of(await self.run(request))

    async def run(self, request: ExecutionRequest) -> Rollout:
        """As `rollout`, with what is known about how the workflow ended."""
        mode = self._opened()
        context = self._context or get_rollout_context() or RolloutContext()
        rollout = Rollout(request, context.for_rollout(request.id), self._record)
        self._registry.open(rollout)
        try:
            result = await self._drive(mode, rollout)
            await mode.wire.listener.end_calls(rollout)
            await rollout.settle(result)
            return rollout
        finally:
            await self._leave(mode, rollout)

    async def rollouts(
        self, requests: Iterable[ExecutionRequest] | AsyncIterable[ExecutionRequest]
    ) -> AsyncGenerator[tuple[ExecutionRequest, ExecutionResult]]:
        """Run rollouts, `limits.max_in_flight` at once, and yield each result when it is there.

        The next request is taken when a result has been taken, so `requests` may be of any
        length. Leaving early cancels what is under way (`contextlib.aclosing` leaves at once).
        What `requests` raises, or the record, is raised here.
        """
        async with aclosing(flow(requests, self.limits.max_in_flight, self._result)) as results:
            async for pair in results:
                yield pair

    async def cancel(
        self, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        """Cancel by exactly one selector, here and on the servers; results say `cancelled`.

        Raises:
            ValueError: not exactly one selector was given.
        """
        known = [rollout.request.id for rollout in self._registry]
        dispositions: dict[str, CancelDisposition] = {}
        for rollout_id in select_rollouts(known, ids, prefix, all):
            rollout = self._registry.get(rollout_id)
            if rollout is None or rollout.result is not None or rollout.cutoff.cancelled:
                dispositions[rollout_id] = "not_found"
                continue
            is_queued = rollout.status is RolloutStatus.QUEUED
            dispositions[rollout_id] = "cancelled_queued" if is_queued else "cancelled_running"
            rollout.cutoff.cancel()
        return dispositions

    def status(self, rollout_id: str) -> RolloutStatus | None:
        """Where a rollout is; None when it is not under way here."""
        rollout = self._registry.get(rollout_id)
        return rollout.status if rollout else None

    async def health(self) -> dict[str, Json]:
        """What each server says of itself, by URL; `{"status": "unreachable", ...}` if nothing."""
        wire = self._opened().wire
        answers = [health_of(wire.session, server) for server in self._pool.servers]
        return {
            server.url: health
            for server, health in zip(
                self._pool.servers, await asyncio.gather(*answers), strict=True
            )
        }

    async def check(self) -> None:
        """Ask every server for its health; raises ConfigError when none of them is well."""
        health = await self.health()
        if not any(is_well(one) for one in health.values()):
            told = "; ".join(f"{url}: {one.get('error') or one}" for url, one in health.items())
            raise ConfigError(f"no rollout server is ready, so nothing was started: {told}")

    async def pause(self) -> None:
        """Let no server start anything new, as for an update of the policy's weights.

        Raises:
            BackendError: a server did not; the others did.
        """
        await switch(self._opened().wire, "pause")

    async def resume(self) -> None:
        """Let all servers go on; raises as `pause`."""
        await switch(self._opened().wire, "resume")

    def _opened(self) -> Mode:
        if self._mode is None:
            raise BackendError("the client is not open; use `async with ControllerClient(...)`")
        return self._mode

    async def _result(self, request: ExecutionRequest) -> ExecutionResult:
        try:
            return await self.rollout(request)
        except BackendError as error:
            return failed(error, {})

    async def _drive(self, mode: Mode, rollout: Rollout) -> ExecutionResult:
        patience_sec = self.limits.admission_timeout_sec
        limit_sec = self.limits.rollout_sec(rollout.request)
        try:
            late = f"no rollout server took it within {patience_sec} s"
            async with rollout.cutoff.until(_after(patience_sec), late):
                await mode.place(rollout)
            late = f"no result within {limit_sec:g} s of its acceptance"
            async with rollout.cutoff.until(_after(limit_sec), late):
                result = await mode.follow(rollout)
        except RolloutError as error:
            return failed(error, {})
        rollout.is_over = True
        return result

    async def _leave(self, mode: Mode, rollout: Rollout) -> None:
        """Leave nothing of it behind, here or on its server."""
        try:
            await mode.wire.listener.end_calls(rollout)
            if rollout.is_left_behind and rollout.server is not None:
                await cancel_at(mode.wire.session, rollout.server, rollout.request.id)
        finally:
            if rollout.server is not None:
                rollout.server.load -= 1
            self._registry.close(rollout)


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


@asynccontextmanager
async def _endpoint(policy: Policy) -> AsyncGenerator[PolicyEndpoint]:
    if isinstance(policy, PolicyEndpoint):
        yield policy
        return
    async with get_plugins().policy(policy)() if isinstance(policy, str) else policy as endpoint:
        yield endpoint
