"""Where the cluster is, and what is said when there is none; each test in a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_core import ConfigError
from osmosis_core.testing import conformance_workflows as programs
from osmosis_ray import RayBackend

START = f"""
import asyncio, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import patience, ray
from osmosis_core import ExecutionRequest
from osmosis_core.testing import conformance_workflows as programs
from osmosis_ray import RayBackend

async def said(backend):
    found = []
    async def keep(result):
        found.append(result.err_message or result.sample.messages[-1]["content"])
    await backend.execute(ExecutionRequest("r", []), keep)
    return found[0]

def children():
    mine = [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]
    def is_ours(pid):
        try:
            return os.environ["MARK"].encode() in Path("/proc", pid, "environ").read_bytes()
        except OSError:
            return False
    return [pid for pid in mine if is_ours(pid)]
"""


def python(code, **env):
    env = {**os.environ, "MARK": f"mark-{os.urandom(8).hex()}", **env}
    command = [sys.executable, "-W", "error", "-c", START + code]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    return (done.stdout + done.stderr).strip().splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_own_cluster_ends_with_the_last_backend_that_uses_it_and_leaves_nothing():
    code = """
async def main():
    one, two = (RayBackend(workflow=programs.Answers, num_workers=1) for _ in range(2))
    try:
        RayBackend(workflow=programs.Answers, resources={"GPU": 64, "CPU": 1})
    except ValueError as error:
        print(error)
    await one.shutdown()
    print(await said(two), len(children()) > 2)
    await two.shutdown()
    for _ in range(100):
        if not children():
            break
        await asyncio.sleep(0.1)
    print(ray.is_initialized(), children())
asyncio.run(main())
"""
    misfit, *others = python(code)
    assert misfit.startswith("no node of the Ray cluster has what a worker reserves (CPU 1, GPU 64")
    assert others == ["42 True", "False []"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_connection_that_is_there_is_used_and_kept():
    code = """
ray.init(address="local", num_cpus=3, logging_level="error", include_dashboard=False)
async def main():
    backend = RayBackend(workflow=programs.Answers, resources={"CPU": 1.5})
    print(">", await said(backend), backend.health()["workers"])
    await backend.shutdown()
    print(">", ray.is_initialized())
    try:
        RayBackend(workflow=programs.Answers, address="10.1.1.1:6379")
    except ValueError as error:
        print(">", error)
asyncio.run(main())
"""
    printed = python(code, RAY_AUTH_MODE="disabled")  # among what Ray has to say on a busy machine
    said, kept, refused = (line.removeprefix("> ") for line in printed if line.startswith("> "))
    assert said.startswith("42 {'ready': ") and kept == "True"
    assert refused.startswith("this process is connected to the Ray cluster at")
    assert refused.endswith("shut that down before asking for '10.1.1.1:6379'")


def test_address_where_nobody_listens_is_refused_within_seconds():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at '{address}': .*refused"):
            RayBackend(workflow=programs.Answers, address=address)


@pytest.mark.parametrize("address", ["ray://10.0.0.5:10001", "cluster", "host:port"])
def test_address_of_another_form_is_refused(address):
    with pytest.raises(ConfigError, match="is none of 'host:port', 'auto' and 'local'"):
        RayBackend(workflow=programs.Answers, address=address)


NO_NUMBERS = {
    "num_workers": (0, 1.5, "two"),
    "max_restarts": (-1, "two"),
    "max_artifacts_bytes": (-1, 0.5),
    "grace_sec": (0, -1.0, float("nan"), "two"),
    "placement_timeout_sec": (-1, "two"),
}
WRONG = [(name, value) for name, values in NO_NUMBERS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_is_no_number_for_it_is_refused_before_there_is_a_cluster(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; give a "):
        RayBackend(workflow=programs.Answers, **{name: value})


def test_address_auto_without_a_cluster_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ConfigError, match="Ray cannot be used at address='auto': Could not find"):
        RayBackend(workflow=programs.Answers, address="auto")


def test_missing_ray_is_one_line(tmp_path):
    hide = "import importlib.util as u; find = u.find_spec\n"
    hide += "u.find_spec = lambda name, *a: None if name == 'ray' else find(name, *a)\n"
    hide += "from osmosis_core.cli import main; main()\n"
    (tmp_path / "flow.py").write_text(
        "from osmosis_core.testing.conformance_workflows import Answers"
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps({"user_prompt": "a", "label": "b"}))
    arguments = ["eval", "run", "flow.py", "--dataset", "rows.jsonl", "--policy", "demo"]
    done = subprocess.run(
        [sys.executable, "-c", hide, *arguments, "--backend", "ray"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the backend 'ray' needs Ray, which is not installed: pip")
    assert len(done.stderr.splitlines()) == 1
