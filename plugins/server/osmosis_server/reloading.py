"""`osmosis serve --reload`: the server as a child that starts anew when the code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

_EVERY_SEC = 0.3
_SKIPPED = {"node_modules", "site-packages", "__pycache__"}


def serve_reloading(arguments: list[str]) -> int:
    """Run this command without `--reload` until a signal; its exit code is the last child's."""
    command = [sys.executable, sys.argv[0], *(a for a in arguments if a != "--reload")]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while True:
        before, child = _changes(Path.cwd()), subprocess.Popen(command)
        try:
            while _changes(Path.cwd()) == before:
                time.sleep(_EVERY_SEC)
            click.echo("the code has changed; serving anew", err=True)
        except KeyboardInterrupt:
            return _end(child)
        _end(child)


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


def _end(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    return child.wait()
