"""What runs in a Ray worker process: many rollouts on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis_core import (
    BackendError,
    ConfigError,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.errors import describe, one_line
from osmosis_core.execution import Cutoff, Program, failed
from osmosis_core.plugins import get_plugins
from osmosis_ray.artifacts import pack, snapshot, unpack
from osmosis_ray.shipment import Shipment
from osmosis_ray.untyped import cloudpickle

_PREFIX = "osmosis-ray-"


@dataclass(frozen=True, slots=True)
class Started:
    """What a worker says once it is there."""

    where: str
    """Its host name and process id, for people."""
    pid: int
    problem: str | None
    """Why it cannot run rollouts; None when it can."""


class RolloutWorker:
    """The actor: runs phases of rollouts, several at a time, until it is killed."""

    def __init__(self, shipment: Shipment, artifacts_limit: int) -> None:
        get_plugins().is_silent = True
        self._limit = artifacts_limit
        self._cutoffs: dict[int, Cutoff] = {}
        self._folder = _Folder()
        self._program: Program | None = None
        self._problem: str | None = None
        try:
            self._program = shipment.load()
        except ConfigError as error:
            self._problem = str(error)
        except BaseException as error:  # boundary: importing user code raises anything
            self._problem = (
                f"its code cannot be imported: {type(error).__name__}: {describe(error)}"
            )

    async def start(self) -> Started:
        """Answer once the program is loaded, or why it is not."""
        where = f"{os.uname().nodename}, pid {os.getpid()}"
        return Started(where, os.getpid(), one_line(self._problem) if self._problem else None)

    async def run(self, key: int, phase: bytes, files: bytes) -> tuple[bytes, bytes]:
        """Run a pickled Phase, and return its pickled result and the artifacts that are new."""
        given: Phase = pickle.loads(phase)
        assert self._program is not None and given.artifacts_dir is not None
        directory = self._folder.rollouts / given.artifacts_dir.parent.name / "artifacts"
        cutoff = self._cutoffs.setdefault(key, Cutoff())
        try:
            if files:
                await asyncio.to_thread(unpack, files, directory)
            before = snapshot(directory) if files else None
            result = await replace(given, artifacts_dir=directory).run(self._program, cutoff)
            files, left_out = b"", list[str]()
            if directory.exists():
                files, left_out = await asyncio.to_thread(pack, directory, self._limit, before)
        finally:
            del self._cutoffs[key]
            if directory.exists():
                await asyncio.to_thread(shutil.rmtree, directory.parent, ignore_errors=True)
        if left_out:
            extra = {**result.extra_fields, "artifacts_left_out": left_out}
            result = replace(result, extra_fields=extra)
        return _pickled(result), files

    async def cancel(self, key: int) -> None:
        """End a phase; the call that runs it returns what it has."""
        self._cutoffs.setdefault(key, Cutoff()).cancel()

    async def close(self) -> None:
        """Clean up before being killed."""
        self._folder.remove()


def _pickled(result: ExecutionResult) -> bytes:
    try:
        return cloudpickle.dumps(result)
    except Exception as error:  # boundary: samples hold what frameworks and users put there
        samples = {name: _portable(sample) for name, sample in result.samples.items()}
        names = [name for name, sample in samples.items() if sample is not result.samples[name]]
        what = f"sample {names[0]!r}" if names else "what the workflow returned as info"
        text = f"{what} cannot be sent back: {describe(error)}; keep plain data there"
        refusal = BackendError(text, category=RolloutErrorCategory.VALIDATION_ERROR)
        return cloudpickle.dumps(failed(refusal, samples))


def _portable(sample: RolloutSample) -> RolloutSample:
    """The sample if it can travel, else its policy calls."""
    try:
        cloudpickle.dumps(sample)
    except Exception:  # boundary: as above
        return RolloutSample(id=sample.id, label=sample.label, calls=sample.calls)
    return sample


class _Folder:
    """A temporary folder of this process, locked; those of workers that were killed are removed."""

    def __init__(self) -> None:
        for stale in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), (stale / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale, ignore_errors=True)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = (unlocked / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._home = unlocked.rename(unlocked.with_name(unlocked.name.removeprefix(".")))
        self.rollouts = self._home / "rollouts"

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._home, ignore_errors=True)
