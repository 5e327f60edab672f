"""What a killed process leaves is removed by the next one that starts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import container_programs as programs
import pytest

from osmosis_harbor import HarborBackend
from osmosis_harbor.owner import Owner, state_dir

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("docker")]

HOST = """
import asyncio, sys
import container_programs as programs
from osmosis_core import ExecutionRequest
from osmosis_harbor import HarborBackend

async def ignored(result): pass

async def main():
    task_dir, kind = sys.argv[1:]
    backend = HarborBackend(task_dir=task_dir, environment=kind, workflow=programs.Hangs)
    await asyncio.gather(*(
        backend.execute(ExecutionRequest(f"r-{n}", [], "x"), ignored) for n in range(2)
    ))

asyncio.run(main())
"""


def containers():
    said = subprocess.run(["docker", "ps", "-aq"], capture_output=True, text=True, check=True)
    return said.stdout.split()


def started(task_dir, kind):
    """A process with two rollouts that run."""
    here = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, "-c", HOST, str(task_dir), kind], cwd=here)
    patience = time.monotonic() + 60
    while len(containers()) < 2 and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("kind", ["docker", "light"])
async def test_containers_of_a_killed_process_are_reaped_by_the_next(kind, task_dir):
    process = started(task_dir, kind)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert len(containers()) == 2
    backend = HarborBackend(task_dir=task_dir, environment=kind, workflow=programs.Hangs)
    await backend.prewarm()
    assert containers() == []
    assert len(list(state_dir().glob("*.lock"))) == 1, "this process's only"


def test_containers_of_the_living_are_left_alone(task_dir):
    process = started(task_dir, "light")
    try:
        owner = Owner(state_dir())
        assert owner.reap() == []
        assert len(containers()) == 2
        owner.release()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
    assert containers() == [], "an interrupted process removes its own"
