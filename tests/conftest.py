"""What tests share: `osmosis` as a process, plugins made in place, clean environments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OSMOSIS = Path(sys.executable).parent / "osmosis"
UV = Path(sys.executable).parent / "uv"
FOREIGN = ("OSMOSIS_", "PYTHON", "VIRT", "LITELLM", "OPENAI", "LANG")


@pytest.fixture
def osmosis(tmp_path):
    """Run `osmosis` in `tmp_path`; keywords are environment variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON"))}

    def run(*arguments, **env):
        return subprocess.run(
            [OSMOSIS, *arguments],
            cwd=tmp_path,
            env={**kept, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def installed(tmp_path):
    """Lay out a plugin as an installer would; answers the environment in which it is found."""

    def install(name, source):
        site = tmp_path / "site"
        info = site / f"osmosis_{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: osmosis-{name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[osmosis_core]\n{name} = osmosis_{name}\n")
        (site / f"osmosis_{name}.py").write_text(source)
        return {"PYTHONPATH": str(site)}

    return install


def run(*command, cwd, timeout=400):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    done = subprocess.run(
        command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def build():
    """Build a project's wheel into a folder."""

    def build(source, folder):
        options = ["--quiet", "--wheel", "--python", sys.executable, "--out-dir", folder]
        run(UV, "build", *options, source, cwd=source)
        return folder

    return build


@pytest.fixture(scope="session")
def wheels(tmp_path_factory, build):
    """A folder with a wheel of the kernel and of every plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, *sorted((ROOT / "plugins").iterdir())):
        build(source, folder)
    return folder


class Environment:
    """A clean virtual environment outside the checkout."""

    def __init__(self, folder, wheels, *requirements):
        self.folder, self.bin = folder, folder / "venv" / "bin"
        run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
        self.uv("install", "--quiet", "--find-links", wheels, *requirements)

    def uv(self, command, *arguments):
        python = self.bin / "python"
        return run(UV, "pip", command, "--python", python, *arguments, cwd=self.folder)

    def versions(self):
        listed = json.loads(self.uv("list", "--format", "json"))
        return {entry["name"]: entry["version"] for entry in listed}

    def run(self, program, *arguments):
        return run(self.bin / program, *arguments, cwd=self.folder)

    def python(self, *arguments):
        return self.run("python", "-W", "error", *arguments)

    def osmosis(self, *arguments):
        return self.run("osmosis", *arguments)


@pytest.fixture(scope="session")
def environment(tmp_path_factory, wheels):
    """Install requirements, this checkout's wheels among them, into a new Environment."""
    return lambda *requirements: Environment(tmp_path_factory.mktemp("env"), wheels, *requirements)
