"""Start a worker's process, keep its log, and say how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from osmosis_process.worker import main; main(*map(int, sys.argv[1:]))"
)


def start(descriptor: int, log: Path) -> subprocess.Popen[bytes]:
    """A worker at the other end of a socket, in a process group of its own; raises OSError."""
    flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    arguments = [str(descriptor), str(os.getpid()), json.dumps(sys.path)]
    output = _opened(log)
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", _MAIN, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[descriptor],
            start_new_session=True,
        )
    finally:
        if not isinstance(output, int):
            output.close()


def _opened(log: Path) -> IO[bytes] | int:
    for _ in range(3):  # another worker's end may remove the folder
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            return log.open("wb")
    return subprocess.DEVNULL


def has_text(log: Path) -> bool:
    """True when something was printed."""
    try:
        return log.stat().st_size > 0
    except OSError:
        return False


def remove_if_empty(log: Path) -> None:
    """Leave no log of a worker that printed nothing, nor a folder of none."""
    with suppress(OSError):
        if not has_text(log):
            log.unlink()
        log.parent.rmdir()


def exit_reason(code: int) -> str:
    """How a process ended that nobody here has killed."""
    if code >= 0:
        return f"exited with code {code}"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
