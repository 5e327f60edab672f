"""The docker command line: asking it, and saying in one line what it lacks."""

import asyncio
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from osmosis_core import BackendError, ConfigError

OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes kept of each output of a command; a container that prints more is not kept in memory."""

_MANUAL = re.compile(r"(See|Run) 'docker .*--help'")
_TIMEOUT_SEC = 60.0


@dataclass(frozen=True, slots=True)
class Output:
    """What a command said."""

    stdout: str
    stderr: str
    return_code: int


def docker(*arguments: str, timeout_sec: float | None = _TIMEOUT_SEC) -> str:
    """Run `docker` and return its stdout, from a thread that may block.

    Raises:
        BackendError: it ended with another status than 0, or not in time.
    """
    command = ["docker", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_sec,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise BackendError(f"docker {arguments[0]}: {last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"docker {arguments[0]}: no answer within {timeout_sec} s") from error
    return done.stdout


async def docker_async(
    *arguments: str, env: dict[str, str] | None = None, timeout_sec: float | None = _TIMEOUT_SEC
) -> Output:
    """Run `docker` on the event loop, with at most OUTPUT_LIMIT of each output.

    Cancelling ends the command.

    Raises:
        TimeoutError: it did not end in time.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(timeout_sec):
            stdout, stderr = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            return Output(stdout, stderr, await process.wait())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read(stream: asyncio.StreamReader) -> str:
    kept, size = list[bytes](), 0
    while chunk := await stream.read(65536):
        kept.append(chunk[: max(0, OUTPUT_LIMIT - size)])
        size += len(chunk)
    text = b"".join(kept).decode("utf-8", "replace")
    cut = f"\n[{size - OUTPUT_LIMIT} more bytes were not kept]"
    return text if size <= OUTPUT_LIMIT else text + cut


def check_docker(needs_compose: bool) -> None:
    """Say what is missing before the first rollout needs it.

    Raises:
        ConfigError: no docker command, no daemon that answers, or no compose v2 plugin.
    """
    if shutil.which("docker") is None:
        raise ConfigError(
            "no docker command on the PATH; install Docker Engine, or use another backend"
        )
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except BackendError as error:
        text = "start it, or point DOCKER_HOST at one that runs"
        raise ConfigError(f"no Docker daemon answers ({error}); {text}") from error
    if not needs_compose:
        return
    try:
        docker("compose", "version")
    except BackendError as error:
        raise ConfigError(
            "docker has no compose v2 plugin, which Harbor's docker environment calls; install "
            "docker-compose-plugin, or pass environment='light'"
        ) from error


def last_line(text: str | None) -> str:
    """The last line that says something; docker's pointers to its manual do not."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    said = [line for line in lines if not _MANUAL.match(line)]
    return said[-1] if said else "it said nothing"
