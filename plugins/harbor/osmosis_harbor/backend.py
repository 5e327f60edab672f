"""Rollouts in Harbor tasks: a fresh container for each, from an image that was built before."""

# pyright: reportMissingTypeStubs=false

import asyncio
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harbor.models.trial.config import EnvironmentConfig
from harbor.trial.queue import TrialQueue

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConfigError,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderConfig,
    ResultCallback,
    RolloutStatus,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.execution import late_text
from osmosis_harbor import images
from osmosis_harbor.bundle import build_with_code
from osmosis_harbor.containers import Containers, check_containers, environment_base
from osmosis_harbor.environment import RolloutEnvironment, environment_here, with_environment
from osmosis_harbor.in_container import MOUNT, ContainerWorkflow, check_sockets
from osmosis_harbor.options import flag, number, path
from osmosis_harbor.owner import ROLLOUT_LABEL, SESSION_LABEL, state_dir, this_process
from osmosis_harbor.task import load_task
from osmosis_harbor.task_tests import tests_grader
from osmosis_harbor.trial import Session

_UNLIMITED = 1_000_000


class HarborBackend(PlacedBackend):
    """Runs every rollout with a fresh container of a Harbor task.

    The workflow drives the container from the host, as `ctx.environment`, or runs inside it. The
    rollout is graded by the task's own `tests/test.sh` if there is one, else by `grader` on the
    host; neither tests nor label reach the container before the agent has ended.

    Args:
        orchestrator: Harbor's `TrialQueue`; by default one of this backend's own.
        task_dir: a Harbor task: `task.toml`, `environment/`, perhaps `tests/test.sh`.
        user_code_dir: where import paths are looked for; for workflows inside the container, what
            is installed there: a project, or a directory of modules.
        workflow: AgentWorkflow subclass, or `"module:attr"`, which the host does not import when
            it runs inside the container.
        workflow_config, grader, grader_config: as `LocalBackend`.
        trials_dir: where Harbor's trial directories are kept; by default nowhere.
        custom_tests_dir: tests that come before the task's.
        environment_config: Harbor's; it is copied.
        prebuild_local_image: build the image now, under a name that its content gives it; by
            default for docker. False leaves it to Harbor, once for every rollout.
        symlink_environment: link to the task's environment instead of copying it, where Harbor
            builds or composes it; by default for docker.
        cleanup_successful_trials: keep only the trial directories of rollouts that failed.
        runs_in: where the workflow runs: `host` or `container`.
        environment: `docker` (Harbor's, on compose), `light` (ours, on plain docker), or
            `module:Class` of any Harbor environment.
        network: of the container: `none`, `bridge` or `host`.
        cpus, memory_mb: limits that come before the task's.
        pids_limit: processes in the container.
        max_concurrent, max_queued, artifacts_root: as `LocalBackend`.

    Raises:
        ConfigError: an argument is wrong, or Docker is missing.
        BackendError: the image was not built. On a running event loop it is built in a thread,
            and the first rollouts, or `prewarm()`, say so.
    """

    def __init__(
        self,
        *,
        orchestrator: TrialQueue | None = None,
        task_dir: Path | str,
        user_code_dir: Path | str | None = None,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        trials_dir: Path | str | None = None,
        custom_tests_dir: Path | str | None = None,
        environment_config: EnvironmentConfig | None = None,
        prebuild_local_image: bool | str | None = None,
        symlink_environment: bool | str | None = None,
        cleanup_successful_trials: bool | str = True,
        runs_in: str = "host",
        environment: str = "docker",
        network: str = "none",
        cpus: int | str | None = None,
        memory_mb: int | str | None = None,
        pids_limit: int | str | None = None,
        max_concurrent: int | str | None = None,
        max_queued: int | str | None = None,
        artifacts_root: Path | str | None = None,
    ) -> None:
        if runs_in not in ("host", "container"):
            raise ConfigError(f"runs_in is {runs_in!r}; give 'host' or 'container'")
        self._code_dir, is_inside = path(user_code_dir), runs_in == "container"
        if self._code_dir is not None and str(self._code_dir) not in sys.path:
            sys.path.insert(0, str(self._code_dir))
        is_unseen = is_inside and isinstance(workflow, str)
        super().__init__(
            workflow=_OnlyInside if is_unseen else workflow,
            workflow_config=None
            if is_unseen and isinstance(workflow_config, str)
            else workflow_config,
            grader=grader,
            grader_config=grader_config,
            max_concurrent=number("max_concurrent", max_concurrent),
            max_queued=number("max_queued", max_queued),
            artifacts_root=artifacts_root,
        )
        self._queue = orchestrator or TrialQueue(self.max_concurrency or _UNLIMITED)
        self._task = load_task(Path(task_dir).expanduser().resolve(), path(custom_tests_dir))
        limits = number("cpus", cpus), number("memory_mb", memory_mb)
        base = environment_base(environment, environment_config, *limits)
        self._containers = Containers(base, network, number("pids_limit", pids_limit) or 512)
        is_docker = self._containers.is_docker
        self._is_prebuilt = flag("prebuild_local_image", prebuild_local_image, is_docker)
        self._symlinks = flag("symlink_environment", symlink_environment, is_docker)
        self._trials_dir = path(trials_dir)
        self._keeps_good = not flag("cleanup_successful_trials", cleanup_successful_trials, True)
        self._inside = ContainerWorkflow.of(workflow, workflow_config) if is_inside else None
        check_containers(self._containers, self._task, self._is_prebuilt)
        self._owner = this_process(state_dir())
        if is_inside:
            check_sockets(self._owner.directory, self._code_dir, self._is_prebuilt)
        self._sessions: dict[str, Session] = {}
        self._environments: dict[str, RolloutEnvironment] = {}
        self._closing: set[asyncio.Task[None]] = set()
        if self._task.tests_dir is not None:
            tests = tests_grader(
                self._task.tests_dir, self._task.tests_env(), self._task.tests_user
            )
            self.program = replace(self.program, grader=tests, grader_config=None)
        self._driving = replace(self.program, workflow=with_environment(self.program.workflow))
        self._image = images.prepared(self._prepare)

    def _prepare(self) -> str | None:
        """Reap what the dead left, and build; returns the image of every rollout."""
        if not self._containers.is_docker:
            return None
        self._owner.reap()
        if not self._is_prebuilt:
            return None
        image = self._task.prebuild(self._owner.home)
        if image is None or self._inside is None or self._code_dir is None:
            return image
        return build_with_code(image, self._code_dir, self._owner.home)

    async def prewarm(self) -> None:
        """Wait for the image.

        Raises:
            BackendError: it was not built.
        """
        await asyncio.shield(asyncio.wrap_future(self._image))

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout; returns when its container is gone."""
        if self._task.tests_dir is not None and request.label is request.metadata is None:
            request = replace(request, metadata={})  # the tests need neither
        is_running, was_good = request.id in self._runs, False

        async def worked(result: ExecutionResult) -> None:
            nonlocal was_good
            was_good = result.status is RolloutStatus.SUCCESS
            await on_workflow_complete(result)

        async def graded(result: ExecutionResult) -> None:
            nonlocal was_good
            was_good = was_good and result.status is RolloutStatus.SUCCESS
            assert on_grader_complete is not None
            await on_grader_complete(result)

        try:
            await super().execute(request, worked, graded if on_grader_complete else None)
        finally:
            if not is_running and (session := self._sessions.pop(request.id, None)):
                self._environments.pop(request.id, None)
                closing = asyncio.create_task(self._close(session, was_good))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                await asyncio.shield(closing)

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run a phase beside the rollout's container, or inside it."""
        request = self._with_deadlines(run.request)
        if phase.samples is None:
            environment = await self._opened(run, request)
        else:
            environment = self._environments[run.request.id]
            async with run.cutoff.until(None, ""):
                await self._sessions[run.request.id].begin_grading()
        phase = replace(phase, request=request, spent_sec=time.monotonic() - run.submitted_at)
        if phase.samples is None and self._inside is not None:
            sockets = self._sessions[run.request.id].sockets
            return await self._inside.run(phase, environment, sockets, run.cutoff)
        token = environment_here.set(environment)
        try:
            result = await phase.run(self._driving, run.cutoff)
        finally:
            environment_here.reset(token)
        if phase.samples is not None:
            self._sessions[run.request.id].rewards = _rewards(result)
        return result

    async def _opened(self, run: Run, request: ExecutionRequest) -> RolloutEnvironment:
        """Start the container, within the time that the workflow has."""
        timeout_sec = request.agent_timeout_sec
        deadline = None if timeout_sec is None else run.submitted_at + timeout_sec
        late = late_text("workflow", timeout_sec, time.monotonic() - run.submitted_at)
        async with run.cutoff.until(deadline, late):
            await self.prewarm()
            session = Session(run.request.id, self._owner.directory)
            self._sessions[run.request.id] = session
            self._task.write(
                session.task_dir,
                request.prompt,
                image=self._image.result(),
                is_offline=self._containers.is_offline,
                symlink_environment=self._symlinks,
            )
            labels = {SESSION_LABEL: session.key, ROLLOUT_LABEL: run.request.id}
            config = self._containers.configured(
                session.directory,
                {**self._owner.labels, **labels},
                [f"{session.sockets}:{MOUNT}:ro"] if self._inside else (),
            )
            trials_dir = self._trials_dir or session.directory / "trials"
            harbor = await session.start(self._queue, config, _trial_name(session), trials_dir)
            container = await self._containers.container_of(session.key)
            environment = RolloutEnvironment(harbor, session.directory, container)
            self._environments[run.request.id] = environment
            return environment

    def _with_deadlines(self, request: ExecutionRequest) -> ExecutionRequest:
        """The task's own deadlines where the request has none."""
        agent_sec, grader_sec = self._task.deadlines()
        return replace(
            request,
            agent_timeout_sec=_first(request.agent_timeout_sec, agent_sec),
            grader_timeout_sec=_first(request.grader_timeout_sec, grader_sec),
        )

    async def _close(self, session: Session, was_good: bool) -> None:
        await session.close(was_good=was_good)
        if not was_good:
            await self._containers.remove_left(session.key)
        if self._trials_dir is not None and was_good and not self._keeps_good:
            shutil.rmtree(self._trials_dir / _trial_name(session), ignore_errors=True)

    def health(self) -> dict[str, Any]:
        """That of every backend, with `backend` and `pending_trials`."""
        return {**super().health(), "backend": "harbor", "pending_trials": len(self._sessions)}

    async def shutdown(self) -> None:
        """Cancel what runs, and wait until the containers are gone."""
        await super().shutdown()
        if self._closing:
            await asyncio.wait(self._closing)


class _OnlyInside(AgentWorkflow[Any]):
    """Stands for a workflow that only the container imports."""

    async def run(self, ctx: Any) -> None:
        raise NotImplementedError


def _rewards(result: ExecutionResult) -> dict[str, float]:
    given = {
        key: sample.reward for key, sample in result.samples.items() if sample.reward is not None
    }
    return {"reward": next(iter(given.values()))} if len(given) == 1 else given


def _trial_name(session: Session) -> str:
    """Compose takes it for a name of a project."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", session.rollout_id)[:32].strip("-")
    return f"{readable or 'rollout'}-{session.key}"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
