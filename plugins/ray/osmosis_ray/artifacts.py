"""Files of a rollout on their way between machines: regular files only, no links followed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

type Snapshot = Mapping[str, tuple[int, int]]
"""Size in bytes and modification time in ns of each file, by its path in the directory."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def pack(directory: Path, limit: int, known: Snapshot | None = None) -> tuple[bytes, list[str]]:
    """A tar of the files in a directory, without those that are as in `known`; b"" for none.

    Returns:
        The tar, and what was left out, with the reason: whatever is no regular file, and files
        with which the tar would hold more than `limit` bytes of content.
    """
    archive, left_out, room = io.BytesIO(), list[str](), limit
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(directory):
            name = path.relative_to(directory).as_posix()
            try:
                descriptor = os.open(path, _READ)
            except OSError:
                left_out.append(f"{name} (not a regular file, or not readable)")
                continue
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if (known or {}).get(name) == (status.st_size, status.st_mtime_ns):
                    continue
                if reason := _refusal(status, room):
                    left_out.append(f"{name} ({reason})")
                    continue
                room -= status.st_size
                member = tarfile.TarInfo(name)
                member.size, member.mode = status.st_size, status.st_mode & 0o755
                member.mtime = int(status.st_mtime)
                tar.addfile(member, io.BytesIO(file.read(member.size).ljust(member.size, b"\0")))
        is_empty = not tar.getmembers()
    return b"" if is_empty else archive.getvalue(), left_out


def unpack(archive: bytes, directory: Path) -> None:
    """Write what `pack` made below a directory, which is created; nothing lands outside of it."""
    if not archive:
        return
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isreg():
                tar.extract(member, directory, filter="data")


def snapshot(directory: Path) -> Snapshot:
    """What is there, to tell later what was changed."""
    statuses = ((path, path.lstat()) for path in _walk(directory))
    return {
        path.relative_to(directory).as_posix(): (status.st_size, status.st_mtime_ns)
        for path, status in statuses
    }


def _walk(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory, followlinks=False):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*files, *links]))


def _refusal(status: os.stat_result, room: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return "over the size limit" if status.st_size > room else ""
