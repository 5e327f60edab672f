"""The image of a task with the user's code in it: a wheel of theirs, and what that needs."""

import importlib.metadata
import importlib.resources
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from osmosis_core import BackendError, ConfigError
from osmosis_harbor.docker import docker, last_line
from osmosis_harbor.images import content_tag, ensure_built
from osmosis_harbor.inside import SITE

_OLDEST_PYTHON = (3, 12)
_INSTALL_TIMEOUT_SEC = 900.0
_LEFT_OUT = ("harbor", "uv")
"""What osmosis-harbor needs on the host only."""


def build_with_code(image: str, code_dir: Path, home: Path) -> str:
    """The tag of `image` with the code of a directory installed, built unless it is there.

    A project (`pyproject.toml`) is built into a wheel and installed with its dependencies; anything
    else is copied. Dependencies are resolved when the image is built, not later.

    Raises:
        ConfigError: the image has no Python that can run it.
        BackendError: something was not built.
    """
    own = [
        Path(str(importlib.resources.files(name))) for name in ("osmosis_core", "osmosis_harbor")
    ]
    tag = content_tag(
        image, docker("image", "inspect", "--format", "{{.Id}}", image), code_dir, *own
    )
    if docker("image", "ls", "--quiet", tag).strip():
        return tag
    version = _python_of(image)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        _install(code_dir, site, version)
        ensure_built(tag, site, home, f"FROM {image}\nCOPY . {SITE}\n")
    return tag


def _python_of(image: str) -> tuple[int, int]:
    """The version of `python3` in the image."""
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        alone = ("--rm", "--network", "none", "--entrypoint", "python3")
        major, minor = map(int, docker("run", *alone, image, "-c", ask).split())
    except BackendError as error:
        raise ConfigError(
            f"image {image!r} has no python3, which runs_in='container' needs ({error})"
        ) from error
    if (major, minor) < _OLDEST_PYTHON:
        raise ConfigError(
            f"image {image!r} has Python {major}.{minor}; osmosis needs 3.12 or newer"
        )
    return major, minor


def _install(code_dir: Path, site: Path, version: tuple[int, int]) -> None:
    from uv import find_uv_bin

    is_project = (code_dir / "pyproject.toml").exists()
    wanted = [_requirement("osmosis-core"), _requirement("osmosis-harbor")]
    wanted += [str(code_dir)] if is_project else []
    compiled = ["--compile-bytecode"] if version == sys.version_info[:2] else []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.writelines(f"{line}\n" for line in _overrides())
        overrides.flush()
        command = [find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--target", str(site)]
        command += ["--python", sys.executable, "--python-version", f"{version[0]}.{version[1]}"]
        command += ["--override", overrides.name, *compiled, *wanted]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_SEC, check=False
        )
    if done.returncode != 0:
        raise BackendError(f"{str(code_dir)!r} cannot be installed: {last_line(done.stderr)}")
    if not is_project:
        ignored = shutil.ignore_patterns("__pycache__", ".git", ".venv")
        shutil.copytree(code_dir, site, dirs_exist_ok=True, ignore=ignored)


def _requirement(name: str) -> str:
    """The same distribution that is installed here: its directory, or its version."""
    directory = _directory(importlib.metadata.distribution(name))
    return f"{name} @ {directory}" if directory else f"{name}=={importlib.metadata.version(name)}"


def _overrides() -> list[str]:
    """Nothing for the host alone, and what is installed from directories from the same ones."""
    left_out = [f"{name}; python_version < '3'" for name in _LEFT_OUT]
    local = [
        f"{distribution.name} @ {directory}"
        for distribution in importlib.metadata.distributions()
        if distribution.name.startswith("osmosis-") and (directory := _directory(distribution))
    ]
    return left_out + local


def _directory(distribution: importlib.metadata.Distribution) -> str | None:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return origin["url"] if "dir_info" in origin else None
