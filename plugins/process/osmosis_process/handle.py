"""A worker process as its host sees it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from osmosis_core import BackendError, ExecutionResult, RolloutErrorCategory
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import Run
from osmosis_core.errors import describe, one_line
from osmosis_process.program import Parcel
from osmosis_process.spawn import exit_reason, has_text, remove_if_empty, start
from osmosis_process.wire import receive, send

_START_SEC = 60.0
_EXIT_SEC = 3.0
_DUMP_SEC = 0.2
_numbers = count(1)

type Blame = Literal["late", "alone", "one of many", "none"]


class WorkerLostError(Exception):
    """A phase has no result, because its worker ended or was given up."""

    def __init__(self, reason: str, blame: Blame) -> None:
        super().__init__(reason)
        self.blame: Blame = blame
        """`late`: the phase did not end when it had to; `alone`: nothing else could have ended the
        worker; `none`: the worker was killed for another phase's sake."""


@dataclass(slots=True)
class _Placed:
    """A phase in the worker."""

    result: asyncio.Future[ExecutionResult]
    is_late: bool = False


class Worker:
    """A process that runs phases; it lives until it is closed, lost, or its event loop ends.

    Args:
        parcel: the program that it runs.
        log: file for what is printed outside of rollouts; removed when it stays empty.
        grace_sec: seconds that a phase has to end after its deadline or a cancel.
    """

    def __init__(self, parcel: Parcel, log: Path, grace_sec: float) -> None:
        self.phases: dict[int, _Placed] = {}
        self.workflows = 0
        """How many it was given."""
        self.memory_mb = 0.0
        """Resident memory when a phase last ended."""
        self.is_active = True
        """False when it takes no more phases."""
        self._log = log
        self._grace_sec = grace_sec
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._outbox: list[tuple[Any, ...]] = [(parcel,)]
        self._heard_at = 0.0
        self._lost: tuple[str, Blame] | None = None
        self._is_closing = False
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = True
        self._signalling = threading.Lock()
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._live, args=[theirs], name=log.stem, daemon=True).start()
        late = f"did not load its program within {_START_SEC:.0f} s", "alone"
        self._start_limit = self._loop.call_later(_START_SEC, self._kill, *late)
        self._listening = self._loop.create_task(self._listen(ours))

    @property
    def pid(self) -> int:
        """Of the process, and of its process group; 0 until it has started."""
        return self._process.pid if self._process else 0

    @property
    def is_over(self) -> bool:
        """True once the process has ended and everyone was told."""
        return self._listening.done()

    async def run(self, run: Run, phase: Phase, limit_sec: float | None) -> ExecutionResult:
        """The phase's result; the worker is killed if it does not end what has passed its limit.

        Raises:
            BackendError: the phase or its result cannot be pickled.
            WorkerLostError: there will be no result.
        """
        number, data = next(_numbers), _pickled(phase)
        placed = self.phases[number] = _Placed(self._loop.create_future())
        self.workflows += phase.samples is None
        self._send(("run", number, data, time.monotonic()))
        run.stop = partial(self._end, number, ("cancel", number))
        if run.cutoff.cancelled:
            run.stop()
        limit = None
        if limit_sec is not None:
            limit = self._loop.call_later(max(limit_sec, 0.0), self._end, number, ("alive?",))
        try:
            return await placed.result
        finally:
            if limit is not None:
                limit.cancel()

    def retire(self) -> None:
        """Take no more phases, and end when there are none left."""
        self.is_active = False
        if not self.phases and self._writer is not None and not self._is_closing:
            self._is_closing = True
            with suppress(OSError):
                self._writer.write_eof()
            self._loop.call_later(_EXIT_SEC, self._kill)

    async def close(self) -> None:
        """End the process; what runs has `grace_sec` for its result."""
        self.is_active = False
        if self._writer is None:
            self._kill()
        results = [placed.result for placed in self.phases.values()]
        if results:
            await asyncio.wait(results, timeout=self._grace_sec)
        if self.phases:
            self._kill("was shut down")
        self.retire()
        await asyncio.wait([self._listening])

    def kill(self) -> None:
        """End the process now; safe from any thread and without a loop."""
        self._is_wanted = False
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        with self._signalling, suppress(ProcessLookupError, PermissionError):
            if self._process is not None and self._process.returncode is None:
                send(self._process.pid, number)

    def _kill(self, reason: str = "", blame: Blame = "none") -> None:
        self.is_active = False
        if reason and self._lost is None:
            self._lost = reason, blame
        self.kill()

    def _send(self, message: tuple[Any, ...]) -> None:
        if self._writer is None:
            self._outbox.append(message)
        else:
            send(self._writer, message)

    def _end(self, number: int, message: tuple[Any, ...]) -> None:
        """A phase must end now; the message says so to the worker, or asks whether it listens."""
        placed = self.phases.get(number)
        if placed is None:
            return
        self._send(message)
        if not placed.is_late:
            placed.is_late = True
            self._send(("alive?",))
            self._loop.call_later(self._grace_sec, self._check, number, time.monotonic(), True)

    def _check(self, number: int, since: float, is_patient: bool) -> None:
        if number not in self.phases:
            return
        if self._writer is None or not self._heard_at:
            self._give_up(number, "had not started")
        elif self._heard_at < since:
            self._interrupt(f"did not answer for {self._grace_sec:g} s and was killed")
        elif is_patient:  # its loop runs: samples may be collected still
            self._loop.call_later(self._grace_sec, self._check, number, since, False)
        else:
            self._give_up(number, f"went on with it for {2 * self._grace_sec:g} s")
            self.retire()

    def _give_up(self, number: int, reason: str) -> None:
        self._send(("cancel", number))
        _fail(self.phases.pop(number), WorkerLostError(f"its worker {reason}", "late"))

    def _interrupt(self, reason: str) -> None:
        """Kill it, once it has written to its log where it is."""
        self.is_active = False
        self._lost = self._lost or (reason, "none")
        self._signal(os.kill, signal.SIGUSR1)
        self._loop.call_later(_DUMP_SEC, self._kill)

    def _live(self, theirs: socket.socket) -> None:
        """Start the process, wait for its end, end its children and tell the loop: in a thread.

        What dies with its parent dies with the thread that started it, so this one stays.
        """
        code = 0
        try:
            with self._signalling, theirs:
                if self._is_wanted:
                    self._process = start(theirs.fileno(), self._log)
            if self._process is not None:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                self._signal(os.killpg, signal.SIGKILL)
                with self._signalling:
                    code = self._process.wait()
        except OSError as error:
            self._lost = self._lost or (f"cannot be started: {error}", "none")
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)
        if self._writer is not None:  # whoever else holds the socket does not keep us waiting
            self._loop.call_later(0.5, self._writer.transport.abort)

    async def _listen(self, sock: socket.socket) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(sock=sock)
            for message in self._outbox:
                self._send(message)
            self._outbox.clear()
            while (message := await receive(reader)) is not None:
                self._heard_at = time.monotonic()
                self._take(message)
            self.is_active = False
            await asyncio.wait([self._exit_code], timeout=_EXIT_SEC)
            if not self._exit_code.done():
                self._kill("hung up and was killed", "one of many")
            self._fail_all(await self._exit_code)
        finally:
            self._kill()
            self._start_limit.cancel()
            if self._writer is not None:
                self._writer.transport.abort()
            sock.close()
            remove_if_empty(self._log)

    def _take(self, message: tuple[Any, ...]) -> None:
        self._start_limit.cancel()
        match message:
            case ("result", number, data, memory_mb):
                self.memory_mb = memory_mb
                placed = self.phases.pop(number, None)
                if placed is not None:
                    _deliver(placed, data)
                if not self.is_active:
                    self.retire()
            case ("broken", text):
                self._kill(f"cannot load the program: {text}", "alone")
            case _:
                pass

    def _fail_all(self, code: int) -> None:
        crash: Blame = "alone" if len(self.phases) == 1 else "one of many"
        reason, blame = self._lost or (exit_reason(code), crash)
        where = f"; see {self._log}" if has_text(self._log) else ""
        for placed in self.phases.values():
            text = f"its worker (process {self.pid}) {reason}{where}"
            _fail(placed, WorkerLostError(text, "late" if placed.is_late else blame))
        self.phases.clear()


def _pickled(phase: Phase) -> bytes:
    try:
        return pickle.dumps(phase, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # what is in a row's metadata raises anything
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise BackendError(
            f"the rollout cannot be sent to a worker ({why}); put plain values into its row",
            category=RolloutErrorCategory.VALIDATION_ERROR,
        ) from error


def _deliver(placed: _Placed, data: bytes) -> None:
    try:
        result = pickle.loads(data)
    except Exception as error:  # classes of the user's that are not here raise anything
        why = one_line(f"{type(error).__name__}: {describe(error)}", 200)
        text = f"the worker's result cannot be read here ({why}); put plain values into samples"
        _fail(placed, BackendError(text, category=RolloutErrorCategory.VALIDATION_ERROR))
    else:
        if not placed.result.done():
            placed.result.set_result(result)


def _fail(placed: _Placed, error: Exception) -> None:
    if not placed.result.done():
        placed.result.set_exception(error)
