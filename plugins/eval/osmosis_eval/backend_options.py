"""Arguments of a backend on a command line, for any command with `--backend NAME`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import click


class BackendCommand(click.Command):
    """Reads `--NAME-OPTION VALUE`, where NAME is that of `--backend`, as a `--backend-option`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with such options spelled out."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return super().parse_args(ctx, list(_spelled_out(args, known)))


def check_backend_options(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """The callback of `--backend-option NAME=VALUE`: arguments by name, JSON or text."""
    options: dict[str, Any] = {}
    for value in values:
        name, separator, text = value.partition("=")
        name = name.replace("-", "_")
        if not (separator and name.isidentifier()):
            raise click.BadParameter(f"{value!r}: write NAME=VALUE", ctx, param)
        options[name] = _json_or_text(text)
    return options


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spelled_out(args: list[str], known: set[str]) -> Iterator[str]:
    prefix = f"--{_backend(args)}-"
    rest = iter(args)
    for arg in rest:
        option, separator, value = arg.partition("=")
        if option in known or not option.startswith(prefix) or option == prefix:
            yield arg
            continue
        name = option.removeprefix(prefix)
        value = value if separator else next(rest, None)
        yield from ("--backend-option", name if value is None else f"{name}={value}")


def _backend(args: list[str]) -> str:
    """The value of the last `--backend`, or a name that no option begins with."""
    found = "="
    for arg, following in pairwise([*args, ""]):
        if arg == "--backend" or arg.startswith("--backend="):
            found = arg.partition("=")[2] or following
    return found
