"""`osmosis`, `osmosis plugins` and `osmosis validate`; every other command comes from a plugin."""

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from osmosis_core.errors import OsmosisError, one_line
from osmosis_core.plugins import get_plugins

_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.2 and newer
_PLATFORM = ("login", "logout", "train", "deploy")


class RootGroup(click.Group):
    """The root command; the commands of plugins join it when it is first used."""

    _complete = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with all commands there."""
        if not self._complete:
            self._complete = True
            with reserved_stdout():  # what plugins print is not the answer
                get_plugins().add_commands(self)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, or a usage error that says where it went or what is near."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _PLATFORM:
            raise click.UsageError(
                f"`osmosis {cmd_name}` belongs to the hosted platform and is not here; `osmosis "
                "validate TARGET` runs what a submit would check"
            )
        if command is None:
            raise click.UsageError(get_plugins().missing_command(cmd_name, self.commands))
        return command


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="osmosis-core", prog_name="osmosis")
def cli() -> None:
    """Rollouts for reinforcement learning on LLM agents."""


@cli.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option(
    "--strict", is_flag=True, help="Exit 1 when a plugin failed or a name is taken twice."
)
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, strict: bool) -> None:
    """List plugins: what they offer, and why one did not load."""
    if ctx.invoked_subcommand:
        return
    found = get_plugins()
    if as_json:
        listed = {"plugins": [asdict(r) for r in found.records], "conflicts": found.conflicts}
        click.echo(json.dumps(listed, indent=2))
    else:
        for record in found.records:
            origin = f"{record.distribution} {record.version}"
            details = [f"{kind}: {', '.join(names)}" for kind, names in record.offers.items()]
            if record.error:
                details = [record.error]
            click.echo(f"{record.name:<14} {origin:<27} {record.status:<9} {'; '.join(details)}")
        for conflict in found.conflicts:
            click.echo(conflict, err=True)
    if strict and (found.conflicts or any(r.status == "failed" for r in found.records)):
        raise SystemExit(1)


@plugins.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def check(name: str, as_json: bool) -> None:
    """Hold a framework plugin to the conformance suite: what it can do, and what is wrong."""
    from osmosis_core.testing.adapter_conformance.report import check_framework

    raise SystemExit(check_framework(name, as_json=as_json))


@plugins.command()
@click.argument("name")
@click.option("--framework", is_flag=True, help="An adapter of a framework.")
@click.option("--backend", is_flag=True, help="A place to run rollouts.")
@click.option("--dir", "parent", default=".", help="Where the new folder goes; here by default.")
def new(name: str, framework: bool, backend: bool, parent: str) -> None:
    """Write a plugin to start from: a package that passes its tests as it is."""
    from osmosis_core.testing.scaffold import create_plugin

    click.echo(create_plugin(name, Path(parent), framework=framework, backend=backend))


@cli.command()
@click.argument("target", required=False)
@click.option("-m", "--module", "option", help="TARGET, in the documented form.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def validate(target: str | None, option: str | None, as_json: bool) -> None:
    """Check what a submit would check: imports, one workflow, configs, grader.

    TARGET is a module, module:attr, or a path to a file.
    """
    from osmosis_core.validation import validate_target

    name = one_target(target, option)
    try:
        with reserved_stdout():  # what user code prints is not the answer
            result = validate_target(name)
    except OsmosisError as error:
        if as_json:
            issue = {"code": "NOT_LOADED", "message": str(error)}
            click.echo(json.dumps({"name": name, "errors": [issue], "valid": False}, indent=2))
        raise
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    else:
        for level, issues in (("error", result.errors), ("warning", result.warnings)):
            for issue in issues:
                click.echo(f"{level}: {one_line(issue.message)} [{issue.code}]", err=True)
        if result.valid:
            grader = result.grader or "none"
            click.echo(f"ok: {result.name}: workflow {result.workflow}, grader {grader}")
    if not result.valid:
        raise SystemExit(2)


def one_target(argument: str | None, option: str | None) -> str:
    """The TARGET of a command that takes it as an argument and as `-m`.

    Raises:
        click.UsageError: it was given twice or not at all.
    """
    if (argument is None) == (option is None):
        raise click.UsageError("give TARGET once: module, module:attr or a path to a file")
    return argument if argument is not None else str(option)


class BackendCommand(click.Command):
    """Reads `--NAME-OPTION VALUE`, where NAME is that of `--backend`, as a `--backend-option`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with such options spelled out."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return super().parse_args(ctx, list(_spelled_out(args, known)))


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


def _check_backend_options(
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


backend_option = click.option(
    "--backend-option",
    "backend_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_check_backend_options,
    help="An argument of the backend, in JSON or as text; with --backend NAME, --NAME-some-thing "
    "VALUE is short for --backend-option some_thing=VALUE.",
)
"""The option of a command with `--backend NAME`: what that backend takes beyond its name."""


@contextlib.contextmanager
def reserved_stdout() -> Generator[TextIO]:
    """The real stdout, while all that others print, child processes too, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            os.fdopen(os.dup(kept), "w", encoding="utf-8") as stdout,
            contextlib.redirect_stdout(sys.stderr),
        ):
            yield stdout
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _leave(code: int) -> NoReturn:
    """End the process, also when user code left threads behind that would keep it alive."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    others = set(threading.enumerate()) - {threading.current_thread()}
    if not all(thread.daemon for thread in others):
        os._exit(code)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error of ours is one line on stderr and an exit code."""
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    try:
        code = cli.main(arguments, prog_name="osmosis", standalone_mode=False)
    except SystemExit as error:
        code = error.code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except BrokenPipeError:
        os._exit(1)
    except _NO_COMMAND as error:
        error.show()  # the help, which goes to stderr
        code = error.exit_code
    except (click.ClickException, OsmosisError, OSError) as error:
        click.echo(getattr(error, "user_traceback", ""), err=True, nl=False)
        click.echo(f"error: {one_line(_explained(error))}", err=True)
        code = getattr(error, "exit_code", 1)
    code = code if isinstance(code, int) else 0
    if arguments is None:
        _leave(code)
    sys.exit(code)


def _explained(error: Exception) -> str:
    if not isinstance(error, click.UsageError):
        return str(error)
    command = error.ctx.command_path if error.ctx else "osmosis"
    return f"{error.format_message()} (see {command} --help)"
