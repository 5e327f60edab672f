"""A Harbor environment on plain docker verbs, in half the time that compose takes."""

# pyright: reportMissingTypeStubs=false

import asyncio
import os
import shlex
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

from osmosis_core import BackendError
from osmosis_harbor.docker import Output, docker_async, last_line

LOG_DIRS = "/logs/agent /logs/verifier /logs/artifacts"


class LightEnvironment(BaseEnvironment):
    """`docker run`, `exec`, `cp` and `rm` of one prebuilt image.

    Args:
        run_options: arguments of `docker run` that come before the image.
        lifetime_sec: the container ends by itself after this many seconds.
    """

    def __init__(
        self, *args: Any, run_options: list[str], lifetime_sec: int, **kwargs: Any
    ) -> None:
        self._run_options = run_options
        self._lifetime_sec = lifetime_sec
        self._container = ""
        self._starting: asyncio.Task[Output] | None = None
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]

    @staticmethod
    def type() -> str:
        """What Harbor writes into its records."""
        return "osmosis-light"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Nothing that Harbor would have to be told."""
        return EnvironmentCapabilities()

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """cpus and memory of the task are limits."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image:
            raise ValueError("the light environment needs [environment].docker_image")

    async def start(self, force_build: bool) -> None:
        """Run the container; its image was built before."""
        limits = list[str]()
        if self._effective_memory_mb:
            limits += ["--memory", f"{self._effective_memory_mb}m"]
        if self._effective_cpus:
            limits += ["--cpus", str(self._effective_cpus)]
        sleep = ("sleep", str(self._lifetime_sec))
        image = self.task_env_config.docker_image or ""
        options = ("--detach", "--pull", "never", "--entrypoint", sleep[0], *limits)
        run = docker_async("run", *options, *self._run_options, image, *sleep[1:])
        self._starting = asyncio.create_task(run)
        started = await asyncio.shield(self._starting)  # a cancel must not lose the container
        self._container = _checked("run", started).stdout.strip()
        await self.exec(f"mkdir -p {LOG_DIRS} && chmod 777 {LOG_DIRS}", user="root")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Kill the container and remove it."""
        if self._starting is not None:
            container = (await self._starting).stdout.strip()
            await docker_async("rm", "--force", "--volumes", *container.split())

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the container."""
        await self._copy(str(source_path), f"{self._container}:{target_path}")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory of the host into one in the container."""
        await self.exec(f"mkdir -p -- {shlex.quote(target_dir)}", user="root")
        await self._copy(f"{source_dir}/.", f"{self._container}:{target_dir}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file as it is: `RolloutEnvironment` is for what must not be trusted."""
        await self._copy(f"{self._container}:{source_path}", str(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory as it is."""
        await asyncio.to_thread(Path(target_dir).mkdir, parents=True, exist_ok=True)
        if self._container:  # Harbor asks for logs also when nothing was started
            await self._copy(f"{self._container}:{source_dir}/.", str(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a bash command; values of `env` that are not docker's own are in no process list."""
        env, user = self._merge_env(env) or {}, self._resolve_user(user)
        cwd = cwd or self.task_env_config.workdir
        hidden = {name: value for name, value in env.items() if _is_free(name, value)}
        shown = [name if name in hidden else f"{name}={value}" for name, value in env.items()]
        options = [option for variable in shown for option in ("--env", variable)]
        options += [] if cwd is None else ["--workdir", cwd]
        options += [] if user is None else ["--user", str(user)]
        arguments = ("exec", *options, self._container, "bash", "-c", command)
        done = await docker_async(*arguments, env={**os.environ, **hidden}, timeout_sec=timeout_sec)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.return_code)

    async def _copy(self, source: str, target: str) -> None:
        _checked("cp", await docker_async("cp", source, target, timeout_sec=None))


def _is_free(name: str, value: str) -> bool:
    """True when docker itself may have the variable, to hand it on without naming its value."""
    return os.environ.get(name, value) == value and not name.startswith("DOCKER_")


def _checked(verb: str, done: Output) -> Output:
    if done.return_code != 0:
        raise BackendError(f"docker {verb}: {last_line(done.stderr)}")
    return done
