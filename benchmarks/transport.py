"""The policy transport's figures beside the bare openai SDK's and the peer's: `make bench`."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernel import PEER, PEER_PYTHON, install_peer

HERE = Path(__file__).parent
REPEATS = 3
ROLLOUT_REPEATS = 2
FLIGHTS = (250, 1000, 4000)
RECORDS, MANY = 2000, 100_000
TOO_SLOW = {("httpx", 1000), ("httpx", 4000), ("httpx2", 4000), ("bare", 4000)}
"""Minutes of CPU: the SDK's and httpx's cost per call grows with the calls in flight."""


@contextmanager
def stub() -> Generator[str]:
    """The policy, a process of its own; yields its root URL."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "policy_stub.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


class Bench:
    script = HERE / "transport_load.py"

    def __init__(self, root: str, has_peer: bool) -> None:
        self.root, self.has_peer = root, has_peer

    def once(self, load: str, python: str = sys.executable, number: int = 0) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as home:
            env = {**os.environ, "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": home, "HOME": home}
            command = [python, str(self.script), load, self.root, str(number)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"{load} in {python}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def median(self, load: str, key: str = "cpu", repeats: int = REPEATS) -> float:
        return statistics.median(self.once(load)[key] for _ in range(repeats))

    def peer(self, load: str, key: str = "cpu") -> float | None:
        return self.once(load, str(PEER_PYTHON))[key] if self.has_peer else None

    def rollouts(self) -> None:
        ours = [self.once("rollouts") for _ in range(ROLLOUT_REPEATS)]
        bare = self.once("rollouts-bare")
        peer = self.once("rollouts", str(PEER_PYTHON)) if self.has_peer else {}
        for key, name in (("cpu", "CPU"), ("wall", "wall")):
            mine = statistics.median(run[key] for run in ours)
            title = f"64 Strands rollouts x 5 calls x 200 streamed tokens, {name}"
            row(title, mine, bare[key], peer.get(key), unit="s")

    def tokens(self) -> None:
        ours, bare = 25 * self.median("stream-ours"), 25 * self.once("stream-bare")["cpu"]
        row("1,000 streamed tokens under the openai SDK, CPU", ours, bare, None, unit="ms")
        ours, peer = 50 * self.once("strands-stream")["cpu"], self.peer("strands-stream")
        row("1,000 streamed tokens under Strands, CPU", ours, None, peer and 50 * peer, unit="ms")
        ours, bare = (1000 * self.once(f"paced-{side}")["cpu"] / 12.8 for side in ("ours", "bare"))
        row(
            "1,000 tokens, each in its own packet (64 streams x 50/s), CPU",
            ours,
            bare,
            None,
            unit="ms",
        )
        ours, bare = (64 / self.once(f"many-{side}")["wall"] for side in ("ours", "bare"))
        row("64 streams at once, tokens per ms through one process", ours, bare, None, unit="")

    def plain(self) -> None:
        ours, bare = (self.median(f"plain-{side}") for side in ("ours", "bare"))
        row(
            "a call that is plain on the wire, under the openai SDK, CPU",
            ours,
            bare,
            None,
            unit="ms",
        )
        ours, peer = 1000 * self.once("strands-plain")["cpu"] / 300, self.peer("strands-plain")
        row("the same under Strands, CPU", ours, None, peer and 1000 * peer / 300, unit="ms")

    def flights(self) -> None:
        print("\n| client | " + " | ".join(f"{n:,} in flight" for n in FLIGHTS) + " |")
        print("|---" * (1 + len(FLIGHTS)) + "|")
        for library, title in (
            ("ours", "ours under the openai SDK"),
            ("bare", "bare openai SDK"),
            ("transport", "our transport alone"),
            ("aiohttp", "plain aiohttp (our inner client)"),
            ("httpx", "plain httpx"),
            ("httpx2", "plain httpx2"),
        ):
            cells = [
                "-" if (library, n) in TOO_SLOW else f"{self.in_flight(library, n):.2f} ms"
                for n in FLIGHTS
            ]
            print(f"| {title} | {' | '.join(cells)} |", flush=True)

    def in_flight(self, library: str, number: int) -> float:
        return self.once(f"flight-{library}", number=number)["ms"]

    def memory(self) -> None:
        record = self.once("memory", number=RECORDS)
        flat = self.once("flat", number=MANY)
        print("\n| memory | figure |\n|---|---|")
        ratio = record["bytes"] / record["json"]
        print(
            f"| per recorded call of 200 tokens with ids and log-probs | {record['bytes']:,.0f} "
            f"bytes, {ratio:.2f} x its compact JSON ({record['json']:,.0f}) |"
        )
        before, after = flat["first"] / 2**20, flat["last"] / 2**20
        print(
            f"| resident after {MANY // 10:,} and {MANY:,} calls, contexts dropped | "
            f"{before:.1f} MiB, {after:.1f} MiB |"
        )


def row(title: str, ours: float, *others: float | None, unit: str) -> None:
    cells = [f"{ours:,.2f} {unit}".rstrip()]
    for other in others:
        cells.append(f"{other:,.2f} {unit} ({other / ours:.2f})" if other else "-")
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    began = time.monotonic()
    has_peer = install_peer()
    with stub() as root:
        bench = Bench(root, has_peer)
        peer = PEER if has_peer else "peer not installed"
        print(f"| load | osmosis-core | bare openai SDK (ratio) | {peer} (ratio) |")
        print("|---|---|---|---|")
        bench.rollouts()
        bench.tokens()
        bench.plain()
        bench.flights()
        bench.memory()
    print(f"\n{time.monotonic() - began:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
