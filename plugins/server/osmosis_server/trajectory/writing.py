"""Documents into files: at once or not at all, whatever users put into them, no secret in them."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core

_CHUNK = 65536


def write_json(path: Path, document: Mapping[str, Any], secrets: Sequence[bytes] = ()) -> None:
    """Write a document beside its place, step by step, then put it there; blot secrets out.

    The few bare system calls let go of the interpreter as seldom as may be: with a busy event
    loop each one waits for its turn.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = _created(draft)
    try:
        try:
            for part in _chunks(_parts(document)):
                for secret in secrets:
                    part = part.replace(secret, b"[redacted]")
                while part:
                    part = part[os.write(handle, part) :]
        finally:
            os.close(handle)
        draft.replace(path)
    except BaseException:
        draft.unlink()
        raise


def _created(path: Path) -> int:
    """A new file, never one that lies there already or that a link there points to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, 0o666)


def _chunks(parts: Iterable[bytes]) -> Generator[bytes]:
    """The parts in pieces that are worth a write."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _parts(document: Mapping[str, Any]) -> Generator[bytes]:
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
