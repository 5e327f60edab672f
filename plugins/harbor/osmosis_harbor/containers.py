"""How the containers of a backend are run: their kind, network, limits and labels."""

# pyright: reportMissingTypeStubs=false

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import EnvironmentConfig

from osmosis_core import ConfigError
from osmosis_harbor.docker import check_docker, docker_async
from osmosis_harbor.light import LightEnvironment
from osmosis_harbor.owner import SESSION_LABEL
from osmosis_harbor.task import TaskTemplate

type Network = Literal["none", "bridge", "host"]

_NETWORKS = ("none", "bridge", "host")


@dataclass(frozen=True, slots=True)
class Containers:
    """What every container of a backend has in common.

    Raises:
        ConfigError: the network is none of `none`, `bridge` and `host`.
    """

    base: EnvironmentConfig
    network: str = "none"
    pids_limit: int = 512
    lifetime_sec: int = 24 * 3600

    def __post_init__(self) -> None:
        if self.network not in _NETWORKS:
            known = ", ".join(map(repr, _NETWORKS))
            raise ConfigError(f"network is {self.network!r}; give one of {known}")

    @property
    def is_compose(self) -> bool:
        """True for Harbor's docker environment."""
        is_docker = self.base.type in (None, EnvironmentType.DOCKER)
        return is_docker and self.base.import_path is None

    @property
    def is_light(self) -> bool:
        """True for ours on plain docker verbs."""
        return self.base.import_path == light_path()

    @property
    def is_docker(self) -> bool:
        """True when docker runs the containers, so that labels, limits and networks are ours."""
        return self.is_compose or self.is_light

    @property
    def is_offline(self) -> bool:
        """True when a container reaches nothing."""
        return self.is_docker and self.network == "none"

    def configured(
        self, directory: Path, labels: dict[str, str], mounts: Iterable[str] = ()
    ) -> EnvironmentConfig:
        """The environment of one rollout; `mounts` are `host:container:ro`."""
        config = self.base.model_copy(deep=True)
        if self.is_compose:
            overlay = directory / "overlay.yaml"
            overlay.write_text(json.dumps({"services": {"main": self._service(labels, mounts)}}))
            config.extra_docker_compose = [*config.extra_docker_compose, overlay]
        elif self.is_light:
            config.kwargs["run_options"] = self._run_options(labels, mounts)
            config.kwargs["lifetime_sec"] = self.lifetime_sec
        return config

    def _service(self, labels: dict[str, str], mounts: Iterable[str]) -> dict[str, Any]:
        service: dict[str, Any] = {
            "labels": {name: value.replace("$", "$$") for name, value in labels.items()},
            "command": ["sleep", str(self.lifetime_sec)],
            "pids_limit": self.pids_limit,
            "security_opt": ["no-new-privileges:true"],
            "stop_grace_period": "0s",
            "volumes": list(mounts),
        }
        if self.network != "bridge":
            service["network_mode"] = self.network
        return service

    def _run_options(self, labels: dict[str, str], mounts: Iterable[str]) -> list[str]:
        options = ["--network", self.network, "--pids-limit", str(self.pids_limit)]
        options += ["--security-opt", "no-new-privileges:true"]
        options += [
            part for name, value in labels.items() for part in ("--label", f"{name}={value}")
        ]
        return options + [part for mount in mounts for part in ("--volume", mount)]

    async def container_of(self, session: str) -> str | None:
        """The id of the container that a session's label is on; None when docker has none."""
        if not self.is_docker:
            return None
        labelled = f"label={SESSION_LABEL}={session}"
        said = await docker_async("ps", "--all", "--quiet", "--no-trunc", "--filter", labelled)
        return next(iter(said.stdout.split()), None)

    async def remove_left(self, session: str) -> None:
        """Remove the container of a session that was ended in the middle of something."""
        if (container := await self.container_of(session)) is not None:
            await docker_async("rm", "--force", "--volumes", container)


def environment_base(
    environment: str, given: EnvironmentConfig | None, cpus: int | None, memory_mb: int | None
) -> EnvironmentConfig:
    """What the arguments of a backend say about its environment, as Harbor writes it.

    Raises:
        ConfigError: `environment` names none, or `environment_config` says another.
    """
    base = EnvironmentConfig() if given is None else given.model_copy(deep=True)
    is_other = base.import_path or base.type not in (None, EnvironmentType.DOCKER)
    if environment != "docker" and is_other:
        raise ConfigError("give environment= or an environment_config= of another kind, not both")
    if environment == "light" or ":" in environment:
        base.type = None
        base.import_path = light_path() if environment == "light" else environment
    elif environment != "docker":
        known = "'docker', 'light' or 'module:Class' of a Harbor environment"
        raise ConfigError(f"environment is {environment!r}; give {known}")
    base.override_cpus = cpus if cpus is not None else base.override_cpus
    base.override_memory_mb = memory_mb if memory_mb is not None else base.override_memory_mb
    return base


def check_containers(containers: Containers, task: TaskTemplate, is_prebuilt: bool) -> None:
    """Say what does not go together, or what Docker lacks.

    Raises:
        ConfigError: with what to do instead.
    """
    if is_prebuilt and not containers.is_docker:
        raise ConfigError("prebuild_local_image=True needs a docker environment")
    if containers.is_light and not is_prebuilt:
        raise ConfigError("environment='light' needs prebuild_local_image")
    if containers.is_light and task.has_compose_file:
        raise ConfigError("the task has a docker-compose.yaml; it needs environment='docker'")
    if containers.is_offline and task.has_compose_file:
        raise ConfigError(
            "the task has a docker-compose.yaml, whose services need a network; pass "
            "network='bridge'"
        )
    if containers.is_docker:
        check_docker(needs_compose=containers.is_compose)


def light_path() -> str:
    """The import path of the light environment, as Harbor wants it."""
    return f"{LightEnvironment.__module__}:{LightEnvironment.__name__}"
