"""What a person sees: a progress bar while rollouts run, tables and figures at the end."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from osmosis_eval.stats import Totals

_FIGURES = ("mean", "std", "min", "max")


class ProgressBar:
    """Done of all, errors and mean reward, on stderr; nothing at all when it is off."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("rollouts", total=total, figures="") if progress else None

    def update(self, totals: Totals) -> None:
        """Show what is finished by now."""
        if self._progress is None or self._task is None:
            return
        errors, rewards = totals.failed.total(), totals.rewards
        mean = f"mean reward {rewards.mean:.3f}" if rewards.count else ""
        figures = f"{errors} errors  {mean}"
        self._progress.update(self._task, completed=totals.finished, figures=figures)

    def show(self, text: str, *, to_stderr: bool) -> None:
        """Print a text, above the bar where they share a terminal."""
        if self._progress is not None and (to_stderr or sys.stdout.isatty()):
            self._progress.console.print(Text(text), soft_wrap=True)
        else:
            click.echo(text, err=to_stderr)


@contextmanager
def progress_bar(total: int, *, is_quiet: bool) -> Generator[ProgressBar]:
    """A bar for the block, if stderr is a terminal and quiet was not asked for."""
    if is_quiet or not sys.stderr.isatty():
        yield ProgressBar(None, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        yield ProgressBar(progress, total)


def print_report(summary: dict[str, Any]) -> None:
    """Print the summary on stdout: rewards by sample, by metadata value, and the figures."""
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as capture:
        for part in _parts(summary):
            console.print(part, soft_wrap=isinstance(part, Text))
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(capture.get().encode(encoding, "replace").decode(encoding), nl=False)


def _parts(summary: dict[str, Any]) -> Iterator[RenderableType]:
    if summary["samples"]:
        yield _table("sample", "samples", summary["samples"])
    for key, groups in summary.get("by", {}).items():
        yield _table(key, "rollouts", groups)
    yield from map(Text, _lines(summary))


def _table(name: str, counted: str, groups: dict[str, Any]) -> Table:
    table = Table()
    table.add_column(name, overflow="fold")
    for column in (counted, "graded", *_FIGURES):
        table.add_column(column, justify="right", no_wrap=True)
    for group, figures in groups.items():
        counts = (str(figures[counted]), str(figures["graded"]))
        table.add_row(Text(group), *counts, *(_number(figures[figure]) for figure in _FIGURES))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    rollouts, tokens = summary["rollouts"], summary["tokens"]
    if summary["grader"] is None and summary["target"] is not None:
        is_graded = any(figures["graded"] for figures in summary["samples"].values())
        what = "rewards are the agents' own" if is_graded else "nothing was graded"
        yield f"no grader in the entrypoint: samples were collected, {what}"
    categories = ", ".join(f"{k} {v}" for k, v in rollouts["failed_by_category"].items())
    failed = f"{rollouts['failed']} failed" + (f" ({categories})" if categories else "")
    yield f"rollouts: {rollouts['succeeded']} ok, {failed}, of {rollouts['planned']} planned"
    yield from _sample_lines(summary)
    yield (
        f"policy: {summary['calls']} calls, {tokens['prompt']} prompt and "
        f"{tokens['completion']} completion tokens"
    )
    rate = _number(summary["rollouts_per_sec"])
    yield f"time: {summary['wall_sec']:.1f} s, {rate} rollouts/s"
    for error in summary["errors"]:
        yield f"error: {error['count']} x {error['message']}"
    if summary["interrupted"]:
        yield "interrupted: what finished before is counted here and on disk"
    yield f"output: {summary['output']}"


def _sample_lines(summary: dict[str, Any]) -> Iterator[str]:
    for what in ("truncated", "removed"):
        count = summary[f"{what}_samples"]
        if count:
            yield f"{what} samples: {count}"
