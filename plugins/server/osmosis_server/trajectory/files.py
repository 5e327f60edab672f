"""Writes what stays of rollouts, in a thread of its own: never in the way, no reason to fail."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from osmosis_core import ExecutionRequest, ExecutionResult, RolloutStatus
from osmosis_server.artifacts import Trimmed, enforce_limits, rollout_dir
from osmosis_server.observer import ServiceObserver
from osmosis_server.submissions import Submission
from osmosis_server.trajectory.document import (
    Document,
    Report,
    apply_report,
    documents,
    read_report,
)
from osmosis_server.trajectory.writing import write_json

logger = logging.getLogger(__name__)

_BACKLOG = 1_000
_COMPLAIN_EVERY_SEC = 10.0
_MIN_SECRET = 8
_REMEMBERED = 256
_TIMES = {"queued_sec", "duration_sec", "grading_sec"}

type _Work = tuple[str, Callable[[], None]]
"""A rollout's id, and what to do about it."""


class RolloutFiles(ServiceObserver):
    """The files of finished rollouts below one directory, written in the background.

    For each rollout the limits on its artifacts are enforced, and its trajectories and
    diagnostics are written, each at once or not at all. What fails is logged in one line. When
    the disk is slower than the rollouts, those beyond a backlog of 1,000 are left out, and that
    is logged too.

    Args:
        root: the parent of the rollouts' directories.
        max_artifact_bytes: how much a rollout may leave in its artifacts directory.
        max_artifact_files: how many files.
        has_documents: False enforces the limits and writes nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_artifact_bytes: int,
        max_artifact_files: int,
        has_documents: bool = True,
    ) -> None:
        self._root = root
        self._limits = max_artifact_bytes, max_artifact_files
        self._has_documents = has_documents
        self._reports: OrderedDict[str, Report] = OrderedDict()
        """Of rollouts that have not ended."""
        self._bare: OrderedDict[str, _Made] = OrderedDict()
        """Documents as they were before a report was put into them."""
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="osmosis-files", daemon=True)
        self._thread.start()
        self._failed = 0
        self._is_closed = False
        self._complained_at = -_COMPLAIN_EVERY_SEC

    def rollout_ended(self, submission: Submission, result: ExecutionResult) -> None:
        """Write what stays of it, with the submission's keys blotted out."""
        self._submit(submission.request.id, partial(self._save, submission, result))

    def acknowledged(self, rollout_id: str, delivery: str, trajectory: Any) -> None:
        """Put a controller's report into the documents; a later one replaces it."""
        if self._has_documents:
            self._submit(rollout_id, partial(self._add_report, rollout_id, trajectory))

    async def close(self, timeout_sec: float) -> None:
        """Finish what is waiting, within the time; the rest is left out."""
        self._is_closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout_sec)

    def _submit(self, rollout_id: str, work: Callable[[], None]) -> None:
        waiting = self._queue.qsize()
        if self._is_closed or waiting >= _BACKLOG:
            self._complain(rollout_id, f"{waiting:,} rollouts are waiting to be written")
        else:
            self._queue.put((rollout_id, work))

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            rollout_id, work = taken
            try:
                work()
            except Exception as error:  # whatever users put into samples and directories
                self._complain(rollout_id, f"{type(error).__name__}: {error}")

    def _complain(self, rollout_id: str, why: str) -> None:
        now = time.monotonic()
        if now - self._complained_at < _COMPLAIN_EVERY_SEC:
            self._failed += 1
            return
        text = "files of rollout %s in %s are not complete: %s (and of %d others since the last)"
        logger.warning(text, rollout_id, self._root, why, self._failed)
        self._complained_at, self._failed = now, 0

    def _save(self, submission: Submission, result: ExecutionResult) -> None:
        request = submission.request
        directory = rollout_dir(self._root, request.id)
        artifacts = directory / "artifacts"
        is_new = self._has_documents and _made_directory(directory)
        trimmed = Trimmed() if is_new else enforce_limits(artifacts, *self._limits)
        if not trimmed.is_whole:
            logger.warning("artifacts of rollout %s: %s", request.id, _told(trimmed))
        if not self._has_documents:
            return
        keys = (submission.llm_api_key, submission.reply_key)
        secrets = [key.encode() for key in keys if key and len(key) >= _MIN_SECRET]
        made = _Made(documents(request, result), secrets)
        report = self._reports.pop(request.id, None)
        if report is not None:
            made = self._reported(request.id, made, report)
        if diagnostics := _diagnostics(request, result, trimmed):
            made.documents["diagnostics.json"] = diagnostics
        made.write(directory)

    def _add_report(self, rollout_id: str, trajectory: Any) -> None:
        report = read_report(trajectory)
        directory = rollout_dir(self._root, rollout_id)
        paths = sorted(directory.glob("trajectory*.json"))
        if report is None:
            return
        if not paths:
            _remember(self._reports, rollout_id, report)
            return
        known = self._bare.get(rollout_id)
        if known is None:
            known = _Made({path.name: json.loads(path.read_bytes()) for path in paths}, [])
        self._reported(rollout_id, known, report).write(directory)

    def _reported(self, rollout_id: str, bare: _Made, report: Report) -> _Made:
        _remember(self._bare, rollout_id, bare)
        reported = copy.deepcopy(bare)
        apply_report(reported.documents, report)
        return reported


@dataclass(frozen=True, slots=True)
class _Made:
    documents: dict[str, Document]
    """By file name."""
    secrets: Sequence[bytes]

    def write(self, directory: Path) -> None:
        for name, document in self.documents.items():
            write_json(directory / name, document, self.secrets)


def _remember[T](kept: OrderedDict[str, T], rollout_id: str, value: T) -> None:
    kept[rollout_id] = value
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def _told(trimmed: Trimmed) -> str:
    return (
        f"{trimmed.removed_files} of {trimmed.files} files ({trimmed.removed_bytes:,} of "
        f"{trimmed.bytes:,} bytes) and {trimmed.removed_others} links or devices removed"
    )


def _diagnostics(request: ExecutionRequest, result: ExecutionResult, trimmed: Trimmed) -> Document:
    """What is worth knowing beside the samples; nothing where all went well."""
    found: Document = {
        "err_message": result.err_message,
        "err_category": result.err_category,
        "extra_fields": result.extra_fields if result.extra_fields.keys() - _TIMES else None,
        "artifacts": None if trimmed.is_whole else _told(trimmed),
    }
    known = {name: value for name, value in found.items() if value is not None}
    if not known and result.status is RolloutStatus.SUCCESS:
        return {}
    known.setdefault("extra_fields", result.extra_fields)
    return {"rollout_id": request.id, "status": result.status, **known}


def _made_directory(path: Path) -> bool:
    """Make a directory; False when there is one."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
