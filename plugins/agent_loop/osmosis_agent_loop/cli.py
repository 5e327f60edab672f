"""The `osmosis test` command; whatever costs time to import is imported inside it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osmosis_core.cli import one_target

if TYPE_CHECKING:
    from osmosis_agent_loop.agent_loop import RolloutAgentLoop
    from osmosis_agent_loop.trial import RowResult

_COUNT = click.IntRange(min=1)
_PATH = click.Path(path_type=Path)
_DEFAULT_LOGS = "logs"


@click.command()
@click.argument("target", required=False)
@click.option("-m", "--module", "--agent", "option", help="TARGET, in the documented form.")
@click.option("--mcp", type=_PATH, help="A directory with an MCP server in main.py, instead.")
@click.option("-d", "--dataset", type=_PATH, required=True, help="Rows: .jsonl, .json, .csv, ...")
@click.option("--model", help="PROVIDER/MODEL of LiteLLM, or the model's name at --base-url.")
@click.option("--base-url", metavar="URL", help="Use the OpenAI-compatible endpoint at this URL.")
@click.option("--policy", metavar="NAME", help="Start a registered policy, such as demo.")
@click.option("--api-key", help="Key for --base-url; OSMOSIS_API_KEY by default.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many rows.")
@click.option("--limit", type=_COUNT, help="Take at most this many rows.")
@click.option("--row", type=click.IntRange(min=0), help="Take this row only.")
@click.option("--max-turns", type=_COUNT, default=10, help="request.max_turns (10).")
@click.option("--temperature", type=float, help="In request.completion_params.")
@click.option("--max-tokens", type=_COUNT, help="In request.completion_params.")
@click.option("--log", metavar="DIR", help="Write what ctx.log_event is given below this.")
@click.option("--debug", is_flag=True, help=f"The same as --log {_DEFAULT_LOGS}.")
@click.option("-i", "--interactive", is_flag=True, help="Step through the turns.")
@click.option("-o", "--output", type=_PATH, help="Write the results to this JSON file.")
@click.option("-q", "--quiet", is_flag=True, help="Print the summary only.")
def test(target: str | None, option: str | None, **options: Any) -> None:
    """Try an agent loop on the rows of a data set.

    TARGET is module:attr of an agent loop, a module, or a path to a file.
    """
    _check_policy(options["model"], options["base_url"], options["policy"], options["api_key"])
    if options["row"] is not None and (options["offset"] or options["limit"]):
        raise click.UsageError("--row goes without --offset and --limit")
    if options["mcp"] is not None and (target or option):
        raise click.UsageError("give TARGET or --mcp DIR, not both")
    name = None if options["mcp"] is not None else one_target(target, option)
    raise SystemExit(_run(_loop(name, options["mcp"]), options))


def _check_policy(
    model: str | None, base_url: str | None, policy: str | None, api_key: str | None
) -> None:
    if policy is not None and (model or base_url):
        raise click.UsageError("--policy goes without --model and --base-url")
    if policy is None and model is None and base_url is None:
        from osmosis_core.plugins import get_plugins

        there = ", ".join(get_plugins().policies) or "none"
        raise click.UsageError(
            "give --model PROVIDER/MODEL, --base-url URL or --policy NAME; registered policies: "
            + there
        )
    if api_key is not None and base_url is None:
        raise click.UsageError(
            "--api-key goes with --base-url; LiteLLM reads its provider's, such as OPENAI_API_KEY"
        )


def _loop(target: str | None, mcp: Path | None) -> RolloutAgentLoop:
    if mcp is not None:
        from osmosis_agent_loop.mcp import MCPAgentLoop, load_mcp_server

        return MCPAgentLoop(load_mcp_server(mcp))
    from osmosis_agent_loop.target import load_agent_loop

    return load_agent_loop(str(target))


def _run(agent_loop: RolloutAgentLoop, options: dict[str, Any]) -> int:
    from osmosis_agent_loop.datasets import read_rows
    from osmosis_agent_loop.debug import timestamped
    from osmosis_agent_loop.interactive import Quit, SteppingClient
    from osmosis_agent_loop.trial import Report, Trial, chosen_policy, print_report, run_rows
    from osmosis_agent_loop.validator import validate_agent_loop

    validate_agent_loop(agent_loop).raise_if_invalid()
    only, is_quiet = options["row"], options["quiet"]
    offset, limit = (options["offset"], options["limit"]) if only is None else (only, 1)
    rows = read_rows(options["dataset"], offset, limit)
    sampling = {"temperature": options["temperature"], "max_tokens": options["max_tokens"]}
    log = options["log"] or (_DEFAULT_LOGS if options["debug"] else None)
    trial = Trial(
        agent_loop,
        options["max_turns"],
        {name: value for name, value in sampling.items() if value is not None},
        None if log is None else str(timestamped(log)),
        SteppingClient if options["interactive"] else None,
    )
    key = options["api_key"] or os.environ.get("OSMOSIS_API_KEY")
    policy = chosen_policy(options["model"], options["base_url"], key, options["policy"])
    report = Report()

    def tell(result: RowResult) -> None:
        if not is_quiet:
            click.echo(_line(result), err=True)

    try:
        asyncio.run(run_rows(trial, rows, policy, report, tell))
    except Quit:
        return 0
    finally:
        if options["output"] is not None:
            report.write(options["output"])
    print_report(report)
    return 0 if all(r.success for r in report.results) and report.stopped is None else 1


def _line(result: RowResult) -> str:
    took = f"{result.token_usage['num_llm_calls']} calls, {result.duration_ms:.0f} ms"
    if not result.success:
        return f"row {result.row_index}: failed, {took}: {result.error}"
    reward = "no reward" if result.reward is None else f"reward {result.reward:g}"
    return f"row {result.row_index}: {result.finish_reason}, {reward}, {took}"
