"""Read a data set of the first generation: JSON lines, a JSON array, CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from osmosis_core import ConfigError, Message

_REQUIRED = ("ground_truth", "user_prompt", "system_prompt")


class DatasetNotFoundError(ConfigError, FileNotFoundError):
    """There is no such file."""


class DatasetParseError(ConfigError):
    """The file is not what its name says; the message has the line."""


class DatasetValidationError(ConfigError):
    """A row lacks something; the message has its number, from 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what a rollout is given."""

    index: int
    """Position in the file, from 0."""
    messages: list[Message]
    ground_truth: str
    extra: dict[str, Any]
    """The columns that are not required."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The request's metadata."""
        known = {"ground_truth": self.ground_truth, "row_index": self.index}
        return {**known, **self.extra, "execution_mode": "test"}


def read_rows(path: Path, offset: int = 0, limit: int | None = None) -> list[Row]:
    """The rows from `offset` on, at most `limit`; each of the file is checked.

    Raises:
        DatasetNotFoundError, DatasetParseError, DatasetValidationError: see there.
    """
    if not path.is_file():
        raise DatasetNotFoundError(f"no data set {str(path)!r}; give a file")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise DatasetParseError(f"data set {path.name!r} ends in {path.suffix!r}; give {known}")
    try:
        rows = [_row(index, values) for index, values in enumerate(reader(path))]
    except UnicodeDecodeError as error:
        raise DatasetParseError(f"{path.name}: not UTF-8: {error.reason}") from error
    if offset >= len(rows):
        raise DatasetValidationError(f"row {offset} is not there; {path.name} has {len(rows)}")
    return rows[offset : None if limit is None else offset + limit]


def _jsonl(path: Path) -> Iterator[object]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parsed(line, f"{path.name}:{number}")


def _json(path: Path) -> Iterator[object]:
    rows = _parsed(path.read_text(encoding="utf-8-sig"), path.name)
    if not isinstance(rows, list):
        raise DatasetParseError(f"{path.name} holds {type(rows).__name__}; give an array of rows")
    yield from cast("list[object]", rows)


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetParseError(f"{where}: not JSON: {error}") from error


def _csv(path: Path) -> Iterator[object]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row:
                    text = f"{path.name}:{reader.line_num}: more fields than the header has"
                    raise DatasetParseError(f"{text}; quote those that hold commas")
                yield row
        except csv.Error as error:
            raise DatasetParseError(f"{path.name}:{reader.line_num}: not CSV: {error}") from error


def _parquet(path: Path) -> Iterator[object]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = f"reading {path.name} needs pyarrow; pip install 'osmosis-agent-loop[parquet]'"
        raise DatasetParseError(text) from error
    try:
        yield from parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise DatasetParseError(f"{path.name}: not Parquet: {error}") from error


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}


def _row(index: int, values: object) -> Row:
    if not isinstance(values, dict):
        raise DatasetValidationError(f"Row {index}: not an object")
    given = cast("dict[str, Any]", values)
    names = {str(name).strip().lower(): name for name in given}
    if missing := [name for name in _REQUIRED if name not in names]:
        there = ", ".join(map(str, given)) or "none"
        raise DatasetValidationError(
            f"Row {index}: no column {', '.join(missing)}; there is {there}"
        )
    texts = {name: _text(index, name, given[names[name]]) for name in _REQUIRED}
    required = {names[name] for name in _REQUIRED}
    return Row(
        index,
        [
            {"role": "system", "content": texts["system_prompt"]},
            {"role": "user", "content": texts["user_prompt"]},
        ],
        texts["ground_truth"],
        {name: value for name, value in given.items() if name not in required},
    )


def _text(index: int, name: str, value: object) -> str:
    if not isinstance(value, str):
        what = "null" if value is None else type(value).__name__
        raise DatasetValidationError(f"Row {index}: {name} is {what}; give text")
    if not value.strip():
        raise DatasetValidationError(f"Row {index}: {name} is empty; give text")
    return value
