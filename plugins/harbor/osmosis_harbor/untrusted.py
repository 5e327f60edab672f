"""Files that come out of a container: only regular ones, nothing followed, no more than a cap."""

import errno
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from osmosis_core import BackendError
from osmosis_harbor.docker import last_line

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may come out of a container in one download."""

    total_bytes: int = 256 * 1024 * 1024
    files: int = 10_000


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file that a container may have written.

    Raises:
        BackendError: it is not there, is no regular file, or has more than `limit` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BackendError(f"{path.name!r} of the container cannot be read: {why}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackendError(f"{path.name!r} of the container is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise BackendError(f"{path.name!r} of the container has more than {limit} bytes")
    return content


def copy_file(source: Path, target: Path, limits: Limits) -> None:
    """Copy a regular file; errors as `read_file`."""
    content = read_file(source, limits.total_bytes)
    _write(target, io.BytesIO(content), len(content))


def copy_tree(source: Path, target: Path, limits: Limits) -> None:
    """Copy the regular files below a directory; links and special files are left out.

    Raises:
        BackendError: there is more than `limits` allow, or `source` is no directory.
    """
    if source.is_symlink() or not source.is_dir():
        raise BackendError(f"{source.name!r} of the container is no directory")
    left = _Left(limits)
    for folder, _, names, descriptor in os.fwalk(source, follow_symlinks=False):
        for name in names:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                continue
            left.take(status.st_size)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(name, flags, dir_fd=descriptor), "rb") as file:
                _write(target / os.path.relpath(folder, source) / name, file, status.st_size)


def copy_from_container(
    container: str, source: str, target: Path, limits: Limits, *, is_dir: bool
) -> None:
    """Stream a file or directory out of a container that docker runs; stops at the limits.

    Raises:
        BackendError: it is not there, is of another kind, or exceeds the limits.
    """
    command = ["docker", "cp", f"{container}:{source}", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                _unpack(tar, source, target, limits, is_dir)
        except tarfile.TarError as error:
            said = last_line(process.stderr.read().decode("utf-8", "replace"))
            text = f"{source!r} cannot be read from the container: {said}"
            raise BackendError(text) from error
        finally:
            process.kill()


def _unpack(tar: tarfile.TarFile, source: str, target: Path, limits: Limits, is_dir: bool) -> None:
    left, members = _Left(limits), iter(tar)
    first = next(members, None)
    if first is None or first.isdir() != is_dir or not (first.isreg() or first.isdir()):
        kind = "directory" if is_dir else "regular file"
        raise BackendError(f"{source!r} in the container is no {kind}")
    if is_dir:
        for path, member in _below(members):
            left.take(member.size)
            _extract(tar, member, target / path)
    else:
        left.take(first.size)
        _extract(tar, first, target)


def _below(members: Iterator[tarfile.TarInfo]) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
    """Regular files and their paths below the directory that was asked for."""
    for member in members:
        path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
        if member.isreg() and ".." not in path.parts and not path.is_absolute():
            yield path, member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    file = tar.extractfile(member)
    assert file is not None
    _write(target, file, member.size)


def _write(target: Path, file: IO[bytes], size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with target.open("xb") as copy:
        while size > 0 and (chunk := file.read(min(size, _CHUNK))):  # a file may grow meanwhile
            size -= copy.write(chunk)


class _Left:
    """What of the limits is left."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._bytes, self._files = limits, limits.total_bytes, limits.files

    def take(self, size: int) -> None:
        self._bytes -= size
        self._files -= 1
        if self._bytes < 0 or self._files < 0:
            limits = self._limits
            raise BackendError(
                f"the container offers more than {limits.total_bytes} bytes or {limits.files} "
                "files; download less at a time"
            )
