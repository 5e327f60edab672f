"""One run of an adapter in a process of its own, and what it did to the process.

`python -m osmosis_core.testing.adapter_conformance.probe module:Class URL KEY` prints a JSON
object as its last line of stdout; each host that is contacted is a line in the file named by
`OSMOSIS_PROBE_HOSTS`, exit handlers and threads included.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from osmosis_core.context import RolloutContext
from osmosis_core.testing.adapter_conformance.fixtures import AdapterFixtures
from osmosis_core.testing.adapter_conformance.kit import FAST_RETRY, user

HOSTS_FILE = "OSMOSIS_PROBE_HOSTS"
_SDK_SETTINGS = ("api_key", "base_url", "organization", "project", "default_headers", "http_client")


def load(path: str) -> AdapterFixtures:
    """The fixtures that `module:Class` names."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found()


def _watch_hosts(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and arguments[0]:
            os.write(file, f"{arguments[0]}\n".encode())
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            os.write(file, f"{arguments[1][0]}\n".encode())

    sys.addaudithook(note)


def _state() -> dict[str, Any]:
    """What belongs to the process, by the words of a report."""
    root = logging.getLogger()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop_policy: object = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    sdk = sys.modules.get("openai")
    return {
        "environment variables": dict(os.environ),
        "the root logger": [
            root.level,
            [type(h).__name__ for h in root.handlers],
            logging.root.manager.disable,
        ],
        "the warning filters": [
            str(f)
            for f in warnings.filters
            if f[1] is None and f[3] is None and f[2].__module__ == "builtins"
        ],
        "the event loop policy": type(loop_policy).__qualname__,
        "sys.excepthook": sys.excepthook.__qualname__,
        "the handler of SIGINT": str(signal.getsignal(signal.SIGINT)),
        "the working directory": str(Path.cwd()),
        "the default socket timeout": socket.getdefaulttimeout(),
        "the openai module's settings": {n: str(getattr(sdk, n, None)) for n in _SDK_SETTINGS},
    }


def _changed(before: dict[str, Any]) -> dict[str, str]:
    """What differs from an earlier state; of environment variables, the names only."""
    now = _state()
    changed: dict[str, str] = {}
    for what, old in before.items():
        new = now[what]
        if isinstance(old, dict):
            names: set[str] = {n for n in old.keys() | new.keys() if old.get(n) != new.get(n)}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType,reportUnknownMemberType]
            if names:
                changed[what] = ", ".join(sorted(names))
        elif old != new:
            changed[what] = f"{old} became {new}"
    return changed


def _holders(key: str) -> list[str]:
    """Module globals that hold the rollout's key: as text, or in an object's `api_key`."""
    found: list[str] = []
    for name, module in list(sys.modules.items()):
        if module is None or name.startswith("osmosis_core") or name == "__main__":  # pyright: ignore[reportUnnecessaryComparison]
            continue
        for attribute, value in list(vars(module).items()):
            held = value if type(value) is str else _attributes(value).get("api_key")
            if type(held) is str and key in held:
                found.append(f"{name}.{attribute}")
    return found


def _attributes(value: object) -> dict[str, Any]:
    """Without waking lazy proxies, which answer to everything but this."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


async def _run(fixtures: AdapterFixtures, url: str, key: str) -> list[str]:
    """Run an agent inside a rollout; returns the tasks that are left."""
    with RolloutContext(url, key, "probe", retry=FAST_RETRY) as rollout:
        await fixtures.run_agent("agent", user("hello"))
        await rollout.get_samples()
    await asyncio.sleep(0.1)
    return [str(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]


@contextmanager
def _logging_to(stream: io.StringIO) -> Generator[None]:
    handler, root = logging.StreamHandler(stream), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _open_sockets() -> int:
    gc.collect()
    return sum(o.fileno() != -1 for o in gc.get_objects() if issubclass(type(o), socket.socket))


def main() -> None:
    """Run the probe."""
    path, url, key = sys.argv[1:]
    _watch_hosts(os.environ.pop(HOSTS_FILE))
    printed, log = io.StringIO(), io.StringIO()
    report: dict[str, Any] = {}
    if importlib.util.find_spec("openai"):
        importlib.import_module("openai")
    before = _state()
    with redirect_stdout(printed), redirect_stderr(log):
        fixtures = load(path)
        fixtures.create_model()
        report["import"], before = _changed(before), _state()
        sockets = _open_sockets()
        report["tasks"] = asyncio.run(_run(fixtures, url, key))
        report["printed"] = printed.getvalue()
        with _logging_to(log):
            asyncio.run(_run(fixtures, url, key))
    report["run"] = _changed(before)
    report["sockets"] = _open_sockets() - sockets
    report["threads"] = [
        t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()
    ]
    report["key in"] = _holders(key) + [f"${n}" for n, v in os.environ.items() if key in v]
    report["logged the key"] = key in log.getvalue() + printed.getvalue()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
