"""The `osmosis serve` command; whatever costs time to import is imported inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from osmosis_core import ConfigError, ExecutionBackend, OsmosisError
from osmosis_core.cli import BackendCommand, backend_option, one_target
from osmosis_core.errors import describe
from osmosis_server.settings import ServerSettings

if TYPE_CHECKING:
    from osmosis_core.execution import Program
    from osmosis_server.logs import LogFormat

_KEY_ENV = "OSMOSIS_SERVER_API_KEY"
_COUNT = click.IntRange(min=1)


def _setting_options[F: Callable[..., Any]](command: F) -> F:
    """An option, and a variable `OSMOSIS_SERVER_<NAME>`, for each field of ServerSettings."""
    for name, field in reversed(ServerSettings.model_fields.items()):
        many, switch = get_origin(field.annotation) is tuple, isinstance(field.default, bool)
        flag = "allow-host" if many else name.replace("_", "-")
        text = " ".join((field.description or "").split()).partition("; ")[0].partition(". ")[0]
        shown = "" if many or switch else f" ({field.default})"
        option = click.option(
            f"--{flag}/--no-{flag}" if switch else f"--{flag}",
            name,
            type=None if switch else _option_type(field),
            default=None,
            multiple=many,
            envvar=f"OSMOSIS_SERVER_{name.upper()}",
            help=f"{text.rstrip('.')}{shown}.",
        )
        command = option(command)
    return command


def _option_type(field: FieldInfo) -> click.ParamType[Any]:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    if isinstance(field.default, int):
        return click.INT
    return click.FLOAT if isinstance(field.default, float) else click.STRING


@click.command(cls=BackendCommand)
@click.argument("target", required=False)
@click.option("-m", "--module", "option", help="TARGET, in the documented form.")
@click.option(
    "--mcp", type=click.Path(path_type=Path), help="A directory with an MCP server, for TARGET."
)
@click.option(
    "-H", "--host", default="127.0.0.1", envvar="OSMOSIS_SERVER_HOST", help="Address (127.0.0.1)."
)
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=9000,
    envvar="OSMOSIS_SERVER_PORT",
    help="Port (9000); 0 is any.",
)
@click.option("--backend", metavar="NAME", default="local", help="Where rollouts run (local).")
@backend_option
@click.option("--concurrency", type=_COUNT, help="Rollouts at a time, before the config's number.")
@click.option(
    "--artifacts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Parent of <rollout id>/artifacts (~/.osmosis).",
)
@click.option("--api-key", metavar="KEY", help=f"Key of every request; better: {_KEY_ENV}.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path, dir_okay=False), help="File with the key."
)
@click.option("--generate-key", is_flag=True, help="Make a key and print it once, on stderr.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="OSMOSIS_SERVER_LOG_FORMAT",
    help="How logs are written on stderr (text).",
)
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without a key.")
@click.option(
    "--local", "--local-debug", "is_local", is_flag=True, help="Serve without a key, to try it."
)
@click.option("--no-validate", is_flag=True, help="Serve it with what validate would find.")
@click.option("--reload", "reloads", is_flag=True, help="Start anew when the code here changes.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, file_okay=False),
    help="Agent loops: write what ctx.log_event is given to <this>/<unix seconds>/.",
)
@click.option("--skip-register", is_flag=True, hidden=True)
@_setting_options
def serve(
    target: str | None,
    option: str | None,
    host: str,
    port: int,
    backend: str,
    backend_options: dict[str, Any],
    concurrency: int | None,
    artifacts: Path | None,
    api_key: str | None,
    api_key_file: Path | None,
    generate_key: bool,
    log_format: LogFormat,
    insecure: bool,
    mcp: Path | None,
    is_local: bool,
    no_validate: bool,
    reloads: bool,
    log: Path | None,
    skip_register: bool,
    **settings: Any,
) -> None:
    """Serve rollouts of the workflow in TARGET over HTTP, until SIGTERM or Ctrl-C.

    TARGET is a module, module:attr, or a path to a file; the attribute is a workflow class or an
    execution backend. Each option below has a variable OSMOSIS_SERVER_<NAME>.
    """
    if skip_register:
        click.echo("--skip-register: nothing is registered anywhere, with it or without", err=True)
    if mcp is not None and (target or option):
        raise click.UsageError("give TARGET or --mcp DIR, not both")
    if is_local and (api_key or api_key_file or generate_key):
        raise click.UsageError("--local serves without a key; give no other option about keys")
    chosen = "" if mcp is not None else one_target(target, option)
    if reloads:
        from osmosis_server.reloading import serve_reloading

        raise SystemExit(serve_reloading(sys.argv[1:]))
    key = None if is_local else _api_key(api_key, api_key_file, is_generated=generate_key)
    limits = _settings(settings)
    from osmosis_server.loading import served_program
    from osmosis_server.logs import configure_logs
    from osmosis_server.serving import listen, origin_of
    from osmosis_server.serving import serve as run

    configure_logs(log_format, secrets=[key])
    with listen(host, port, has_key=key is not None, is_insecure=insecure or is_local) as listener:
        program = partial(served_program, chosen, mcp, log, is_checked=not no_validate)
        if concurrency:
            backend_options["max_concurrent"] = concurrency
        runs = _backend(chosen, program, backend, backend_options, artifacts)
        from osmosis_server.app import create_rollout_server

        app = create_rollout_server(backend=runs, api_key=key, settings=limits)
        said = partial(_say, origin_of(listener), limits, key, is_fresh=generate_key)
        raise SystemExit(run(app, listener, said))


def _api_key(given: str | None, file: Path | None, *, is_generated: bool) -> str | None:
    if sum((given is not None, file is not None, is_generated)) > 1:
        raise click.UsageError("give one of --api-key, --api-key-file and --generate-key")
    from osmosis_server.security import check_key, fresh_key

    if is_generated:
        return fresh_key()
    if file is not None:
        given = _text_of(file)
    key = os.environ.get(_KEY_ENV) if given is None else given
    return None if key is None else check_key(key)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"--api-key-file {str(file)!r} cannot be read: {why}") from error


def _settings(given: dict[str, Any]) -> ServerSettings:
    named = {name: value for name, value in given.items() if value is not None and value != ()}
    try:
        return ServerSettings(**named)
    except ValidationError as error:
        raise ConfigError(f"settings: {describe(error)}") from error


def _backend(
    target: str,
    load: Callable[[], Program],
    name: str,
    options: dict[str, Any],
    artifacts: Path | None,
) -> ExecutionBackend:
    """The backend that TARGET names, or one of `name` for its workflow."""
    from osmosis_core.discovery import load_target
    from osmosis_core.plugins import get_plugins

    factory = get_plugins().backend(name)
    module, attribute = load_target(target) if target else (None, "")
    named = getattr(module, attribute, None) if attribute else None
    if isinstance(named, ExecutionBackend):
        if options or artifacts or name != "local":
            raise click.UsageError(f"{target} is a backend already; give no option of backends")
        return named
    program = load()
    try:
        return factory(
            **options,
            workflow=program.workflow,
            workflow_config=program.workflow_config,
            grader=program.grader,
            grader_config=program.grader_config,
            artifacts_root=artifacts,
        )
    except OsmosisError:
        raise
    except Exception as error:  # boundary: a backend may be anyone's
        raise ConfigError(f"backend {name!r} cannot be built: {describe(error)}") from error


def _say(origin: str, settings: ServerSettings, key: str | None, *, is_fresh: bool) -> None:
    needs = "every request needs the key" if key else "no key is needed"
    modes = f"polling, and {settings.callback_protocol} where a request has callback URLs"
    click.echo(f"serving on {origin}: {modes}; {needs}; journal {settings.journal}", err=True)
    if is_fresh:
        click.echo(f"key: {key}", err=True)
