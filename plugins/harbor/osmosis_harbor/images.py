"""Images built before the first rollout, named by what is in them."""

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread

from osmosis_core import BackendError, ConfigError
from osmosis_harbor.docker import docker
from osmosis_harbor.owner import locked

REPOSITORY = "osmosis-harbor"
_IGNORED = {".git", "__pycache__", ".DS_Store"}


def content_tag(*parts: Path | str) -> str:
    """`osmosis-harbor:<hash>` of texts and directories: names, modes, links and bytes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(b"text\0" + part.encode() + b"\0")
            continue
        for path in _entries(part):
            digest.update(f"{path.relative_to(part)}\0{path.lstat().st_mode:o}\0".encode())
            if path.is_symlink():
                digest.update(str(path.readlink()).encode())
            elif path.is_file():
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{REPOSITORY}:{digest.hexdigest()[:16]}"


def _entries(root: Path) -> Iterable[Path]:
    if not root.is_dir():
        raise ConfigError(f"{str(root)!r} is not a directory")
    return sorted(p for p in root.rglob("*") if not _IGNORED & set(p.relative_to(root).parts))


def ensure_built(
    tag: str, context: Path, home: Path, dockerfile: str = "", timeout_sec: float = 600.0
) -> None:
    """Build the image unless it is there; who comes while another builds it waits for that.

    Raises:
        BackendError: the build failed; its last line is in the text.
    """
    with locked(home / "builds" / f"{tag.replace(':', '-')}.lock"):
        if docker("image", "ls", "--quiet", tag).strip():
            return
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as file:
            file.write(dockerfile)
            file.flush()
            named = ("--file", file.name) if dockerfile else ()
            try:
                arguments = ("--quiet", "--force-rm", "--tag", tag, *named, str(context))
                docker("build", *arguments, timeout_sec=timeout_sec)
            except BackendError as error:
                text = f"the image of {str(context)!r} was not built: {error}"
                raise BackendError(text) from error


def ensure_pulled(image: str) -> None:
    """Fetch an image that is not here.

    Raises:
        BackendError: it cannot be fetched.
    """
    with suppress(BackendError):
        docker("image", "inspect", image)
        return
    docker("pull", "--quiet", image, timeout_sec=None)


def prepared[T](prepare: Callable[[], T]) -> "Future[T]":
    """Call it in a thread; waits for it here unless an event loop is running, and raises then."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(prepare())
        except BaseException as error:  # boundary: raised where it is waited for
            done.set_exception(error)

    Thread(target=run, name="osmosis-harbor-images", daemon=True).start()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        done.result()
    return done
