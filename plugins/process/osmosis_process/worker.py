"""The process that runs phases: one event loop, as many rollouts at once as its host sends."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from osmosis_core import ExecutionResult, RolloutErrorCategory, RolloutSample, WorkflowError
from osmosis_core.backends.phase import Phase
from osmosis_core.errors import describe, one_line
from osmosis_core.execution import Cutoff, Program, failed
from osmosis_core.plugins import get_plugins
from osmosis_process.output import captured, route_streams
from osmosis_process.wire import receive, receive_blocking, send

is_serving = False
"""True in a worker."""

_EXIT_SEC = 2.0
_OPEN_FIELDS: dict[str, Any] = {"messages": [], "metrics": {}, "extra_fields": {}}
"""What users fill in a sample, and what replaces it when it cannot travel."""

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, host: int) -> None:
    """Serve the host, process `host`, at the other end of the socket until it hangs up."""
    global is_serving
    is_serving = True
    _die_with(host)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    route_streams()
    get_plugins().is_silent = True
    with socket.socket(fileno=descriptor) as sock, asyncio.Runner() as runner:
        (parcel,) = receive_blocking(sock)
        ready, program = _opened(parcel)
        serving = runner.get_loop().create_task(_serve(sock, ready, program))
        while not serving.done():
            try:
                runner.get_loop().run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt):  # of a task that user code has made
                continue
        late = threading.Timer(_EXIT_SEC, os._exit, [0])  # code that does not let go
        late.daemon = True
        late.start()


def _die_with(host: int) -> None:
    """End when the host does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=[host], daemon=True).start()
    if os.getppid() != host:
        os._exit(1)


def _watch(host: int) -> None:
    while os.getppid() == host:
        time.sleep(1)
    os._exit(1)


def _opened(parcel: Any) -> tuple[tuple[str, ...], Program | None]:
    """What to tell the host, and the program unless it cannot be loaded."""
    try:
        return ("ready",), parcel.open()
    except BaseException as error:  # boundary: user modules raise anything
        return ("broken", one_line(f"{type(error).__name__}: {describe(error)}", 500)), None


async def _serve(sock: socket.socket, ready: tuple[str, ...], program: Program | None) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    send(writer, ready)
    if program is not None:
        await _Server(program, lambda message: send(writer, message)).run(reader)
    writer.close()
    await writer.wait_closed()


class _Server:
    """Runs the phases that arrive, each in a task of its own."""

    def __init__(self, program: Program, answer: Callable[[tuple[Any, ...]], None]) -> None:
        self._program = program
        self._answer = answer
        self._cutoffs: dict[int, Cutoff] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            match message:
                case ("run", number, data, sent_at):
                    self._cutoffs[number] = Cutoff()
                    task = asyncio.create_task(self._run(number, data, sent_at))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case ("cancel", number):
                    if number in self._cutoffs:
                        self._cutoffs[number].cancel()
                case _:
                    self._answer(("alive",))

    async def _run(self, number: int, data: bytes, sent_at: float) -> None:
        try:
            phase: Phase = pickle.loads(data)
            spent_sec = phase.spent_sec + time.monotonic() - sent_at  # one clock on one machine
            phase = replace(phase, spent_sec=spent_sec)
            result = dumped(await self._result(phase, self._cutoffs[number]))
        except BaseException as error:  # boundary: what the kernel lets through, such as Ctrl-C
            text = f"raised {type(error).__name__}: {describe(error)}"
            result = dumped(failed(WorkflowError(one_line(text, 500)), {}))
        del self._cutoffs[number]
        self._answer(("result", number, result, memory_mb()))

    async def _result(self, phase: Phase, cutoff: Cutoff) -> ExecutionResult:
        with captured(phase.artifacts_dir, phase.policy["api_key"]):
            return await phase.run(self._program, cutoff)


def dumped(result: ExecutionResult) -> bytes:
    """The pickle of a result, or of the failure that says what of it has none."""
    try:
        return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # what users put into samples raises anything
        why = one_line(f"{type(error).__name__}: {error}", 200)
    stuck = "the result"
    samples: dict[str, RolloutSample] = {}
    for sample_id, sample in result.samples.items():
        held = [name for name in _OPEN_FIELDS if not _travels(getattr(sample, name))]
        stuck = f"{held[0]} of sample {sample_id!r}" if held else stuck
        samples[sample_id] = sample.model_copy(update={name: _OPEN_FIELDS[name] for name in held})
    text = f"{stuck} cannot leave the worker ({why}); put plain values there"
    refused = WorkflowError(text, category=RolloutErrorCategory.VALIDATION_ERROR)
    return pickle.dumps(failed(refused, samples), pickle.HIGHEST_PROTOCOL)


def _travels(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # as in `dumped`
        return False
    return True


def memory_mb() -> float:
    """Resident memory of this process; elsewhere than on Linux, the most it ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once per rollout
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
