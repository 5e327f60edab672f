"""The oldest and the newest Harbor that are claimed, each with all that it asks for."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from uv import find_uv_bin

PLUGIN = Path(__file__).parents[1]
ROOT = PLUGIN.parents[1]
RUNNERS = ("packaging", "pytest", "pytest-asyncio", "pytest-timeout")
CERTIFI = "certifi>=2026\n"
"""Harbor 0.25 asks for one that is not published."""

CHOSEN = "of_its_own or processes_are_gone or told_the_reward"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def bounds():
    """The oldest release that the plugin takes, and the first that it does not."""
    wanted = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["dependencies"]
    harbor = next(r for r in map(Requirement, wanted) if r.name == "harbor")
    return {specifier.operator: specifier.version for specifier in harbor.specifier}


VERSIONS = {"oldest": f"harbor=={bounds()['>=']}.*", "newest": f"harbor<{bounds()['<']}"}


@pytest.fixture
def installed(tmp_path):
    """Installs a Harbor beside the kernel and the plugin, and returns its interpreter."""

    def install(harbor):
        python = tmp_path / "venv/bin/python"
        (tmp_path / "overrides.txt").write_text(CERTIFI)
        uv = [find_uv_bin(), "--quiet", "--no-config"]
        venv = [*uv, "venv", "--python", sys.executable, tmp_path / "venv"]
        subprocess.run(venv, check=True, timeout=60, cwd=tmp_path)
        command = [*uv, "pip", "install", "--python", python, "--prerelease", "disallow"]
        command += ["--override", tmp_path / "overrides.txt", harbor, *RUNNERS]
        command += ["-e", ROOT, "-e", PLUGIN]
        subprocess.run(command, check=True, timeout=200, cwd=tmp_path)
        return python

    return install


@pytest.mark.parametrize("harbor", VERSIONS.values(), ids=VERSIONS)
def test_plugin_works_on_it(harbor, installed, daemon, tmp_path):
    command = [installed(harbor), "-m", "pytest", "-q", "-m", "slow or not slow", "-k", CHOSEN]
    tests = [PLUGIN / f"tests/test_{name}.py" for name in ("containers", "arguments")]
    env = {**os.environ, **daemon, "OSMOSIS_TEST_DOCKER": "1"}
    done = subprocess.run(
        [*command, *tests], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "skipped" not in done.stdout
