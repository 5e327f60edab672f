"""The rollout server's figures beside the peer's and a bare route's, in one run: `make bench`."""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PEER = "osmosis-ai==0.3.7"
PEER_PYTHON = ROOT / ".venv-peer-server/bin/python"
PYTHON = {"ours": sys.executable, "peer": str(PEER_PYTHON), "bare": sys.executable}
REPEATS = 3
SECONDS = 8
CLIENTS = 64
MANY_CLIENTS = 500
START_SEC = 60.0
ALONE = {"OSMOSIS_DISABLED_PLUGINS": "call-log,loop-watch"}
"""A server is installed without them, and they watch every rollout."""


def install_peer() -> bool:
    """The peer in an environment of its own; False when it cannot be had."""
    uv = str(Path(sys.executable).parent / "uv")
    venv = [uv, "venv", "--quiet", "--python", sys.executable, str(ROOT / ".venv-peer-server")]
    package = PEER.replace("==", "[server]==")
    install = [uv, "pip", "install", "--quiet", "--python", str(PEER_PYTHON), package]
    commands = [install] if PEER_PYTHON.exists() else [venv, install]
    return all(subprocess.run(command, check=False).returncode == 0 for command in commands)


class Server:
    """A server process and where it keeps its files."""

    def __init__(self, kind: str, workflow: str = "noop", directory: str | None = None) -> None:
        self.kind, self.workflow = kind, workflow
        self._own = None if directory else tempfile.TemporaryDirectory()
        self.directory = directory or self._own.name
        self.port = 0

    def __enter__(self) -> "Server":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        env = {**os.environ, "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": self.directory, **ALONE}
        script = str(HERE / "server_app.py")
        command = [PYTHON[self.kind], script, self.kind, self.workflow, str(self.port)]
        began = time.perf_counter()
        log = Path(self.directory, "log").open("w")
        self.process = subprocess.Popen(
            [*command, self.directory], env={**env, "HOME": self.directory}, stderr=log, stdout=log
        )
        while self.process.poll() is None and time.perf_counter() - began < START_SEC:
            try:
                self.bench()
                self.start_sec = time.perf_counter() - began
                return self
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"{command} does not answer: {Path(log.name).read_text()[-2000:]}")

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        if self._own:
            self._own.cleanup()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read()

    def bench(self) -> dict[str, float]:
        return json.loads(self.get("/bench"))

    def load(self, what: str, clients: int, amount: float, *more: str) -> dict[str, float]:
        script = [sys.executable, str(HERE / "server_load.py"), what, str(self.port)]
        command = [*script, str(clients), str(amount), *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"{self.kind}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def measured(kind: str, workflow: str, clients: int) -> dict[str, float]:
    with Server(kind, workflow) as server:
        server.load("cycles", clients, 0.5)
        before, began = server.bench(), time.perf_counter()
        told = server.load("cycles", clients, SECONDS)
        after, took = server.bench(), time.perf_counter() - began
        told["server_share"] = (after["cpu"] - before["cpu"]) / took
        told["longest_block_ms"] = after["longest_block_ms"]
        return told


def in_turns(kinds: list[str], workflow: str, clients: int) -> dict[str, dict[str, float]]:
    """Medians of several runs, one kind after the other."""
    runs = [{kind: measured(kind, workflow, clients) for kind in kinds} for _ in range(REPEATS)]
    return {
        kind: {key: statistics.median(run[kind][key] for run in runs) for key in runs[0][kind]}
        for kind in kinds
    }


def throughput(has_peer: bool) -> None:
    kinds = ["ours", "bare", *(["peer"] if has_peer else [])]
    print(f"| load | ours | {PEER if has_peer else 'peer not installed'} | two bare route calls |")
    print("|---|---|---|---|")
    for clients in (CLIENTS, MANY_CLIENTS):
        found = in_turns(kinds, "noop", clients)
        rate = {kind: found[kind]["per_sec"] for kind in kinds}
        row(f"cycles/s, {clients} clients", rate, "{:,.0f}", is_rate=True)
        for key, title in (("p50_ms", "p50"), ("p99_ms", "p99")):
            waits = {kind: found[kind][key] for kind in kinds}
            row(f"admission {title}, {clients} clients", waits, "{:,.1f} ms")
        for key, title in (("load_share", "load generator"), ("server_share", "server")):
            shares = {kind: 100 * found[kind][key] for kind in kinds}
            row(f"{title}, share of a core", shares, "{:,.0f} %")
    found = in_turns([kind for kind in kinds if kind != "bare"], "second", MANY_CLIENTS)
    for key, title in (("p50_ms", "p50"), ("p99_ms", "p99")):
        waits = {kind: told[key] for kind, told in found.items()}
        row(f"admission {title}, {MANY_CLIENTS} clients, rollouts of 1 s", waits, "{:,.1f} ms")


def row(title: str, by_kind: dict[str, float], form: str, *, is_rate: bool = False) -> None:
    cells = [form.format(by_kind["ours"])]
    for kind in ("peer", "bare"):
        value = by_kind.get(kind)
        ratio = f" ({by_kind['ours'] / value:.2f})" if is_rate and value else ""
        cells.append("-" if value is None else form.format(value) + ratio)
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def waiting(workflow: str, count: int, *policy: str) -> tuple[float, float]:
    """Bytes per rollout that is admitted and waits, and the longest block while they came."""
    with Server("ours", workflow) as server:
        server.load("submit", CLIENTS, 200, *policy)
        before = server.bench()["rss"]
        server.load("submit", CLIENTS, count, *policy)
        time.sleep(3)
        after = server.bench()
        return (after["rss"] - before) / count, after["longest_block_ms"]


def memory() -> None:
    print("\n| 1 process | bytes each | longest block of its event loop |\n|---|---|---|")
    for workflow, count, title in (
        ("queue", 10_000, "admitted rollouts in the queue"),
        ("waits", 10_000, "admitted rollouts whose workflow waits"),
    ):
        size, block = waiting(workflow, count)
        print(f"| {count:,} {title} | {size:,.0f} | {block:.0f} ms |", flush=True)
    with silent_policy() as url:
        size, block = waiting("calls", 2000, url)
    print(f"| 2,000 with an open policy call (openai SDK) | {size:,.0f} | {block:.0f} ms |")


@contextlib.contextmanager
def silent_policy() -> Generator[str]:
    """A policy that takes connections and requests and never answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    taken: list[socket.socket] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    threading.Thread(target=take, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    listener.close()
    for connection in taken:
        connection.close()


def growth_and_restart(total: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with Server("ours", "noop", directory) as server:
            fresh_sec = server.start_sec
            grown: list[float] = []
            done, blocks = 0.0, 0.0
            while done < total:
                told = server.load("cycles", CLIENTS, SECONDS)
                done += told["per_sec"] * (SECONDS + 2)
                after = server.bench()
                blocks = max(blocks, after["longest_block_ms"])
                grown.append(after["rss"] / 2**20)
        with Server("ours", "noop", directory) as server:
            finished_sec = server.start_sec
    with tempfile.TemporaryDirectory() as directory:
        with Server("ours", "waits", directory) as server:
            server.load("submit", CLIENTS, 10_000)
        with Server("ours", "noop", directory) as server:
            unfinished_sec = server.start_sec
    print("\n| over time | |\n|---|---|")
    for part in (1, (len(grown) + 1) // 2, len(grown)):
        count = done * part / len(grown)
        print(f"| resident after {count:,.0f} rollouts | {grown[part - 1]:.1f} MiB |")
    print(f"| longest block of the event loop meanwhile | {blocks:.0f} ms |")
    print(f"| start with an empty journal | {fresh_sec:.2f} s |")
    print(f"| start after SIGKILL, {done:,.0f} finished rollouts | {finished_sec:.2f} s |")
    print(f"| start after SIGKILL, 10,000 unfinished ones | {unfinished_sec:.2f} s |")


def main() -> None:
    began = time.monotonic()
    throughput(install_peer())
    memory()
    growth_and_restart(100_000)
    print(f"\n{time.monotonic() - began:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
