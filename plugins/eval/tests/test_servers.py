"""`osmosis eval run --server`: rows go to rollout servers."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from osmosis_core import LocalBackend
from osmosis_core.testing import ScriptedPolicy
from osmosis_gateway.serving import listen, origin_of
from osmosis_server import ServerSettings, create_rollout_server

KEY = "key-of-the-servers"


@pytest.fixture
def server(flow: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A rollout server, with a key, that has the workflow of `flow.py`."""
    monkeypatch.setenv("SERVER_KEY", KEY)
    monkeypatch.syspath_prepend(str(flow.path))
    module = importlib.import_module("flow")
    backend = LocalBackend(workflow=module.Answer, grader=module.Equal)
    settings = ServerSettings(journal=":memory:")
    app = create_rollout_server(backend=backend, api_key=KEY, settings=settings)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    running, listener = uvicorn.Server(config), listen("127.0.0.1", 0, allow_remote=False)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([listener])))
    thread.start()
    yield origin_of(listener)
    running.should_exit = True
    thread.join(30)
    listener.close()


def arguments(server: str, policy: ScriptedPolicy, *extra: str) -> list[str]:
    rows = ["eval", "run", "--dataset", "rows.jsonl", "--output", "out", "--server", server]
    return [*rows, "--base-url", policy.base_url, "--server-api-key-env", "SERVER_KEY", *extra]


def test_rows_are_graded_on_the_server_without_a_target(
    flow: Any, server: str, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(*arguments(server, policy))
    assert ended.code == 0, ended.err
    assert {(r["status"], r["rewards"]["main"], r["calls"]) for r in flow.lines()} == {
        ("success", 1.0, 1)
    }
    summary = flow.summary()
    assert (summary["backend"], summary["servers"]) == ("server", [server])
    assert summary["target"] is None and summary["rewards"]["mean"] == 1.0
    assert flow.lines("samples.jsonl")[0]["samples"]["main"]["calls"][0]["answer"]


def test_target_names_the_run_and_says_whether_it_is_graded(
    flow: Any, server: str, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(*arguments(server, policy, "-m", "flow.py"))
    assert ended.code == 0, ended.err
    assert flow.summary()["grader"] == "Equal"


def test_key_may_be_in_a_file_and_is_in_no_output(
    flow: Any, server: str, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    given = arguments(server, policy)
    given[-2:] = ["--server-api-key-file", flow.write("key", KEY + "\n")]
    ended = osmosis(*given)
    written = "".join(path.read_text() for path in (flow.path / "out").glob("*.json*"))
    assert ended.code == 0 and KEY not in written + ended.out + ended.err


def test_wrong_key_ends_it_before_the_first_rollout(
    flow: Any,
    server: str,
    policy: ScriptedPolicy,
    osmosis: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVER_KEY", "another")
    ended = osmosis(*arguments(server, policy))
    assert ended.code == 2 and "/health answered 401; check the API key" in ended.err
    assert not (flow.path / "out" / "results.jsonl").exists()


def test_server_that_is_not_there_ends_it_before_the_first_rollout(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ended = osmosis(*arguments(f"http://127.0.0.1:{taken.getsockname()[1]}", policy))
    assert ended.code == 2 and "no rollout server is ready" in ended.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--server-protocol", "multi-sample"], "go with --server URL"),
        (["--server", "http://127.0.0.1:1", "--listen", "9000"], "is not HOST:PORT"),
        (["--server", "http://127.0.0.1:1", "--server-api-key-env", "NOT_SET"], "no variable"),
        (["--server", "http://127.0.0.1:1", "--server-api-key-file", "none"], "cannot be read"),
        (["--server", "http://10.1.2.3:1"], "cannot reach a listener"),
        (["--backend", "server"], "give --server URL"),
        (["--server", "here"], "needs the form http://host:port"),
    ],
)
def test_unusable_options_say_what_is_wrong(
    options: list[str], why: str, flow: Any, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(
        "eval", "run", "flow.py", "--dataset", "rows.jsonl", "--policy", "demo", *options
    )
    assert ended.code == 2 and why in ended.err


def test_without_osmosis_server_the_extra_is_named(
    flow: Any, osmosis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "osmosis_server", None)
    given = ["--dataset", "rows.jsonl", "--policy", "demo", "--server", "http://127.0.0.1:1"]
    ended = osmosis("eval", "run", *given)
    assert ended.code == 2 and "pip install 'osmosis-eval[server]'" in ended.err
    assert len(ended.err.splitlines()) == 1
