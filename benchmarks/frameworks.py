"""The framework plugins beside the bare frameworks, the SDK and the peer: `make bench`."""

import statistics
import subprocess
import sys
from pathlib import Path

from kernel import PEER, PEER_PYTHON, ROOT, cpu_ms, install_peer
from transport import Bench, row, stub

sys.path.append(str(ROOT / "tests"))
from test_layers import code_lines

FRAMEWORKS = {
    "strands": "Strands",
    "openai_agents": "OpenAI Agents",
    "langgraph": "LangGraph",
}
PEERLESS = {"langgraph"}
KERNEL_ALONE = ROOT / ".venv-kernel/bin"
RUNS, PEER_RUNS, TURN_RUNS = 20, 3, 80
HELPS = 15


class FrameworksBench(Bench):
    script = Path(__file__).with_name("frameworks_load.py")

    def tokens(self, framework: str) -> None:
        spent = self.once(f"{framework}-tokens", number=RUNS)
        if self.has_peer and framework not in PEERLESS:
            spent |= self.once(f"{framework}-tokens", str(PEER_PYTHON), PEER_RUNS)
        others = [spent.get(side) for side in ("bare", "sdk", "peer")]
        row(FRAMEWORKS[framework], spent["ours"], *others, unit="ms")

    def turns(self, framework: str) -> None:
        cells = []
        for load in ("soon", "soon-stream"):
            spent = self.once(f"{framework}-{load}", number=TURN_RUNS)
            low, middle, high = spent["added"]
            cells += [f"{spent['bare']:.2f} ms", f"{middle:+.2f} ms ({low:+.2f} to {high:+.2f})"]
        print(f"| {FRAMEWORKS[framework]} | {' | '.join(cells)} |", flush=True)


def install_kernel_alone() -> None:
    """The kernel in an environment without any plugin, as it is installed in this one."""
    uv = str(Path(sys.executable).parent / "uv")
    if not KERNEL_ALONE.exists():
        venv = [uv, "venv", "--quiet", "--python", sys.executable, str(KERNEL_ALONE.parent)]
        subprocess.run(venv, check=True)
    options = [
        "--quiet",
        "--python",
        str(KERNEL_ALONE / "python"),
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([uv, "pip", "install", *options, "-e", str(ROOT)], check=True)


def helps() -> dict[str, float]:
    """CPU milliseconds of `osmosis --help`, by turns with no plugin and with all of them."""
    commands = {
        "the kernel alone": [str(KERNEL_ALONE / "osmosis"), "--help"],
        "all plugins": [str(Path(sys.executable).parent / "osmosis"), "--help"],
    }
    taken = {name: [] for name in commands}
    for _ in range(HELPS):
        for name, command in commands.items():
            taken[name].append(cpu_ms(command))
    return {name: statistics.median(values) for name, values in taken.items()}


def plugin_lines(framework: str) -> int:
    folder = ROOT / "plugins" / framework / f"osmosis_{framework}"
    return sum(code_lines(path) for path in folder.rglob("*.py"))


def main() -> None:
    has_peer = install_peer()
    install_kernel_alone()
    with stub() as root:
        bench = FrameworksBench(root, has_peer)
        peer = PEER if has_peer else "peer not installed"
        print("| 1,000 streamed tokens, CPU | osmosis-core | bare framework (ratio) |", end="")
        print(f" bare openai SDK (ratio) | {peer} (ratio) |\n|---|---|---|---|---|")
        for framework in FRAMEWORKS:
            bench.tokens(framework)
        print("\n| a turn, wall | bare, plain | ours adds (quartiles) |", end="")
        print(" bare, streamed | ours adds (quartiles) |\n|---|---|---|---|---|")
        for framework in FRAMEWORKS:
            bench.turns(framework)
    print("\n| plugin | lines of code |\n|---|---|")
    for framework, title in FRAMEWORKS.items():
        print(f"| {title} | {plugin_lines(framework)} |")
    print("\n| `osmosis --help`, CPU | |\n|---|---|")
    for name, spent in helps().items():
        print(f"| {name} | {spent:.0f} ms |")


if __name__ == "__main__":
    main()
