"""The `osmosis eval` commands; whatever costs time to import is imported inside them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from osmosis_core.cli import BackendCommand, backend_option, one_target
from osmosis_eval.servers import chosen_servers, server_options


def _check_seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value} is not a number of seconds above 0", ctx, param)
    return value


def _check_capture(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    capture: dict[str, Any] = {}
    for value in values:
        name, separator, text = value.partition("=")
        try:
            capture[name] = json.loads(text) if separator else True
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {text!r} is not JSON", ctx, param) from error
    return capture


_COUNT = click.IntRange(min=1)
_PATH = click.Path(path_type=Path)


@click.group("eval")
def group() -> None:
    """Roll out a dataset and summarise the rewards."""


@group.command(cls=BackendCommand)
@click.argument("target", required=False)
@click.option("-m", "--module", "option", help="TARGET, in the documented form.")
@click.option("--dataset", type=_PATH, required=True, help="Rows: .jsonl or .csv.")
@click.option("--policy", metavar="NAME", help="Start a registered policy, such as demo.")
@click.option("--base-url", metavar="URL", help="Use the OpenAI-compatible endpoint at this URL.")
@click.option("--model", help="Model name to ask the endpoint for.")
@click.option(
    "--api-key-env", metavar="NAME", help="Variable with the key; OSMOSIS_API_KEY by default."
)
@click.option("--plain", is_flag=True, help="Ask for plain answers instead of streams.")
@click.option(
    "--capture",
    metavar="NAME[=JSON]",
    multiple=True,
    callback=_check_capture,
    help="Add a field to every request, such as logprobs or return_token_ids (true).",
)
@click.option("--preflight/--no-preflight", default=True, help="Try the endpoint first (yes).")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many rows.")
@click.option("--limit", type=_COUNT, help="Take at most this many rows.")
@click.option("--n", "per_row", type=_COUNT, default=1, help="Rollouts per row (1).")
@click.option(
    "--concurrency", type=_COUNT, help="Rollouts at a time; by default the config's number, else 4."
)
@click.option(
    "--timeout",
    "agent_timeout_sec",
    type=float,
    callback=_check_seconds,
    default=600.0,
    help="Seconds for each workflow (600).",
)
@click.option(
    "--grader-timeout",
    "grader_timeout_sec",
    type=float,
    callback=_check_seconds,
    default=150.0,
    help="Seconds for each grader (150).",
)
@click.option("--backend", metavar="NAME", default="local", help="Where rollouts run (local).")
@server_options
@backend_option
@click.option("--by", "by_key", metavar="KEY", help="Also count rewards by this metadata key.")
@click.option(
    "-o",
    "--output",
    type=_PATH,
    help="New directory for the results; .osmosis/evals/<name>-<UTC time> by default.",
)
@click.option(
    "--show", type=click.IntRange(min=0), default=0, help="Print the first conversations (0)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Show no progress bar.")
def run(target: str | None, option: str | None, **options: Any) -> None:
    """Roll out the rows of a dataset with the workflow in TARGET, or on servers that have one.

    TARGET is a module, module:attr, or a path to a file.
    """
    servers = chosen_servers(options)
    is_named = servers is None or target is not None or option is not None
    chosen = one_target(target, option) if is_named else None
    _check_policy_options(**{name: options[name] for name in _POLICY_OPTIONS})
    from osmosis_eval.evaluate import evaluate
    from osmosis_eval.settings import Settings

    raise SystemExit(evaluate(Settings(target=chosen, servers=servers, **options)))


_POLICY_OPTIONS = ("policy", "base_url", "model", "api_key_env")


def _check_policy_options(
    policy: str | None, base_url: str | None, model: str | None, api_key_env: str | None
) -> None:
    if (policy is None) == (base_url is None):
        from osmosis_core.plugins import get_plugins

        there = ", ".join(get_plugins().policies) or "none"
        raise click.UsageError(
            "give either --base-url URL or --policy NAME; registered policies: " + there
        )
    if policy is not None and (model is not None or api_key_env is not None):
        raise click.UsageError("--model and --api-key-env go with --base-url, not with --policy")


@group.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(arguments: tuple[str, ...]) -> None:
    """Say where submitting went."""
    raise click.UsageError(
        "`osmosis eval submit` belongs to the hosted platform and is not here; `osmosis validate "
        "TARGET` runs what a submit would check"
    )
