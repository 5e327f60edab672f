"""`osmosis serve --reload`: the server as a child that starts anew when the code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

_EVERY_SEC = 0.3
_PASSED_ON: dict[int, int] = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}
_SKIPPED = {"node_modules", "site-packages", "__pycache__"}


def serve_reloading(arguments: list[str]) -> int:
    """Run this command without `--reload` until a signal; its exit code is the last child's.

    Children are in a group of their own, so that Ctrl-C, which a terminal sends to a whole group,
    reaches them once: a second signal would end them without their grace.
    """
    command = [sys.executable, sys.argv[0], *(a for a in arguments if a != "--reload")]
    child: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if child is not None:
            child.send_signal(_PASSED_ON[number])

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    while not asked:
        before, child = _changes(Path.cwd()), subprocess.Popen(command, process_group=0)
        while not asked and _changes(Path.cwd()) == before:
            time.sleep(_EVERY_SEC)
        if not asked:
            click.echo("the code has changed; serving anew", err=True)
            child.terminate()
        child.wait()
    return child.returncode if child else 0


def _changes(folder: Path) -> dict[str, int]:
    """When each Python file below a folder was last written."""
    found: dict[str, int] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in _SKIPPED and not f.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = Path(root, name)
                found[str(path)] = path.stat().st_mtime_ns if path.exists() else 0
    return found
