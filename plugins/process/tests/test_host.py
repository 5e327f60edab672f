"""However the host ends, its workers end with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rude

OSMOSIS = Path(sys.executable).parent / "osmosis"
TESTS = Path(__file__).parent
HOST = """
import asyncio, signal, sys
sys.path.insert(0, sys.argv[1])
import rude
from osmosis_core import ExecutionRequest
from osmosis_process import ProcessBackend

async def main():
    backend = ProcessBackend(workflow=rude.Rude, num_workers=2, artifacts_root=sys.argv[2])
    async def show(result):
        print(result.sample.messages[-1]["content"], flush=True)
    await backend.execute(ExecutionRequest("warm", []), show)
    block = ExecutionRequest("r", [], metadata={"block": sys.argv[3]})
    await asyncio.gather(backend.execute(block, show))

asyncio.run(main())
"""


def gone(is_alive, thing):
    for _ in range(1000):
        if not is_alive(thing):
            return True
        time.sleep(0.02)
    return False


def started(tmp_path, block):
    """A host whose worker blocks, and the worker's process."""
    command = [sys.executable, "-c", HOST, str(TESTS), str(tmp_path), block]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    worker = int(host.stdout.readline())
    time.sleep(0.2)
    return host, worker


BLOCKED = [(signal.SIGKILL, "c"), (signal.SIGTERM, "spin"), (signal.SIGINT, "sleep")]
ALL = [(number, block) for number, _ in BLOCKED for block in rude.BLOCKS]


@pytest.mark.parametrize(("number", "block"), BLOCKED)
def test_workers_end_with_their_host(tmp_path, is_alive, number, block):
    host, worker = started(tmp_path, block)
    with host:
        assert is_alive(worker)
        host.send_signal(number)
        assert host.wait(30) != 0
    assert gone(is_alive, worker)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "block"), ALL)
def test_workers_end_with_their_host_every_time(tmp_path, is_alive, number, block):
    """However it ends, three times, each with other code that blocks."""
    test_workers_end_with_their_host(tmp_path, is_alive, number, block)


def test_interrupted_evaluation_ends_with_its_exit_code_and_its_workers(tmp_path, is_alive):
    rows = [{"user_prompt": "?", "ground_truth": "1"} for _ in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.py").write_text("from rude import TellsItsProcess")
    command = [str(OSMOSIS), "eval", "run", "mine.py", "--dataset", "rows.jsonl", "-q"]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "PIDS": str(tmp_path / "pids")}
    options = ["--policy", "demo", "--backend", "process", "-o", "out"]
    with subprocess.Popen([*command, *options], cwd=tmp_path, env=env) as host:
        assert gone(lambda file: not file.exists(), tmp_path / "pids")
        time.sleep(0.5)
        host.send_signal(signal.SIGINT)
        assert host.wait(60) == 130
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(is_alive, int(pid))
