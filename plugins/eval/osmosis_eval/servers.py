"""Rollouts on rollout servers, through the controller of osmosis-server where it is installed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from osmosis_core import ConfigError, ExecutionBackend

if TYPE_CHECKING:
    from osmosis_core.hookspecs import BackendFactory
    from osmosis_server import Listen

_PROTOCOLS = ("polling", "single-sample", "multi-sample")
_OPTIONS = (
    click.option(
        "--server", "urls", metavar="URL", multiple=True, help="Rollout server; give several."
    ),
    click.option(
        "--server-protocol",
        "protocol",
        type=click.Choice(_PROTOCOLS),
        default="polling",
        help="What the servers speak (polling).",
    ),
    click.option(
        "--server-api-key-env", "key_env", metavar="NAME", help="Variable with their key."
    ),
    click.option(
        "--server-api-key-file",
        "key_file",
        type=click.Path(path_type=Path),
        help="File with their key.",
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="Where servers call back and their agents find the policy (any port of 127.0.0.1).",
    ),
    click.option("--public-url", metavar="URL", help="How servers get there, if not by --listen."),
)


@dataclass(frozen=True, slots=True)
class Servers:
    """Rollout servers as they were named on the command line."""

    urls: tuple[str, ...]
    protocol: str = "polling"
    key_env: str | None = None
    key_file: Path | None = None
    listen: str = "127.0.0.1:0"
    public_url: str | None = None

    @property
    def api_key(self) -> str | None:
        """Their key; raises ConfigError when it is not where it should be."""
        if self.key_env is not None and self.key_file is not None:
            raise ConfigError("give --server-api-key-env or --server-api-key-file, not both")
        if self.key_env is not None:
            return _given(os.environ.get(self.key_env), "--server-api-key-env names no variable")
        if self.key_file is None:
            return None
        try:
            text = self.key_file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--server-api-key-file cannot be read: {error}") from error
        return _given(text.strip(), "--server-api-key-file is empty")

    def backend(self) -> BackendFactory:
        """A factory of their backend; raises ConfigError when osmosis-server is not installed."""
        try:
            from osmosis_server import ServerBackend
        except ImportError as error:
            raise ConfigError(
                "--server needs osmosis-server; pip install 'osmosis-eval[server]'"
            ) from error
        options: dict[str, Any] = {"servers": self.urls, "protocol": self.protocol}
        options |= {"api_key": self.api_key, "listen": self._listen()}
        return functools.partial(ServerBackend, **options)

    def _listen(self) -> Listen:
        from osmosis_server import Listen

        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--listen {self.listen!r} is not HOST:PORT; port 0 takes any")
        return Listen(host.strip("[]"), int(port), self.public_url)


def server_options[F: Callable[..., Any]](command: F) -> F:
    """The options that name servers."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_servers(options: dict[str, Any]) -> Servers | None:
    """Take those options out of a command's; None when no server was named."""
    given = Servers(**{name: options.pop(name) for name in Servers.__dataclass_fields__})
    if given.urls:
        return given
    if given != Servers(()):
        raise click.UsageError("--server-... , --listen and --public-url go with --server URL")
    return None


async def check_servers(backend: ExecutionBackend) -> None:
    """See that a server is there; raises ConfigError when none is ready."""
    from osmosis_server import ServerBackend

    await cast("ServerBackend", backend).start()


def _given(value: str | None, otherwise: str) -> str:
    if not value:
        raise ConfigError(f"{otherwise}, so the servers' key is not known")
    return value
