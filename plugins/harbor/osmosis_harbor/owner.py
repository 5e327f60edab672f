"""Who a container belongs to: a lock that is held while its owner lives, named in labels."""

import atexit
import fcntl
import functools
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from osmosis_core import BackendError
from osmosis_harbor.docker import docker

HOME_LABEL = "osmosis.harbor.home"
OWNER_LABEL = "osmosis.harbor.owner"
SESSION_LABEL = "osmosis.harbor.session"
ROLLOUT_LABEL = "osmosis.harbor.rollout"
_PROJECT_LABEL = "com.docker.compose.project"


def state_dir() -> Path:
    """Where owners keep their locks and the files of rollouts that run."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "osmosis-harbor"


@functools.cache
def this_process(home: Path) -> "Owner":
    """The owner that this process is; it ends with it."""
    owner = Owner(home)
    atexit.register(owner.release)
    return owner


class Owner:
    """A process that starts containers, and the directory for its rollouts.

    `<home>/<id>.lock` is locked from before the first container to the end of the process, however
    it ends; containers and files of an owner whose lock is free belong to nobody.
    """

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home, self.id, self._process = home, uuid.uuid4().hex[:12], os.getpid()
        new = home / f".{self.id}.new"
        self._lock = new.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self._lock_path(self.id))
        self.directory = home / self.id
        self.directory.mkdir(mode=0o700)
        self.labels = {HOME_LABEL: _home_id(home), OWNER_LABEL: self.id}

    def reap(self) -> list[str]:
        """Remove what dead owners left: containers, their networks, files; returns container ids.

        Raises:
            BackendError: docker could not be asked.
        """
        reaped = [
            container
            for owner, container, project in self._containers()
            if not self._is_alive(owner) and _removed(container, project)
        ]
        for lock in self.home.glob("*.lock"):
            if not self._is_alive(lock.stem):
                shutil.rmtree(self.home / lock.stem, ignore_errors=True)
                lock.unlink(missing_ok=True)
        return reaped

    def release(self) -> None:
        """Remove what is left of this owner's, and give up the lock; not in a fork of it."""
        if os.getpid() != self._process:
            return
        with suppress(BackendError, OSError):
            if any(self.directory.iterdir()):
                for owner, container, project in self._containers():
                    if owner == self.id:
                        _removed(container, project)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock_path(self.id).unlink(missing_ok=True)
        self._lock.close()

    def _containers(self) -> list[tuple[str, str, str]]:
        """Owner, id and compose project of every container of this home."""
        wanted = (OWNER_LABEL, _PROJECT_LABEL)
        columns = "\t".join(f'{{{{.Label "{label}"}}}}' for label in wanted)
        mine = f"label={HOME_LABEL}={self.labels[HOME_LABEL]}"
        said = docker("ps", "--all", "--filter", mine, "--format", "{{.ID}}\t" + columns)
        rows = [line.split("\t") for line in said.splitlines()]
        return [(owner, container, project) for container, owner, project in rows]

    def _is_alive(self, owner: str) -> bool:
        try:
            with self._lock_path(owner).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def _lock_path(self, owner: str) -> Path:
        return self.home / f"{owner}.lock"


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold a lock file, against threads and processes; blocks until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _removed(container: str, project: str) -> bool:
    with suppress(BackendError):  # somebody else may have been faster
        docker("rm", "--force", "--volumes", container)
        if project:
            named = f"label={_PROJECT_LABEL}={project}"
            for network in docker("network", "ls", "--quiet", "--filter", named).split():
                docker("network", "rm", network)
        return True
    return False


def _home_id(home: Path) -> str:
    """A name for this directory that no other machine's has, whatever its path."""
    file, new = home / "id", home / f".{uuid.uuid4().hex}"
    new.write_text(uuid.uuid4().hex)
    with suppress(FileExistsError):
        file.hardlink_to(new)
    new.unlink()
    return file.read_text()
