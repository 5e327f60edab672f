"""A private Docker daemon or a sandbox, and a Harbor task to run in them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "docker_daemon.sh"
sys.path.insert(0, str(HERE))  # Harbor imports the sandbox by its path

TASK = """schema_version = "1.2"
[environment]
workdir = "/workspace"
memory_mb = 512
"""


def pytest_collection_modifyitems(items):
    """Harbor warns of its own names."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings(r"ignore::DeprecationWarning:harbor\..*"))


def pytest_terminal_summary(terminalreporter):
    """What could not be tested is said, whatever the verbosity."""
    skipped = (str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    for reason in dict.fromkeys(re.findall(r"NO (?:DOCKER|BUBBLEWRAP)[^'\\]*", " ".join(skipped))):
        terminalreporter.section("osmosis-harbor", red=True)
        terminalreporter.write_line(reason, red=True)


@pytest.fixture(scope="session", autouse=True)
def state():
    """Locks, sockets and files of rollouts in a place of this session's own."""
    with tempfile.TemporaryDirectory(prefix="oh-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        yield Path(folder)


@pytest.fixture(scope="session")
def daemon():
    """Environment variables of a private Docker daemon; skipped, loudly, where none can be had.

    With OSMOSIS_TEST_DOCKER it is the one that the environment names, with its base image.
    """
    if os.environ.get("OSMOSIS_TEST_DOCKER"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="oh-docker-") as folder:
        command = [str(SCRIPT), "start", folder, sys.executable]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != 0:
                pytest.skip(f"NO DOCKER DAEMON, real containers are not tested: {done.stderr}")
            settings = re.findall(r"^export (\w+)=(.*)$", Path(folder, "env").read_text(), re.M)
            yield {name: value.replace("$PATH", os.environ["PATH"]) for name, value in settings}
        finally:
            subprocess.run([str(SCRIPT), "stop", folder], timeout=60, check=True)
            Path(folder).mkdir(exist_ok=True)


@pytest.fixture
def docker(daemon, monkeypatch):
    """A private Docker daemon for this test."""
    for name, value in daemon.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def bwrap(tmp_path_factory):
    """The path of bubblewrap."""
    if found := shutil.which("bwrap"):
        return found
    folder = tmp_path_factory.mktemp("bubblewrap")
    command = [str(SCRIPT), "bubblewrap", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"NO BUBBLEWRAP, nothing above the container is tested: {done.stderr}")
    return str(folder / "root/usr/bin/bwrap")


@pytest.fixture
def sandbox(bwrap):
    """Arguments of a HarborBackend that needs no daemon."""
    from harbor.models.trial.config import EnvironmentConfig

    path = "bubblewrap_environment:BubblewrapEnvironment"
    config = EnvironmentConfig(type=None, import_path=path, kwargs={"bwrap": bwrap})
    return {"environment_config": config}


@pytest.fixture
def task_dir(tmp_path):
    """A Harbor task without tests."""
    task = tmp_path / "task"
    (task / "environment").mkdir(parents=True)
    (task / "environment/Dockerfile").write_text("FROM osmosis-test-base\n")
    (task / "task.toml").write_text(TASK)
    return task
