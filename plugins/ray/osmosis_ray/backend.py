"""Run rollouts on the workers of a Ray cluster."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, cast

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    BackendError,
    ConcurrencyLimiter,
    ConfigError,
    ExecutionResult,
    Grader,
    GraderConfig,
    RolloutError,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.errors import describe
from osmosis_core.execution import RolloutCancelled, late_text
from osmosis_ray.actor import RolloutWorker
from osmosis_ray.artifacts import pack, unpack
from osmosis_ray.cluster import Cluster, misfit, total_cpus
from osmosis_ray.shipment import pack_program
from osmosis_ray.untyped import cloudpickle, ray
from osmosis_ray.workers import Shape, Worker, Workers, reason, shape_of

_LOST = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
_CONTROL_CALLS = 16
_PER_WORKER = 16
_CPU = {"CPU": 1.0}
_VALIDATION = RolloutErrorCategory.VALIDATION_ERROR


class _WorkerLost(Exception):
    """A worker went away with a phase of a rollout; the text says why."""


class RayBackend(PlacedBackend):
    """Runs rollouts in the worker processes of a Ray cluster, many in each.

    Args:
        workflow: see `LocalBackend`, as for all arguments that are not named here.
        address: `"host:port"` of a cluster that this machine is a node of, or `"auto"`; by default
            that of `RAY_ADDRESS`, else a cluster of this process's own. A connection that the
            process has already is used, and kept.
        num_workers: workers, which are processes; by default as many as the cluster has CPUs for,
            and never more than rollouts may run at once.
        resources: what each worker reserves on its node, `{"CPU": 1}` by default: `CPU`, `GPU`,
            `memory` (bytes), or names of the cluster's own. A request whose `extra_fields` have
            `ray_resources` runs in workers that reserve those.
        runtime_env: Ray's description of what workers need (`working_dir`, `pip`, `env_vars`).
        max_concurrent_per_worker: rollouts at once in each; by default the cap on all is spread,
            and without a cap 16 run in each.
        max_restarts: how often a workflow or grading whose worker was lost is run anew elsewhere.
            What it had asked the policy before is not in its samples.
        placement_timeout_sec: how long rollouts wait while no node could ever host a worker.
        grace_sec: how long a phase may go on after its deadline or cancel; then its worker is
            killed and replaced.
        max_artifacts_bytes: what one phase may bring back; further files are left out.

    Raises:
        ConfigError: an argument is wrong, no cluster answers, the cluster that was started has not
            what a worker reserves, or the program cannot be sent.
    """

    is_elsewhere = True

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        address: str | None = None,
        num_workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        max_concurrent_per_worker: int | None = None,
        max_restarts: int = 2,
        placement_timeout_sec: float = 60.0,
        grace_sec: float = 6.0,
        max_artifacts_bytes: int = 256 * 2**20,
        max_concurrent: int | None = None,
        max_queued: int | None = None,
        artifacts_root: Path | str | None = None,
    ) -> None:
        super().__init__(
            workflow=workflow,
            workflow_config=workflow_config,
            grader=grader,
            grader_config=grader_config,
            max_concurrent=max_concurrent,
            max_queued=max_queued,
            artifacts_root=artifacts_root,
        )
        _at_least(0, max_restarts=max_restarts)
        self._max_restarts = max_restarts
        self._grace_sec = grace_sec
        self._artifacts_limit = max_artifacts_bytes
        self._shape = _checked_shape("resources", _CPU if resources is None else resources)
        self._keys = itertools.count()
        self._shipment = pack_program(self.program)
        _at_least(1, num_workers=num_workers, max_concurrent_per_worker=max_concurrent_per_worker)
        self._cluster = Cluster(address, runtime_env)
        try:
            if self._cluster.is_local and (why := misfit(dict(self._shape))):
                raise ConfigError(why)
            size = num_workers or self._workers_that_fit()
        except BaseException:
            self._cluster.release()
            raise
        has_cap = max_concurrent is not None or self.program.workflow_config is not None
        cap = self._limiter.max_concurrent if has_cap else None
        size = min(size, cap or size)
        per_worker = max_concurrent_per_worker or (ceil(cap / size) if cap else _PER_WORKER)
        most = size * per_worker
        self._limiter = ConcurrencyLimiter(min(cap or most, most))
        self._workers = Workers(self._create_actor, size, per_worker, placement_timeout_sec)

    def _workers_that_fit(self) -> int:
        return max(1, int(total_cpus() / (dict(self._shape).get("CPU") or 1.0)))

    def _create_actor(self, shape: Shape) -> Any:
        wanted = dict(shape)
        options: dict[str, Any] = {
            "num_cpus": wanted.pop("CPU", 0.0),
            "num_gpus": wanted.pop("GPU", 0.0),
            "memory": wanted.pop("memory", None),
            "resources": wanted,
            "runtime_env": self._cluster.actor_env,
            "scheduling_strategy": "SPREAD",
            "max_concurrency": self._workers.per_worker + _CONTROL_CALLS,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        return ray.remote(**options)(RolloutWorker).remote(self._shipment, self._artifacts_limit)

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run it in a worker; when that is lost, run it anew in another one."""
        shape = self._shape_for(run)
        for lost in itertools.count():
            worker = await self._acquire(run, phase, shape)
            try:
                spent_sec = time.monotonic() - run.submitted_at
                result = await self._run_on(worker, run, replace(phase, spent_sec=spent_sec))
            except _WorkerLost as error:
                self._workers.discard(worker)
                self._check_again(run, phase, lost, error)
            else:
                extra = {"restarts": lost} if lost else {}
                return replace(result, extra_fields={**result.extra_fields, **extra})
            finally:
                self._workers.release(worker)
        raise AssertionError

    def _shape_for(self, run: Run) -> Shape:
        wanted = (run.request.extra_fields or {}).get("ray_resources")
        if wanted is None:
            return self._shape
        try:
            return _checked_shape("extra_fields['ray_resources']", wanted)
        except ConfigError as error:
            raise BackendError(str(error), category=_VALIDATION) from error

    async def _acquire(self, run: Run, phase: Phase, shape: Shape) -> Worker:
        worker, status = None, run.status
        timeout_sec = run.request.agent_timeout_sec if phase.samples is None else None
        deadline = None if timeout_sec is None else run.submitted_at + timeout_sec
        late = late_text("workflow", timeout_sec, timeout_sec or 0.0)
        if phase.samples is None:
            run.status = RolloutStatus.QUEUED
        try:
            async with run.cutoff.until(deadline, f"{late}; no Ray worker was free"):
                worker = await self._workers.acquire(shape)
        except BaseException:
            if worker is not None:
                self._workers.release(worker)
            raise
        finally:
            run.status = status
        return worker

    def _check_again(self, run: Run, phase: Phase, lost: int, error: _WorkerLost) -> None:
        """Raise unless it can be run anew."""
        if run.cutoff.cancelled:
            raise RolloutCancelled from error
        if lost >= self._max_restarts:
            what = "the workflow" if phase.samples is None else "grading"
            times = "" if lost == 0 else f", after {lost} restart{'s' * (lost > 1)}"
            raise BackendError(f"{what} was not finished{times}: {error}") from error

    async def _run_on(self, worker: Worker, run: Run, phase: Phase) -> ExecutionResult:
        assert phase.artifacts_dir is not None
        key, call = next(self._keys), await self._packed(phase)
        if run.cutoff.cancelled:
            raise RolloutCancelled
        future = _followed(worker.actor.run.remote(key, *call))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience(phase)) as limit:

                def stop() -> None:
                    if not future.done():
                        worker.actor.cancel.remote(key).future()
                        with suppress(RuntimeError):  # the wait has ended already
                            limit.reschedule(loop.time() + self._grace_sec)

                run.stop = stop
                await asyncio.wait([future])
        except TimeoutError:
            self._workers.discard(worker)
            raise _overdue(run, phase) from None
        except asyncio.CancelledError:
            await self._end(worker, key, future)
            raise
        return await self._received(future, worker, phase)

    async def _packed(self, phase: Phase) -> tuple[bytes, bytes]:
        files, directory = b"", phase.artifacts_dir
        if phase.samples is not None and directory is not None and directory.exists():
            files, _ = await asyncio.to_thread(pack, directory, self._artifacts_limit)
        try:
            return cloudpickle.dumps(phase), files
        except Exception as error:  # boundary: prompts and samples hold anything
            raise BackendError(
                f"the rollout cannot be sent to a Ray worker: {describe(error)}; keep plain data "
                "in prompts, metadata and samples",
                category=_VALIDATION,
            ) from error

    def _patience(self, phase: Phase) -> float | None:
        """Seconds until the worker is taken for stuck."""
        if phase.samples is not None:
            timeout_sec = phase.request.grader_timeout_sec
            return None if timeout_sec is None else max(timeout_sec, 0.0) + self._grace_sec
        timeout_sec = phase.request.agent_timeout_sec
        return None if timeout_sec is None else timeout_sec - phase.spent_sec + self._grace_sec

    async def _end(self, worker: Worker, key: int, future: asyncio.Future[Any]) -> None:
        """End a phase whose caller is gone, before its slot is given to another one."""
        worker.actor.cancel.remote(key).future()
        try:
            await asyncio.wait([future], timeout=self._grace_sec)
        finally:
            if not future.done():
                self._workers.discard(worker)

    async def _received(
        self, future: asyncio.Future[Any], worker: Worker, phase: Phase
    ) -> ExecutionResult:
        assert phase.artifacts_dir is not None
        try:
            pickled, files = cast(tuple[bytes, bytes], future.result())
        except _LOST as error:
            text = f"its Ray worker ({worker.where}) was lost: {reason(error)}"
            raise _WorkerLost(text) from error
        except RayTaskError as error:
            raise BackendError(f"Ray worker ({worker.where}): {reason(error)}") from error
        if files:
            await asyncio.to_thread(unpack, files, phase.artifacts_dir)
        return cast(ExecutionResult, pickle.loads(pickled))

    def has_capacity(self) -> bool:
        """False when `max_queued` rollouts are waiting for a slot or a worker."""
        waiting = self._limiter.queued + self._workers.waiting
        return self._max_queued is None or waiting < self._max_queued

    def health(self) -> dict[str, Any]:
        """As `LocalBackend`, and `workers`: how many are `ready`, and how many are `starting`."""
        return {**super().health(), "workers": self._workers.counts()}

    async def shutdown(self) -> None:
        """Cancel what runs, end the workers, and stop the cluster if it was started here."""
        await super().shutdown()
        await self._workers.close(self._grace_sec)
        self._cluster.release()


def _followed(reference: Any) -> asyncio.Future[Any]:
    """The future of a call; one that nobody awaits any more fails without a word."""
    future: asyncio.Future[Any] = asyncio.wrap_future(reference.future())
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future


def _overdue(run: Run, phase: Phase) -> RolloutError:
    if run.cutoff.cancelled:
        return RolloutCancelled()
    is_workflow, request = phase.samples is None, phase.request
    timeout_sec = request.agent_timeout_sec if is_workflow else request.grader_timeout_sec
    late = late_text("workflow" if is_workflow else "grader", timeout_sec, 0.0)
    text = f"{late} and did not end then, so its Ray worker was killed"
    return RolloutError(text, category=RolloutErrorCategory.TIMEOUT)


def _at_least(least: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value!r}; give {least} or more")


def _checked_shape(name: str, resources: Any) -> Shape:
    if isinstance(resources, Mapping):
        amounts = cast(Mapping[Any, Any], resources)
        if all(isinstance(key, str) and _is_amount(value) for key, value in amounts.items()):
            return shape_of(amounts)
    raise ConfigError(f"{name} is {resources!r}; give amounts by name, such as {{'CPU': 1}}")


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value) and value >= 0
