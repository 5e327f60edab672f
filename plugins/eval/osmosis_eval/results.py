"""The files of an evaluation: a line per finished rollout at once, and a summary at the end."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TextIO, cast

from osmosis_core import AgentRun, ConfigError, RolloutError, RolloutErrorCategory, RolloutSample
from osmosis_eval.runner import Outcome
from osmosis_eval.stats import Tokens

DEFAULT_PARENT = Path(".osmosis/evals")
_RESULTS, _SAMPLES, _SUMMARY = "results.jsonl", "samples.jsonl", "summary.json"
_MAX_NAME = 96
_MAX_DEPTH = 64
_MIN_SECRET = 8
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters that JSON allows in a line and `str.splitlines` does not."""

type Redact = Callable[[str], str]


def run_name(name: str) -> str:
    """A name for one evaluation: the workflow's, reduced to safe characters, and the time."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:_MAX_NAME]
    return f"{safe or 'eval'}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def check_unused(directory: Path) -> None:
    """Raise ConfigError if the directory holds an evaluation: nothing is ever overwritten."""
    if directory == Path() or directory.is_file():
        raise ConfigError(f"output {str(directory)!r} is not a directory of its own; give another")
    for name in (_RESULTS, _SAMPLES, _SUMMARY):
        with _usable(directory):
            is_used = (directory / name).exists()
        if is_used:
            raise ConfigError(
                f"{str(directory)!r} has a {name} already; choose another directory with --output"
            )


def create_directory(wanted: Path | None, name: str) -> Path:
    """Create the directory that was asked for, or a new one below `DEFAULT_PARENT`.

    Raises:
        ConfigError: it cannot be created, or holds an evaluation.
    """
    with _usable(wanted or DEFAULT_PARENT):
        if wanted is None:
            return _create_new(DEFAULT_PARENT / name)
        wanted.mkdir(parents=True, exist_ok=True)
    check_unused(wanted)
    return wanted


@contextmanager
def _usable(directory: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"output directory {str(directory)!r}: {_why(error)}") from error


def _create_new(path: Path) -> Path:
    number, candidate = 1, path
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")


def redactor(secret: str | None) -> Redact:
    """Cuts a secret out of text; one too short to be a key is left, it would hit other words."""
    if secret is None or len(secret) < _MIN_SECRET:
        return lambda text: text
    return lambda text: text.replace(secret, "***").replace(_escaped(secret), "***")


def without_secrets(outcome: Outcome, redact: Redact) -> Outcome:
    """The outcome, with a message that may be shown."""
    message = outcome.result.err_message
    if message is None:
        return outcome
    result = dataclasses.replace(outcome.result, err_message=redact(message))
    return dataclasses.replace(outcome, result=result)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


class ResultFiles:
    """`results.jsonl` and `samples.jsonl`, growing; `summary.json`, written last."""

    def __init__(self, directory: Path, redact: Redact) -> None:
        self.directory = directory
        directory = self._place = directory.absolute()  # user code may change the directory
        self._redact = redact
        with _usable(directory):
            self._results = _create(directory / _RESULTS)
            try:
                self._samples = _create(directory / _SAMPLES)
            except OSError:
                self._results.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._results.close()
        self._samples.close()

    def append(self, outcome: Outcome) -> None:
        """Write one rollout down; both lines are on their way to disk when this returns."""
        where = {"rollout_id": outcome.rollout_id, **_position(outcome)}
        samples = outcome.result.samples
        dumped = {sample_id: _dumped(sample) for sample_id, sample in samples.items()}
        self._write(self._samples, {**where, "samples": dumped})
        self._write(self._results, _record(outcome))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json` in one piece."""
        text = self._redact(json.dumps(summary, indent=2, ensure_ascii=False))
        part = self._place / f"{_SUMMARY}.part"
        try:
            part.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
            part.replace(self._place / _SUMMARY)
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, file: TextIO, record: dict[str, Any]) -> None:
        try:
            line = self._redact(json.dumps(record, ensure_ascii=False)).translate(_LINE_ENDS)
            file.write(f"{line}\n")
            file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RolloutError:
        text = f"results cannot be written to {str(self.directory)!r}: {_why(error)}"
        return RolloutError(text, category=RolloutErrorCategory.INTERNAL_ERROR)


def _create(path: Path) -> TextIO:
    # a lone surrogate in a model's text becomes its JSON escape
    return path.open("x", encoding="utf-8", errors="backslashreplace", newline="\n")


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _position(outcome: Outcome) -> dict[str, int]:
    return {"row_index": outcome.row.index, "run_index": outcome.run_index}


def _record(outcome: Outcome) -> dict[str, Any]:
    result, tokens = outcome.result, Tokens.of(outcome.calls)
    return {
        **_position(outcome),
        "rollout_id": outcome.rollout_id,
        "status": result.status,
        "rewards": {sample_id: sample.reward for sample_id, sample in result.samples.items()},
        "err_message": result.err_message,
        "err_category": result.err_category,
        "calls": len(outcome.calls),
        "tree": [_branch(run) for run in result.tree()],
        "tokens": {"prompt": tokens.prompt, "completion": tokens.completion},
        "duration_sec": round(outcome.duration_sec, 6),
    }


def _branch(run: AgentRun) -> dict[str, Any]:
    """An agent and those that it started; `calls` are positions in the rollout."""
    calls, started = [call.index for call in run.calls], [_branch(child) for child in run.children]
    return {"sample": run.sample_id, "calls": calls, "started": started}


def _dumped(sample: RolloutSample) -> dict[str, Any]:
    """The sample as JSON values; objects that have no JSON form leave their type's name."""
    try:
        dumped = sample.model_dump(mode="json")
        json.dumps(dumped, allow_nan=False)
        return dumped
    except (ValueError, TypeError, RecursionError):
        return {name: _plain(value) for name, value in dict(sample).items()}


def _plain(value: object, depth: int = 0) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _MAX_DEPTH and isinstance(value, dict):
        items = cast(dict[object, object], value).items()
        return {str(key): _plain(item, depth + 1) for key, item in items}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in cast(list[object], value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), depth + 1) for name in names}
    return f"<{type(value).__qualname__}>"
