"""Read a dataset file, JSONL or CSV, into rows; every row is checked before any rollout starts."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from osmosis_core import ConfigError, Message
from osmosis_core.errors import nearest

_CSV_FIELD_CHARS = 16 * 1024 * 1024
_LABELS = ("ground_truth", "label")
_BOM = b"\xef\xbb\xbf"

type _Values = dict[str, Any]
type _Record = tuple[int, _Values]
"""A line number, counted from 1, and what is there by column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a dataset: what a rollout is given, and what its grader is."""

    index: int
    """Position in the file, from 0; blank lines and a CSV header do not count."""
    line: int
    """Line of the file on which it begins, from 1."""
    prompt: list[Message]
    """Chat messages; empty when the row has only metadata."""
    label: str | None = None
    metadata: dict[str, Any] | None = None


def read_rows(path: Path) -> list[Row]:
    """Read and check a whole dataset file.

    Raises:
        ConfigError: the file or one of its rows is unusable; the message names file and line.
    """
    try:
        records = _reader(path)
        with path.open("rb") as file:
            rows = [
                _row(index, line, values, f"{path}:{line}")
                for index, (line, values) in enumerate(records(file, path))
            ]
    except OSError as error:
        raise ConfigError(f"dataset {str(path)!r} cannot be read: {error.strerror}") from error
    if not rows:
        raise ConfigError(f"dataset {str(path)!r} has no rows")
    return rows


def select_rows(rows: list[Row], offset: int = 0, limit: int | None = None) -> list[Row]:
    """The rows from `offset` on, at most `limit`.

    Raises:
        ConfigError: the offset is past the end.
    """
    if offset >= len(rows):
        raise ConfigError(f"--offset {offset} is past the end; the dataset has {len(rows)} rows")
    return rows[offset : None if limit is None else offset + limit]


def _reader(path: Path) -> Callable[[Iterable[bytes], Path], Iterator[_Record]]:
    readers = {".jsonl": _jsonl_records, ".csv": _csv_records}
    reader = readers.get(path.suffix.lower())
    if not path.is_file():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        what = f"is not there{nearest(path.name, siblings)}"
        if path.exists():
            what = "is a directory" if path.is_dir() else "is not a regular file"
        raise ConfigError(f"dataset {str(path)!r} {what}; give a .jsonl or .csv file")
    if reader is None:
        raise ConfigError(
            f"dataset {str(path)!r} ends in {path.suffix!r}; give a .jsonl or .csv file"
        )
    return reader


def _lines(file: Iterable[bytes], path: Path) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(file, 1):
        try:
            yield number, raw.removeprefix(_BOM if number == 1 else b"").decode()
        except UnicodeDecodeError as error:
            place = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
            raise ConfigError(f"{path}:{number}: not UTF-8: {place}; save it as UTF-8") from error


def _jsonl_records(file: Iterable[bytes], path: Path) -> Iterator[_Record]:
    for number, text in _lines(file, path):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        row = _json(text, where, "not JSON")
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: the row is {_kind(row)}; write one JSON object per line")
        values = cast(_Values, row)
        _check_columns(values, where)
        yield number, values


def _csv_records(file: Iterable[bytes], path: Path) -> Iterator[_Record]:
    reader = csv.reader((text for _, text in _lines(file, path)), strict=True)
    before = csv.field_size_limit(_CSV_FIELD_CHARS)
    try:
        columns: list[str] | None = None
        line = 1
        for cells in reader:
            where = f"{path}:{line}"
            if columns is None and cells:
                columns = _header(cells, where)
            elif columns is not None and cells:
                yield line, _csv_values(columns, cells, where)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{path}:{max(reader.line_num, 1)}: not CSV: {error}") from error
    finally:
        csv.field_size_limit(before)


def _header(columns: list[str], where: str) -> list[str]:
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise ConfigError(f"{where}: column {min(twice)!r} appears twice in the header")
    _check_columns(columns, where)
    return columns


def _csv_values(columns: list[str], cells: list[str], where: str) -> _Values:
    if len(cells) > len(columns):
        raise ConfigError(
            f"{where}: the row has {len(cells)} fields, the header {len(columns)}; quote fields "
            "that hold commas"
        )
    return dict(itertools.zip_longest(columns, cells))


def _check_columns(columns: Iterable[str], where: str) -> None:
    there = list(columns)
    if "metadata" in there:
        return
    if "user_prompt" not in there and "messages" not in there:
        raise ConfigError(_missing(where, "user_prompt", ("user_prompt",), there))
    if not any(name in there for name in _LABELS):
        raise ConfigError(_missing(where, "ground_truth (or label)", _LABELS, there))


def _missing(where: str, what: str, names: Iterable[str], there: list[str]) -> str:
    hints = (nearest(name, there) for name in names)
    hint = next((hint for hint in hints if hint), "")
    return f"{where}: no column {what}; there is {', '.join(there) or 'none'}{hint}"


def _row(index: int, line: int, values: _Values, where: str) -> Row:
    chat = _messages(values.get("messages"), where)
    prompt = chat or _prompt(values)
    has_prompt = bool(chat) or _text(values.get("user_prompt")) is not None
    label = next((text for name in _LABELS if (text := _text(values.get(name)))), None)
    metadata = _metadata(values.get("metadata"), where)
    if "metadata" in values:
        if not has_prompt and metadata is None:
            raise ConfigError(f"{where}: the row has neither a prompt nor metadata")
    elif not has_prompt:
        raise ConfigError(f"{where}: user_prompt is empty")
    elif label is None:
        name = next(name for name in _LABELS if name in values)
        raise ConfigError(f"{where}: {name} is empty")
    return Row(index, line, prompt, label, metadata)


def _prompt(values: _Values) -> list[Message]:
    texts = {"system": _text(values.get("system_prompt")), "user": _text(values.get("user_prompt"))}
    return [{"role": role, "content": text} for role, text in texts.items() if text is not None]


def _text(value: object) -> str | None:
    text = "" if value is None else str(value)
    return text if text.strip() else None


def _metadata(value: object, where: str) -> dict[str, Any] | None:
    found = _parsed(value, where, "metadata")
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{where}: metadata is {_kind(found)}; give a JSON object")
    return cast(dict[str, Any], found) or None


def _messages(value: object, where: str) -> list[Message]:
    found = _parsed(value, where, "messages")
    if found is None:
        return []
    if not isinstance(found, list) or found == []:
        raise ConfigError(
            f"{where}: messages is {_kind(cast(object, found))}; give a list of chat messages"
        )
    messages = cast(list[Any], found)
    for position, message in enumerate(messages):
        role: Any = cast(Message, message).get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise ConfigError(f"{where}: messages[{position}] is not an object with a string role")
    return messages


def _parsed(value: object, where: str, column: str) -> object:
    """The value, read as JSON if it is text; None when it is absent or blank."""
    if not isinstance(value, str):
        return value
    return _json(value, where, f"{column} is not JSON") if value.strip() else None


def _json(text: str, where: str, what: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{error.msg} at column {error.colno}"
        raise ConfigError(f"{where}: {what}: {place}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {what}: {error}") from error


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list" if value != [] else "an empty list"
    if isinstance(value, dict):
        return "an object"
    return "null" if value is None else repr(value)[:80]
