"""Run rollouts on the workers of a Ray cluster."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, isfinite
from typing import Any, cast

from osmosis_core import (
    BackendError,
    ConcurrencyLimiter,
    ConfigError,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.execution import RolloutCancelled, late_text
from osmosis_ray.actor import RolloutWorker
from osmosis_ray.calls import Caller, WorkerLostError
from osmosis_ray.cluster import Cluster, misfit, total_cpus
from osmosis_ray.shipment import pack_program
from osmosis_ray.untyped import ray
from osmosis_ray.workers import Shape, Worker, Workers, reason, shape_of

_CONTROL_CALLS = 16
_PER_WORKER = 16
_CPU = {"CPU": 1.0}
_VALIDATION = RolloutErrorCategory.VALIDATION_ERROR


class RayBackend(PlacedBackend):
    """Runs rollouts in the worker processes of a Ray cluster, many in each.

    Keyword arguments beside those of `PlacedBackend`:

    Args:
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
        max_restarts: how often a workflow or grading whose worker was lost is run anew elsewhere;
            where the worker's process crashed, alone in a worker, since any of those in it may have
            been the reason. What it had asked the policy before is not in its samples.
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
        address: str | None = None,
        num_workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        max_concurrent_per_worker: int | None = None,
        max_restarts: int = 2,
        placement_timeout_sec: float = 60.0,
        grace_sec: float = 6.0,
        max_artifacts_bytes: int = 256 * 2**20,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        _check_counts(0, max_restarts=max_restarts, max_artifacts_bytes=max_artifacts_bytes)
        _check_counts(
            1, num_workers=num_workers, max_concurrent_per_worker=max_concurrent_per_worker
        )
        _check_amounts(grace_sec=grace_sec, placement_timeout_sec=placement_timeout_sec)
        self._max_restarts = max_restarts
        self._grace_sec = grace_sec
        self._artifacts_limit = max_artifacts_bytes
        self._shape = _checked_shape("resources", _CPU if resources is None else resources)
        self._shipment = pack_program(self.program)
        self._cluster = Cluster(address, runtime_env)
        try:
            if self._cluster.is_own and (why := misfit(dict(self._shape))):
                raise ConfigError(why)
            self._actor_class(self._shape, 1)
            size = num_workers or self._workers_that_fit()
        except BaseException:
            self._cluster.release()
            raise
        has_cap = options.get("max_concurrent") or self.program.workflow_config
        cap = self._limiter.max_concurrent if has_cap else None
        size = min(size, cap or size)
        per_worker = max_concurrent_per_worker or (ceil(cap / size) if cap else _PER_WORKER)
        most = size * per_worker
        self._limiter = ConcurrencyLimiter(min(cap or most, most))
        self._workers = Workers(self._create_actor, size, per_worker, placement_timeout_sec)
        self._caller = Caller(self._workers.discard, grace_sec, max_artifacts_bytes)

    def _workers_that_fit(self) -> int:
        return max(1, int(total_cpus() / (dict(self._shape).get("CPU") or 1.0)))

    def _create_actor(self, shape: Shape) -> Any:
        kind = self._actor_class(shape, self._workers.per_worker + _CONTROL_CALLS)
        try:
            return kind.remote(self._shipment, self._artifacts_limit)
        except Exception as error:  # boundary: Ray has rules of its own for amounts
            raise BackendError(f"Ray refuses to start a worker: {reason(error)}") from error

    def _actor_class(self, shape: Shape, calls: int) -> Any:
        wanted = dict(shape)
        options: dict[str, Any] = {
            "num_cpus": wanted.pop("CPU", 0.0),
            "num_gpus": wanted.pop("GPU", 0.0),
            "memory": wanted.pop("memory", None),
            "resources": wanted,
            "runtime_env": self._cluster.actor_env,
            "scheduling_strategy": "SPREAD",
            "max_concurrency": calls,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        try:
            return ray.remote(**options)(RolloutWorker)
        except Exception as error:  # boundary: what a runtime_env may hold depends on Ray
            raise ConfigError(f"Ray refuses the workers: {reason(error)}") from error

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run it in a worker; when that is lost, run it anew in another one."""
        shape, alone = self._shape_for(run), False
        for restarts in itertools.count():
            try:
                result = await self._attempt(run, phase, shape, alone=alone)
            except WorkerLostError as error:
                self._check_again(run, phase, restarts, error, alone=alone)
                alone = alone or error.is_crash
            else:
                extra = {"restarts": restarts} if restarts else {}
                return replace(result, extra_fields={**result.extra_fields, **extra})
        raise AssertionError

    async def _attempt(
        self, run: Run, phase: Phase, shape: Shape, *, alone: bool
    ) -> ExecutionResult:
        worker = await self._acquire(run, phase, shape, alone=alone)
        try:
            spent_sec = time.monotonic() - run.submitted_at
            return await self._caller.run(worker, run, replace(phase, spent_sec=spent_sec))
        finally:
            self._workers.release(worker, alone=alone)

    def _shape_for(self, run: Run) -> Shape:
        wanted = (run.request.extra_fields or {}).get("ray_resources")
        if wanted is None:
            return self._shape
        try:
            return _checked_shape("extra_fields['ray_resources']", wanted)
        except ConfigError as error:
            raise BackendError(str(error), category=_VALIDATION) from error

    async def _acquire(self, run: Run, phase: Phase, shape: Shape, *, alone: bool) -> Worker:
        worker, status = None, run.status
        timeout_sec = run.request.agent_timeout_sec if phase.samples is None else None
        deadline = None if timeout_sec is None else run.submitted_at + timeout_sec
        late = late_text("workflow", timeout_sec, timeout_sec or 0.0)
        if phase.samples is None:
            run.status = RolloutStatus.QUEUED
        try:
            async with run.cutoff.until(deadline, f"{late}; no Ray worker was free"):
                worker = await self._workers.acquire(shape, alone=alone)
        except BaseException:
            if worker is not None:
                self._workers.release(worker, alone=alone)
            raise
        finally:
            run.status = status
        return worker

    def _check_again(
        self, run: Run, phase: Phase, restarts: int, error: WorkerLostError, *, alone: bool
    ) -> None:
        """Raise unless it can be run anew."""
        if run.cutoff.cancelled:
            raise RolloutCancelled from error
        if restarts >= self._max_restarts:
            what = "the workflow" if phase.samples is None else "grading"
            times = "" if restarts == 0 else f", after {restarts} restart{'s' * (restarts > 1)}"
            category = RolloutErrorCategory.AGENT_ERROR if alone and error.is_crash else None
            text = f"{what} was not finished{times}: {error}"
            raise BackendError(text, category=category) from error

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


def _check_counts(least: int, **numbers: object) -> None:
    for name, number in numbers.items():
        if number is not None and not (type(number) is int and number >= least):
            mend = f"give a whole number of at least {least}"
            raise ConfigError(f"{name} is {number!r}; {mend}")


def _check_amounts(**numbers: object) -> None:
    for name, number in numbers.items():
        if type(number) not in (int, float) or not cast(float, number) > 0:
            raise ConfigError(f"{name} is {number!r}; give a number above 0")


def _checked_shape(name: str, resources: Any) -> Shape:
    if isinstance(resources, Mapping):
        amounts = cast(Mapping[Any, Any], resources)
        if all(isinstance(key, str) and _is_amount(value) for key, value in amounts.items()):
            return shape_of(amounts)
    raise ConfigError(f"{name} is {resources!r}; give amounts by name, such as {{'CPU': 1}}")


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value) and value >= 0
