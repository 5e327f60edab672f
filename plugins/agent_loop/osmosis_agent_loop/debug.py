"""Debug logs: a file of JSON lines per rollout, below one directory that no rollout id leaves."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import urllib.parse
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_MAX_FILE_NAME = 255


def log_file(directory: Path, rollout_id: str) -> Path:
    """The log of a rollout: its id, percent-encoded where needed; a digest of one too long."""
    name = f"{urllib.parse.quote(rollout_id, safe=' ')}.jsonl"
    if len(name) > _MAX_FILE_NAME:
        name = f"{hashlib.sha256(rollout_id.encode()).hexdigest()}.jsonl"
    return directory / name


def timestamped(directory: str | Path) -> Path:
    """`<directory>/<unix seconds>`, as servers lay their logs down."""
    return Path(directory) / str(int(time.time()))


def write_event(directory: Path, rollout_id: str, event: str, data: dict[str, Any]) -> None:
    """Append one event; what cannot be written is a warning in the process's log."""
    line = {"event": event, "rollout_id": rollout_id, **data}
    try:
        text = json.dumps(line, default=str)
        directory.mkdir(parents=True, exist_ok=True)
        with log_file(directory, rollout_id).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        _log.warning("rollout %r: event %r is not logged: %s", rollout_id, event, error)
