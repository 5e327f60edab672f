"""User code that exits, leaves threads, changes the directory: it costs its own rollout only."""

import time
from typing import Any

import pytest

HEAD = """
    import asyncio, os, sys, threading, time
    from osmosis_core import AgentWorkflow

    async def leave(code):
        sys.exit(code)

    class Odd(BaseException):
        pass

    class Rude(AgentWorkflow):
        async def run(self, ctx):
            if ctx.prompt[0]["content"] != "q1":
                return []
"""


def rude(workspace: Any, line: str, *options: str) -> Any:
    workspace.write("flow.py", HEAD + f"            {line}\n")
    workspace.rows(3)
    return workspace.run(*workspace.arguments("--policy", "demo", *options))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("await asyncio.create_task(leave(0))", "called sys.exit(0)"),
        ("sys.exit(5)", "called sys.exit(5)"),
        ("raise Odd('strange')", "strange"),
        ("raise asyncio.CancelledError", "raised CancelledError"),
    ],
)
def test_leaving_fails_one_rollout(workspace: Any, line: str, said: str) -> None:
    ended = rude(workspace, line)
    assert ended.code == 1, ended.err
    statuses = {record["row_index"]: record["status"] for record in workspace.lines()}
    assert statuses == {0: "success", 1: "failure", 2: "success"}
    assert said in ended.out
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.to_thread(time.sleep, 60)",
        "threading.Thread(target=time.sleep, args=(60,)).start()",
    ],
)
def test_threads_left_behind_do_not_keep_the_process(workspace: Any, line: str) -> None:
    began = time.monotonic()
    ended = rude(workspace, line, "--timeout", "0.5")
    assert "rollouts:" in ended.out
    assert ended.code in (0, 1)
    assert time.monotonic() - began < 25


def test_results_stay_where_they_are_when_the_directory_changes(workspace: Any) -> None:
    ended = rude(workspace, "os.chdir('/')")
    assert ended.code == 0, ended.err
    assert len(workspace.lines()) == 3
    assert workspace.summary()["rollouts"]["succeeded"] == 3
