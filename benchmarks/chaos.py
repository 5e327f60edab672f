"""Rollout servers that are killed, starved of disk and cut off, and what their controllers saw.

    python chaos.py [KILLS] [SEED]

Real processes and sockets, all three protocols. Exits 1 when a rollout was lost, ended twice, or
has a reward that no grader gave, or when a server has tasks or slots left at the end.
"""

import asyncio
import contextlib
import json
import logging
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
from chaos_controller import Controller, Faults, Listener, Rollout, unruly_policy

HERE = Path(__file__).parent
AT_ONCE = 32
LIFE_SEC = (0.1, 3.0)
FULL_SEC = (0.3, 1.5)
DRAINS, FILLS = 0.1, 0.3
START_SEC = 60.0
SETTLE_SEC = 120.0
DISK_BYTES = 256 * 1024 * 1024


class Disk:
    """Where a server keeps its files: a small tmpfs where we may mount one.

    Elsewhere "full" is a limit on the size of the process's files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "disk"
        self.directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", self.directory]
        self.is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    @contextlib.contextmanager
    def full(self, pid: int):
        """While nothing more can be written."""
        ballast = self.directory / "ballast"
        if not self.is_mounted:
            self._limit(pid, (self.directory / "journal.db-wal").stat().st_size)
        else:
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(b"\0" * 65536):
                    pass
        try:
            yield
        finally:
            ballast.unlink(missing_ok=True)
            if not self.is_mounted:
                self._limit(pid, resource.RLIM_INFINITY)

    def _limit(self, pid: int, size: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", self.directory], check=True)


class Server:
    """One server, its life and deaths."""

    def __init__(self, root: Path, callbacks: str, on_restart: str, seed: int) -> None:
        self.callbacks, self.on_restart = callbacks, on_restart
        self.directory = root / callbacks
        self.directory.mkdir()
        self.disk = Disk(self.directory)
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.log = (self.directory / "log").open("a")

    def start(self) -> None:
        arguments = [str(self.port), str(self.directory), self.callbacks, self.on_restart]
        command = [sys.executable, str(HERE / "chaos_server.py"), *arguments]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    async def ready(self) -> None:
        """Return when it answers."""
        until = time.monotonic() + START_SEC
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended by itself: {self.last_words()}")
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                return await self.get("/health")
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the server does not answer: {self.last_words()}")

    async def get(self, path: str) -> dict:
        timeout = aiohttp.ClientTimeout(5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(self.origin + path) as answer:
                return await answer.json()

    def last_words(self) -> str:
        return (self.directory / "log").read_text()[-1500:]

    async def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait, 60)

    async def suffer(self, kills: int) -> None:
        """Be killed so many times, at any moment, the start included."""
        while self.counts["kills"] < kills:
            if self.dice.random() < 0.8:
                await self.ready()
            if self.dice.random() < FILLS:
                await self._run_full()
            await asyncio.sleep(self.dice.uniform(*LIFE_SEC))
            is_drained = self.dice.random() < DRAINS
            if is_drained:
                await self.ready()
            await self.end(signal.SIGTERM if is_drained else signal.SIGKILL)
            self.counts["drains" if is_drained else "kills"] += 1
            self.start()
        await self.ready()

    async def _run_full(self) -> None:
        await self.ready()
        with self.disk.full(self.process.pid):
            self.counts["full disks"] += 1
            await asyncio.sleep(self.dice.uniform(*FULL_SEC))
            if self.dice.random() < 0.3:
                await self.end(signal.SIGKILL)
                self.counts["kills"] += 1
        if self.process.poll() is not None:
            self.start()
            await self.ready()

    def graded(self) -> dict[str, dict[str, list[float]]]:
        """Every reward that its grader gave, by rollout and sample."""
        given: dict[str, dict[str, list[float]]] = {}
        for line in (self.directory / "audit").read_text().splitlines():
            rollout_id, sample_id, reward = json.loads(line)
            given.setdefault(rollout_id, {}).setdefault(sample_id, []).append(reward)
        return given

    async def leaks(self, calm_tasks: int) -> list[str]:
        """What is left over when there is nothing to do."""
        for _ in range(100):
            health, tasks = await self.get("/health"), (await self.get("/chaos"))["tasks"]
            busy = [
                health["lifecycle"]["active_rollouts"],
                health["concurrency"]["running"],
                health["concurrency"]["queued"],
            ]
            if not any(busy) and tasks <= calm_tasks:
                return []
            await asyncio.sleep(0.1)
        return [
            f"{self.callbacks}: active, running, queued {busy}; {tasks} tasks, {calm_tasks} before"
        ]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.disk.close()


def rewards(rollout: Rollout) -> list[tuple[str | None, float | None]]:
    """The samples (None where the protocol has no ids) and rewards in its terminal state."""
    told = rollout.terminal()
    if told.get("sample"):
        return [(None, told["sample"]["reward"])]
    return [(name, sample["reward"]) for name, sample in (told.get("samples") or {}).items()]


def violations(server: Server, rollouts: list[Rollout]) -> list[str]:
    """Everything that its controller was told and should not have been."""
    found: list[str] = []
    given = server.graded()
    for rollout in rollouts:
        name, mine = rollout.rollout_id, given.get(rollout.rollout_id, {})
        if not rollout.is_over:
            found.append(f"lost: {name}")
            continue
        found += [
            f"told twice, differently: {name} {part}: {sorted(set(bodies))}"
            for part, bodies in rollout.told.items()
            if len(set(bodies)) > 1
        ]
        for sample, reward in rewards(rollout):
            known = mine.get(sample, []) if sample else [r for some in mine.values() for r in some]
            if reward is not None and reward not in known:
                found.append(f"no grader gave it: {name} {sample} {reward}, but {known}")
            if reward is None and rollout.terminal()["status"] == "success":
                found.append(f"success without a reward: {name} {sample}")
        if server.on_restart == "fail" and any(len(some) > 1 for some in mine.values()):
            found.append(f"ran twice: {name} {mine}")
    return found


class Chaos:
    """A whole run."""

    def __init__(self, kills: int, seed: int) -> None:
        self.kills, self.seed = kills, seed
        self.faults = Faults(seed)
        self.found: list[str] = []
        self._dying = 0
        """Servers that are still killed now and then."""
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        with tempfile.TemporaryDirectory() as root, unruly_policy(self.faults) as policy:
            servers = [
                Server(Path(root), "multi-sample", "fail", self.seed + 1),
                Server(Path(root), "single-sample", "rerun", self.seed + 2),
            ]
            try:
                async with Listener(self.faults) as listener:
                    self._dying = len(servers)
                    jobs = [self._on(server, listener, policy.base_url) for server in servers]
                    await asyncio.gather(*jobs)
                    self.found += [f"callback of nobody: {path}" for path in listener.unknown]
            finally:
                for server in servers:
                    server.close()
        self.counts.update(self.faults.counts)

    async def _on(self, server: Server, listener: Listener, policy: str) -> None:
        server.start()
        await server.ready()
        calm = (await server.get("/chaos"))["tasks"]
        faults = self.faults
        async with Controller(server.origin, server.callbacks, listener, policy, faults) as mine:
            dying = asyncio.create_task(server.suffer(self.kills // 2))
            workers = [asyncio.create_task(self._work(mine, dying)) for _ in range(AT_ONCE)]
            try:
                await dying
                self._dying -= 1
                faults.is_kind = self._dying == 0
                await asyncio.wait(workers, timeout=SETTLE_SEC)
            finally:
                for task in workers:
                    task.cancel()
                over = await asyncio.gather(*workers, return_exceptions=True)
            self.found += [f"driver: {error!r}" for error in over if isinstance(error, Exception)]
            accepted = [rollout for rollout in mine.rollouts if rollout.is_accepted]
            polled = [r for r in accepted if r.protocol == "polling" and r.is_over]
            for rollout in polled:
                await mine.poll(rollout)
            self.found += mine.broken + violations(server, accepted)
        self.found += await server.leaks(calm)
        self._count(server, mine, accepted)

    async def _work(self, controller: Controller, dying: asyncio.Task) -> None:
        while not dying.done():
            await controller.drive(controller.new_rollout())

    def _count(self, server: Server, controller: Controller, accepted: list[Rollout]) -> None:
        self.counts += server.counts
        self.counts["rollouts accepted"] += len(accepted)
        self.counts["submissions refused"] += sum(controller.refusals.values())
        for rollout in accepted:
            again = sum(
                len(bodies) - 1 for name, bodies in rollout.told.items() if name != "result"
            )
            self.counts["callbacks told again"] += again
            if rollout.is_over:
                end = rollout.terminal()
                why = "restarted" if "restarted" in (end["err_message"] or "") else end["status"]
                self.counts[f"{rollout.protocol}: {why}"] += 1


def main(kills: int = 100, seed: int | None = None) -> Chaos:
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chaos = Chaos(kills, seed)
    print(f"seed {seed}", flush=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # broken off on purpose
    began = time.monotonic()
    asyncio.run(chaos.run())
    print(f"{time.monotonic() - began:.0f} s")
    for name, count in sorted(chaos.counts.items()):
        print(f"{count:>8,} {name}")
    for line in chaos.found[:20]:
        print("VIOLATION", line)
    return chaos


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:])).found))
