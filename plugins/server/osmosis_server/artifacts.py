"""The files that a rollout leaves: where they are, and how many and how large they may be."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import urllib.parse
from array import array
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MAX_FILE_NAME = 255


def artifacts_root(backend: object) -> Path:
    """Where a backend keeps its rollouts' files: its own `artifacts_root`, or the documented
    `_OSMOSIS_ROLLOUT_ARTIFACT_ROOT`, or `~/.osmosis` (protocol.md 2.8)."""
    own: Path | str | None = getattr(backend, "artifacts_root", None)
    root = own or os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or "~/.osmosis"
    return Path(root).expanduser()


def rollout_dir(root: Path, rollout_id: str) -> Path:
    """The directory of a rollout, named as `LocalBackend` names it; never outside of `root`."""
    name = urllib.parse.quote(rollout_id, safe=" ")
    if len(name) > _MAX_FILE_NAME:
        name = hashlib.sha256(rollout_id.encode()).hexdigest()
    return root / name


@dataclass(slots=True)
class Trimmed:
    """What `enforce_limits` found and did; sizes in bytes."""

    files: int = 0
    bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0
    removed_others: int = 0
    """Links, devices, sockets and pipes."""

    @property
    def is_whole(self) -> bool:
        """True when nothing was removed."""
        return not (self.removed_files or self.removed_others)


def enforce_limits(directory: Path, max_bytes: int, max_files: int) -> Trimmed:
    """Remove what is too much in a directory: the largest files first, so that most are kept.

    Links, devices, sockets and pipes are always removed and links are never followed. Directories
    that hold nothing are removed with the rest. Blocks; for use outside of event loops.
    """
    found, sizes = Trimmed(), array("q")
    if directory.is_symlink():
        directory.unlink()
        found.removed_others = 1
    if not directory.is_dir():
        return found
    is_clean = True
    for _, _, info in _entries(directory):
        if stat.S_ISREG(info.st_mode):
            sizes.append(info.st_size)
        elif not stat.S_ISDIR(info.st_mode):
            is_clean = False
    found.files, found.bytes = len(sizes), sum(sizes)
    limit = _cut(sizes, max_bytes, max_files)
    if limit is not None or not is_clean:
        _remove(directory, limit or _Cut(math.inf), found)
    return found


@dataclass(slots=True)
class _Cut:
    size: float
    """Larger files go."""
    equal: int = 0
    """How many of this size stay."""

    def keeps(self, size: int) -> bool:
        if size == self.size:
            self.equal -= 1
            return self.equal >= 0
        return size < self.size


def _cut(sizes: array[int], max_bytes: int, max_files: int) -> _Cut | None:
    """Where to cut so that the most files stay; None when all may."""
    kept = total = equal = 0
    before = -1
    for size in sorted(sizes):
        equal = equal + 1 if size == before else 0
        if kept == max_files or total + size > max_bytes:
            return _Cut(size, equal)
        kept, total, before = kept + 1, total + size, size
    return None


def _entries(directory: Path) -> Generator[tuple[int, str, os.stat_result]]:
    """All that is there, from the bottom up, with a handle of the directory that holds it."""
    for _, directories, files, handle in os.fwalk(directory, topdown=False):
        for name in (*files, *directories):
            with suppress(FileNotFoundError):
                yield handle, name, os.stat(name, dir_fd=handle, follow_symlinks=False)


def _remove(directory: Path, cut: _Cut, found: Trimmed) -> None:
    for handle, name, info in _entries(directory):
        is_file = stat.S_ISREG(info.st_mode)
        if stat.S_ISDIR(info.st_mode):
            with suppress(OSError):  # it is not empty
                os.rmdir(name, dir_fd=handle)
            continue
        if is_file and cut.keeps(info.st_size):
            continue
        os.unlink(name, dir_fd=handle)
        found.removed_files += is_file
        found.removed_bytes += info.st_size if is_file else 0
        found.removed_others += not is_file
