"""A Harbor task directory: what it is made of, and the copy that one rollout is given."""

# pyright: reportMissingTypeStubs=false

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from harbor.models.task.config import NetworkMode, TaskConfig, TaskOS, VerifierEnvironmentMode
from harbor.utils.env import resolve_env_vars

from osmosis_core import ConfigError, Message
from osmosis_harbor import images

_PLACEHOLDER = "#!/bin/bash\n# The tests are brought in when the agent has ended.\n"


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """A task that every rollout gets a copy of, with the rollout's prompt as its instruction.

    The tests stay behind until the agent has ended, and so does the solution.
    """

    directory: Path
    config: TaskConfig
    tests_dir: Path | None
    """With `test.sh`; None when the task has none."""

    @property
    def environment_dir(self) -> Path:
        """Dockerfile, compose file and what they need."""
        return self.directory / "environment"

    @property
    def has_compose_file(self) -> bool:
        """True when the task has services of its own."""
        return (self.environment_dir / "docker-compose.yaml").exists()

    @property
    def has_dockerfile(self) -> bool:
        """True when there is an image to build."""
        return (self.environment_dir / "Dockerfile").exists()

    @property
    def tests_user(self) -> str | int | None:
        """Who runs the tests in the container."""
        return self.config.verifier.user

    def tests_env(self) -> dict[str, str]:
        """Variables of the tests, filled in from the host's.

        Raises:
            ConfigError: the host lacks one.
        """
        try:
            return resolve_env_vars(self.config.verifier.env)
        except ValueError as error:
            raise ConfigError(f"[verifier].env of task.toml: {error}") from error

    def deadlines(self) -> tuple[float | None, float | None]:
        """Seconds for the agent and for its verifier, where the task says them."""
        verifier = self.config.verifier
        is_set = "timeout_sec" in verifier.model_fields_set
        return self.config.agent.timeout_sec, verifier.timeout_sec if is_set else None

    def prebuild(self, home: Path) -> str | None:
        """The image of the task, built or fetched unless it is there; None when compose has it.

        Raises:
            BackendError: it was not built.
        """
        environment = self.config.environment
        if environment.docker_image is not None:
            images.ensure_pulled(environment.docker_image)
            return environment.docker_image
        if not self.has_dockerfile:
            return None
        tag, timeout_sec = images.content_tag(self.environment_dir), environment.build_timeout_sec
        images.ensure_built(tag, self.environment_dir, home, timeout_sec=timeout_sec)
        return tag

    def write(
        self,
        target: Path,
        prompt: list[Message],
        *,
        image: str | None,
        is_offline: bool,
        symlink_environment: bool,
    ) -> Path:
        """Write a copy whose environment is `image`, or is built by Harbor if that is None."""
        config = self.config.model_copy(deep=True)
        if image is not None:
            config.environment.docker_image = image
        if is_offline:  # no network at all is stricter than any policy that Harbor would enforce
            config.environment.network_mode = NetworkMode.PUBLIC
        (target / "tests").mkdir(parents=True)
        (target / "tests/test.sh").write_text(_PLACEHOLDER)
        (target / "task.toml").write_text(config.model_dump_toml())
        (target / "instruction.md").write_text(json.dumps(prompt, ensure_ascii=False))
        is_built = self.has_dockerfile and image is not None and not self.has_compose_file
        if is_built or not self.environment_dir.is_dir():
            (target / "environment").mkdir()
        elif symlink_environment:
            (target / "environment").symlink_to(self.environment_dir)
        else:
            shutil.copytree(self.environment_dir, target / "environment", symlinks=True)
        return target


def load_task(task_dir: Path, custom_tests_dir: Path | None) -> TaskTemplate:
    """Read a task directory.

    Raises:
        ConfigError: it is none, or one of a kind that cannot be a rollout.
    """
    where = str(task_dir)
    try:
        config = TaskConfig.model_validate_toml((task_dir / "task.toml").read_text())
    except OSError as error:
        raise ConfigError(f"task_dir={where!r} has no task.toml; name a Harbor task") from error
    except ValueError as error:
        raise ConfigError(f"{where}/task.toml cannot be read: {error}") from error
    if config.steps:
        raise ConfigError(f"task {where!r} has [[steps]]; a rollout has one prompt")
    if config.environment.os != TaskOS.LINUX:
        raise ConfigError(f"task {where!r} is for {config.environment.os.value}, not for linux")
    if _is_graded_elsewhere(config):
        raise ConfigError(
            f"task {where!r} has a separate verifier environment; a rollout is graded in its own "
            "container, or on the host"
        )
    template = TaskTemplate(task_dir, config, _tests_dir(task_dir, custom_tests_dir))
    has_image = config.environment.docker_image or template.has_dockerfile
    if not (has_image or template.has_compose_file):
        raise ConfigError(
            f"task {where!r} has no environment; add environment/Dockerfile, or docker_image in "
            "[environment] of task.toml"
        )
    return template


def _is_graded_elsewhere(config: TaskConfig) -> bool:
    verifier = config.verifier
    separate = verifier.environment_mode == VerifierEnvironmentMode.SEPARATE
    return separate or verifier.environment is not None


def _tests_dir(task_dir: Path, custom: Path | None) -> Path | None:
    tests = custom or task_dir / "tests"
    if (tests / "test.sh").exists():
        return tests
    if custom is not None:
        raise ConfigError(f"custom_tests_dir={str(custom)!r} has no test.sh")
    return None
