"""Writes what stays of rollouts, in a thread of its own: never in the way, no reason to fail."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pydantic_core

from osmosis_core import ExecutionRequest, ExecutionResult
from osmosis_server.artifacts import Trimmed, enforce_limits, rollout_dir
from osmosis_server.trajectory.document import (
    Document,
    apply_report,
    documents,
    read_report,
)

logger = logging.getLogger(__name__)

_BACKLOG = 1_000
_COMPLAIN_EVERY_SEC = 10.0
_MIN_SECRET = 8


class RolloutFiles:
    """The files of finished rollouts below one directory, written in the background.

    For each rollout the limits on its artifacts are enforced, and its trajectories and
    diagnostics are written, each at once or not at all. What fails is logged in one line. When
    the disk is slower than the rollouts, those beyond a backlog of 1,000 are left out, and that
    is logged too.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_artifact_bytes: int,
        max_artifact_files: int,
        documents: bool = True,
    ) -> None:
        self.root = root
        self._limits = max_artifact_bytes, max_artifact_files
        self._has_documents = documents
        self._reports: dict[str, bytes] = {}
        self._thread = ThreadPoolExecutor(1, "osmosis-files")
        self._lock = threading.Lock()
        self._waiting = self._failed = 0
        self._is_closed = False
        self._complained_at = 0.0

    def save(
        self, request: ExecutionRequest, result: ExecutionResult, secrets: Sequence[str | None] = ()
    ) -> None:
        """Write what stays of a rollout that has ended; returns at once.

        `secrets` are keys that are blotted out wherever they occur in the files.
        """
        self._submit(request.id, lambda: self._save(request, result, secrets))

    def acknowledged(self, rollout_id: str, body: bytes, *, is_last: bool) -> None:
        """Take in what a controller answered to a callback; the last report counts."""
        if b'"trajectory"' in body:
            self._reports[rollout_id] = body
        if is_last and self._reports:
            report = self._reports.pop(rollout_id, None)
            if report is not None:
                self._submit(rollout_id, lambda: self._add_report(rollout_id, report))

    async def close(self, timeout_sec: float) -> None:
        """Finish what is waiting, within the time; the rest is left out."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, int)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_sec):
                await done
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, rollout_id: str, work: Callable[[], None]) -> None:
        if self._is_closed or self._waiting >= _BACKLOG:
            self._complain(rollout_id, f"{self._waiting:,} rollouts are waiting to be written")
            return
        with self._lock:
            self._waiting += 1
        self._thread.submit(self._work, rollout_id, work)

    def _work(self, rollout_id: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever users put into samples and directories
            self._complain(rollout_id, f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._waiting -= 1

    def _complain(self, rollout_id: str, why: str) -> None:
        now = time.monotonic()
        if now - self._complained_at < _COMPLAIN_EVERY_SEC:
            self._failed += 1
            return
        text = "files of rollout %s in %s are not complete: %s (and those of %d others since)"
        logger.warning(text, rollout_id, self.root, why, self._failed)
        self._complained_at, self._failed = now, 0

    def _save(
        self, request: ExecutionRequest, result: ExecutionResult, secrets: Sequence[str | None]
    ) -> None:
        directory = rollout_dir(self.root, request.id)
        trimmed = enforce_limits(directory / "artifacts", *self._limits)
        if not trimmed.is_whole:
            logger.warning("artifacts of rollout %s: %s", request.id, _told(trimmed))
        if not self._has_documents:
            return
        directory.mkdir(parents=True, exist_ok=True)
        hidden = [s.encode() for s in secrets if s and len(s) >= _MIN_SECRET]
        for name, document in documents(request, result).items():
            _write(directory / name, document, hidden)
        _write(directory / "diagnostics.json", _diagnostics(request, result, trimmed), hidden)

    def _add_report(self, rollout_id: str, acknowledgment: bytes) -> None:
        report = read_report(acknowledgment)
        directory = rollout_dir(self.root, rollout_id)
        paths = sorted(directory.glob("trajectory*.json")) if report else []
        found: dict[str, Document] = {path.name: json.loads(path.read_bytes()) for path in paths}
        if report is not None and found:
            apply_report(found, report)
            for name, document in found.items():
                _write(directory / name, document, [])


def _told(trimmed: Trimmed) -> str:
    return (
        f"{trimmed.removed_files} of {trimmed.files} files ({trimmed.removed_bytes:,} of "
        f"{trimmed.bytes:,} bytes) and {trimmed.removed_others} links or devices removed"
    )


def _diagnostics(
    request: ExecutionRequest, result: ExecutionResult, trimmed: Trimmed
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rollout_id": request.id,
        "status": result.status,
        "err_message": result.err_message,
        "err_category": result.err_category,
        "extra_fields": result.extra_fields,
        "artifacts": None if trimmed.is_whole else _told(trimmed),
    }
    return {name: value for name, value in found.items() if value is not None}


def _write(path: Path, document: Document, secrets: Sequence[bytes]) -> None:
    """Write a document beside its place, step by step, then put it there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _created(draft) as file:
            for part in _parts(document):
                for secret in secrets:
                    part = part.replace(secret, b"[redacted]")
                file.write(part)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _created(path: Path) -> BinaryIO:
    """A new file, never one that lies there already or that a link there points to."""
    try:
        return path.open("xb")
    except FileExistsError:
        path.unlink()
        return path.open("xb")


def _parts(document: Document) -> Generator[bytes]:
    """A document as JSON; each step on its own, so that none keeps the interpreter for long."""
    rest = {name: value for name, value in document.items() if name != "steps"}
    if "steps" not in document:
        yield _json(rest)
        return
    yield _json(rest)[:-1] + b',"steps":['
    for position, step in enumerate(document["steps"]):
        yield b"," * (position > 0) + _json(step)
    yield b"]}"


def _json(value: Any) -> bytes:
    """JSON of whatever users put into samples; numbers that are not finite are null."""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="null", fallback=_plain)
    except ValueError:  # surrogates, which only escapes can write
        plain = pydantic_core.to_jsonable_python(value, inf_nan_mode="null", fallback=_plain)
        return json.dumps(plain).encode()


def _plain(value: Any) -> Any:
    """Arrays and numbers of NumPy and its like, packed sequences, and anything else as text."""
    if callable(to_list := getattr(value, "tolist", None)):
        return to_list()
    return list(value) if isinstance(value, Sequence) else str(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
