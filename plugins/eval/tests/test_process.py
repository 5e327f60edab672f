import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from osmosis_core.testing import Delay, ScriptedPolicy

LIMIT_SEC = 30.0
LIGHT_FLOW = """
    import subprocess
    import httpx2
    from osmosis_core import AgentWorkflow, Grader
    from osmosis_core.policy import BASE_URL, async_client

    class Answer(AgentWorkflow):
        async def run(self, ctx):
            print("printed", flush=True)
            subprocess.run(["echo", "echoed"], check=True)
            url, body = f"{BASE_URL}/chat/completions", {"messages": ctx.prompt}
            answer = await async_client(httpx2).post(url, json=body)
            answer.raise_for_status()

    class Equal(Grader):
        async def grade(self, ctx):
            ctx.set_reward(ctx.sample.messages[-1]["content"] == ctx.label)
"""
STUBBORN_FLOW = """
    import asyncio
    import time
    from osmosis_core import AgentWorkflow

    class Stubborn(AgentWorkflow):
        async def run(self, ctx):
            if ctx.prompt[0]["content"] != "q0":
                time.sleep(60)
            return []
"""


@pytest.fixture
def light(workspace: Any) -> Any:
    workspace.write("flow.py", LIGHT_FLOW)
    workspace.rows()
    return workspace


def await_line(path: Path) -> None:
    limit = time.monotonic() + LIMIT_SEC
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < limit, f"nothing in {path}"
        time.sleep(0.02)


def test_json_is_alone_on_stdout(light: Any, policy: ScriptedPolicy) -> None:
    ended = light.run(*light.arguments("--base-url", policy.base_url, "--json"))
    assert ended.code == 0
    assert json.loads(ended.out)["rollouts"]["succeeded"] == 3
    assert ended.err.count("printed") == ended.err.count("echoed") == 3


def test_demo_policy_needs_no_key(light: Any) -> None:
    row = {"user_prompt": "What is 2 + 3?", "ground_truth": "5"}
    light.write("rows.jsonl", json.dumps(row))
    ended = light.run(*light.arguments("--policy", "demo"))
    assert (ended.code, ended.err) == (0, "")
    assert light.summary()["policy"] == {"name": "demo"}


def interrupted(workspace: Any, process: subprocess.Popen[str], times: int = 1) -> tuple[str, str]:
    with process:
        try:
            await_line(workspace.path / "out/results.jsonl")
            for _ in range(times):
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            out, err = process.communicate(timeout=LIMIT_SEC)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in out + err
    return out, err


def test_ctrl_c_keeps_what_finished_and_exits_130(light: Any) -> None:
    light.rows(50)

    def first_answers(received: Any) -> Any:
        is_first = received.body["messages"][-1]["content"] == "q0"
        return "ok" if is_first else Delay("ok", before_sec=LIMIT_SEC)

    with ScriptedPolicy(first_answers) as policy:
        arguments = light.arguments("--base-url", policy.base_url, "--no-preflight")
        out, _ = interrupted(light, light.start(*arguments))
    assert [line["row_index"] for line in light.lines()] == [0]
    assert len(light.lines("samples.jsonl")) == 1
    summary = light.summary()
    assert (summary["interrupted"], summary["rollouts"]["succeeded"]) == (True, 1)
    assert summary["rollouts"]["planned"] == 50
    assert "interrupted: what finished before" in out


def test_second_ctrl_c_ends_blocking_code(workspace: Any) -> None:
    workspace.write("flow.py", STUBBORN_FLOW)
    workspace.rows(3)
    arguments = workspace.arguments("--policy", "demo", "--concurrency", "1")
    interrupted(workspace, workspace.start(*arguments), times=2)
    assert [line["row_index"] for line in workspace.lines()] == [0]


def test_ctrl_c_before_the_first_rollout_is_one_line(light: Any) -> None:
    arguments = light.arguments("--base-url")
    with (
        ScriptedPolicy(Delay("ok", before_sec=LIMIT_SEC)) as policy,
        light.start(*arguments, policy.base_url) as process,
    ):
        limit = time.monotonic() + LIMIT_SEC
        while not policy.requests and time.monotonic() < limit:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_SEC)
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")
    assert not (light.path / "out").exists()


def test_terminal_shows_progress_unless_quiet(light: Any, policy: ScriptedPolicy) -> None:
    arguments = light.arguments("--base-url", policy.base_url)
    command = str(Path(sys.executable).with_name("osmosis"))
    shown = pexpect.run(f"{command} {' '.join(arguments)}", timeout=LIMIT_SEC, cwd=light.path)
    assert b"3/3" in shown
    assert b"mean reward 1.000" in shown


def test_quiet_shows_no_progress(light: Any, policy: ScriptedPolicy) -> None:
    arguments = light.arguments("--base-url", policy.base_url, "--quiet")
    command = str(Path(sys.executable).with_name("osmosis"))
    shown = pexpect.run(f"{command} {' '.join(arguments)}", timeout=LIMIT_SEC, cwd=light.path)
    assert b"3/3" not in shown
    assert b"rollouts: 3 ok" in shown


def test_ascii_terminal_gets_no_traceback(light: Any) -> None:
    light.rows(1, metadata={"kind": "größe"})
    ended = light.run(
        *light.arguments("--policy", "demo", "--by", "kind"),
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
    )
    assert ended.code == 0
    assert "gr??e" in ended.out


FAKE_PLUGIN = """
    from osmosis_core import hookimpl

    @hookimpl
    def osmosis_register_policies(register):
        def broken():
            raise RuntimeError("no GPU here")

        register("broken", broken)

    @hookimpl
    def osmosis_register_backends(register):
        register("picky", lambda *, workflow: None)
"""


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--policy", "broken"), "error: policy 'broken' did not start: no GPU here"),
        (("--policy", "demo", "--backend", "picky"), "error: backend 'picky' cannot be built: "),
    ],
)
def test_what_a_plugin_offers_and_cannot_start_is_one_line(
    light: Any, extra: tuple[str, ...], message: str
) -> None:
    light.write("fake_plugin.py", FAKE_PLUGIN)
    info = light.path / "fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[osmosis_core]\nfake = fake_plugin\n")
    ended = light.run(*light.arguments(*extra), PYTHONPATH=str(light.path))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(message)
    assert len(ended.err.splitlines()) == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from osmosis_core.cli import cli\n"
        "cli.main(['eval', 'run', '--help'], standalone_mode=False)\n"
        "print(sorted({'rich', 'httpx2', 'aiohttp', 'openai'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_SEC, check=True
    )
    assert done.stdout.endswith("[]\n")
