"""The example of the README, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_example_runs(docker, tmp_path):
    tag = ["docker", "tag", "osmosis-test-base", "python:3.12-slim"]
    subprocess.run(tag, check=True, timeout=30)
    blocks = dict(re.findall(r"^```(sh|py)\n(.*?)^```$", README.read_text(), re.M | re.S))
    subprocess.run(["bash", "-euc", blocks["sh"]], cwd=tmp_path, check=True, timeout=30)
    command = [sys.executable, "-c", blocks["py"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["success [None]", "success [1.0]"], done.stderr
