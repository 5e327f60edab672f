"""What a rollout prints goes to its artifacts, although several share the worker's streams."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Buffer, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO


class _Capture:
    """The open files of one rollout; made when something is printed."""

    def __init__(self, directory: Path, secret: str | None) -> None:
        self._directory: Path | None = directory
        self._secret = secret.encode() if secret else None
        self._files: dict[str, BinaryIO] = {}

    def write(self, name: str, data: bytes) -> bool:
        """Append to a file; False when there is no place for it (any more)."""
        if self._directory is None:
            return False
        try:
            if name not in self._files:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._files[name] = (self._directory / name).open("ab", buffering=0)
            self._files[name].write(data.replace(self._secret, b"***") if self._secret else data)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        self._directory = None
        for file in self._files.values():
            file.close()


_capture: ContextVar[_Capture | None] = ContextVar("osmosis_process_capture", default=None)


@contextmanager
def captured(directory: Path | None, secret: str | None) -> Generator[None]:
    """Write what is printed in this context to `stdout.log` and `stderr.log` in the directory.

    The secret is left out. Threads that inherit no context, and what C code writes, print to the
    worker's own log.
    """
    capture = None if directory is None else _Capture(directory, secret)
    token = _capture.set(capture)
    try:
        yield
    finally:
        _capture.reset(token)
        if capture is not None:
            capture.close()


class _Routed(io.RawIOBase):
    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Buffer, /) -> int:
        given = bytes(data)
        capture = _capture.get()
        if capture is None or not capture.write(self._name, given):
            left = given
            while left:
                left = left[os.write(self._descriptor, left) :]
        return len(given)


def route_streams() -> None:
    """Give `sys.stdout` and `sys.stderr` to the rollouts that print."""
    sys.stdout = _text("stdout.log", 1)
    sys.stderr = _text("stderr.log", 2)


def _text(name: str, descriptor: int) -> io.TextIOWrapper:
    raw = _Routed(name, descriptor)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)  # pyright: ignore[reportArgumentType]
