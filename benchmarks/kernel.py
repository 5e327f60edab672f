"""The kernel's figures beside the peer's, in one run: `make bench`."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PEER = "osmosis-ai==0.2.31"
PEER_PACKAGES = ["osmosis-ai[strands]==0.2.31", "litellm<1.104", "mcp<2"]
"""Newer litellm needs mcp 2, which the peer's own pins exclude: no tool call would work."""

PEER_PYTHON = ROOT / ".venv-peer/bin/python"
BASELINE = ["-c", "import asyncio; from pydantic import BaseModel"]
REPEATS = 3
IMPORT_REPEATS = 15


def install_peer() -> bool:
    """The peer in an environment of its own; False when it cannot be had."""
    uv = str(Path(sys.executable).parent / "uv")
    venv = [uv, "venv", "--quiet", "--python", sys.executable, str(ROOT / ".venv-peer")]
    install = [uv, "pip", "install", "--quiet", "--python", str(PEER_PYTHON), *PEER_PACKAGES]
    commands = [install] if PEER_PYTHON.exists() else [venv, install]
    return all(subprocess.run(command, check=False).returncode == 0 for command in commands)


def measure(python: str, load: str) -> float:
    with tempfile.TemporaryDirectory() as root:
        env = {**os.environ, "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": root, "HOME": root}
        command = [python, str(HERE / "kernel_load.py"), load]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=True
        )
    return next(iter(json.loads(done.stdout.splitlines()[-1]).values()))


def side_by_side(load: str, has_peer: bool) -> tuple[float, float | None]:
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours.append(measure(sys.executable, load))
        if has_peer:
            theirs.append(measure(str(PEER_PYTHON), load))
    return statistics.median(ours), statistics.median(theirs) if theirs else None


def cpu_ms(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def startup() -> dict[str, float]:
    commands = {
        "baseline": [sys.executable, *BASELINE],
        "import osmosis_core": [sys.executable, "-c", "import osmosis_core"],
        "osmosis --help": [str(Path(sys.executable).parent / "osmosis"), "--help"],
    }
    taken = {name: [] for name in commands}
    for _ in range(IMPORT_REPEATS):
        for name, command in commands.items():
            taken[name].append(cpu_ms(command))
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    has_peer = install_peer()
    print(f"| load | osmosis-core | {PEER if has_peer else 'peer not installed'} | ratio |")
    print("|---|---|---|---|")
    for load, title, unit in (
        ("noop", "5,000 no-op rollouts through LocalBackend", "rollouts/s"),
        ("graded", "5,000 rollouts with one graded sample", "rollouts/s"),
        ("memory", "10,000 rollouts awaiting an event", "bytes each"),
    ):
        ours, theirs = side_by_side(load, has_peer)
        other = f"{theirs:,.0f} {unit} | {ours / theirs:.2f}" if theirs else "- | -"
        print(f"| {title} | {ours:,.0f} {unit} | {other} |", flush=True)
    times = startup()
    for name in ("import osmosis_core", "osmosis --help"):
        ratio = times[name] / times["baseline"]
        base = f"{times['baseline']:.0f} ms (asyncio + pydantic)"
        print(f"| `{name}`, CPU | {times[name]:.0f} ms | {base} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
