"""`osmosis test`, `eval run` and `serve` with agent loops (protocol.md 3.1)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pexpect
import pytest

from osmosis_agent_loop.datasets import (
    DatasetNotFoundError,
    DatasetParseError,
    DatasetValidationError,
    read_rows,
)
from osmosis_core.cli import main
from osmosis_core.testing import ScriptedPolicy, Status, Tool

sys.path.insert(0, str(Path(__file__).parent))
from trainer import Trainer

OSMOSIS = Path(sys.executable).parent / "osmosis"
EXAMPLE = Path(__file__).parents[3] / "examples/agent_loop"
TARGET, ROWS = f"{EXAMPLE}/server.py:agent_loop", EXAMPLE / "rows.jsonl"
MCP = """
from mcp.server import MCPServer
server = MCPServer("calculator")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """Run `osmosis` in this process, in `tmp_path`: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        return ended.value.code, *capfd.readouterr()

    yield run
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if name in ("loop", "main", "server", "tools", "rewards"):
            del sys.modules[name]


class TestTest:
    def test_example_passes_with_the_embedded_policy(self, osmosis, tmp_path):
        done = osmosis("test", "-m", TARGET, "-d", ROWS, "--policy", "demo", "-o", "out.json")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("6 passed, 0 failed, of 6 rows")
        assert "row 1: stop, reward 1, 3 calls" in done.stderr
        report = json.loads((tmp_path / "out.json").read_text())
        keys = {"total", "passed", "failed", "total_duration_ms", "total_tokens"}
        assert set(report["summary"]) == keys and report["summary"]["passed"] == 6
        assert set(report["results"][0]) == {
            *("row_index", "success", "error", "duration_ms", "token_usage", "reward"),
            "finish_reason",
        }

    def test_offset_limit_row_and_quiet_choose(self, osmosis):
        options = ("--policy", "demo", "--offset", "1", "--limit", "2")
        done = osmosis("test", "-m", TARGET, "-d", ROWS, *options)
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["row 1", "row 2"]
        done = osmosis("test", "-m", TARGET, "-d", ROWS, "--policy", "demo", "--row", "3", "-q")
        assert (done.stdout.split(",")[0], done.stderr) == ("1 passed", "")

    def test_url_gets_model_key_and_sampling(self, osmosis):
        with ScriptedPolicy("The answer is 42.", api_key="sk-mine") as policy:
            where = ("--base-url", policy.base_url, "--model", "big", "--api-key", "sk-mine")
            sampling = ("--temperature", "0.5", "--max-tokens", "99", "--limit", "1")
            done = osmosis("test", "-m", TARGET, "-d", ROWS, *where, *sampling)
        assert done.returncode == 0, done.stderr
        body = policy.requests[0].body
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("big", 0.5, 99)

    def test_max_turns_reaches_the_loop(self, osmosis):
        with ScriptedPolicy(Tool("add", {"a": 1, "b": 1})) as policy:
            options = ("--base-url", policy.base_url, "--max-turns", "2", "--row", "0")
            done = osmosis("test", "-m", TARGET, "-d", ROWS, *options)
        assert "row 0: max_turns" in done.stderr and len(policy.requests) == 2

    def test_failed_row_exits_1_and_the_others_run(self, osmosis, tmp_path):
        (tmp_path / "loop.py").write_text(
            "from osmosis_agent_loop import RolloutAgentLoop\n"
            "class Odd(RolloutAgentLoop):\n"
            "    name = 'odd'\n"
            "    def get_tools(self, request): return []\n"
            "    async def run(self, ctx):\n"
            "        if ctx.request.metadata['row_index'] % 2: raise KeyError('odd')\n"
            "        ctx.log_event('seen', **ctx.request.metadata)\n"
            "        return ctx.complete([], reward=None)\n"
        )
        done = osmosis("test", "loop", "-d", ROWS, "--policy", "demo", "--log", "logs")
        assert done.returncode == 1
        assert "row 1: failed, 0 calls" in done.stderr and "KeyError: 'odd'" in done.stderr
        assert "Traceback" not in done.stderr
        files = sorted(file.name for file in (tmp_path / "logs").glob("*/*.jsonl"))
        assert files == ["test-0.jsonl", "test-2.jsonl", "test-4.jsonl"]
        event = json.loads(next((tmp_path / "logs").glob("*/test-0.jsonl")).read_text())
        assert (event["ground_truth"], event["execution_mode"]) == ("42", "test")

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("sys.exit(3)", "SystemExit: called sys.exit(3)"),
            ("raise asyncio.CancelledError", "CancelledError: raised CancelledError"),
        ],
    )
    def test_loop_that_exits_or_cancels_itself_is_a_failed_row(self, osmosis, tmp_path, line, said):
        (tmp_path / "loop.py").write_text(
            "import asyncio, sys\n"
            "from osmosis_agent_loop import RolloutAgentLoop\n"
            "class Odd(RolloutAgentLoop):\n"
            "    name = 'odd'\n"
            "    def get_tools(self, request): return []\n"
            f"    async def run(self, ctx): {line}\n"
        )
        done = osmosis("test", "loop", "-d", ROWS, "--policy", "demo", "--limit", 2)
        assert (done.returncode, done.stderr.count(said)) == (1, 2)
        assert "0 passed, 2 failed, of 2 rows" in done.stdout

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            ("CLIENT_MAX_RETRIES", "11", "RolloutClientSettings of the environment: max_retries"),
            ("CLIENT", "{oops", "RolloutSettings of the environment: error parsing"),
        ],
    )
    def test_variable_out_of_range_is_one_line(self, osmosis, variable, value, said):
        arguments = "test", "-m", TARGET, "-d", ROWS, "--policy", "demo"
        done = osmosis(*arguments, **{f"OSMOSIS_ROLLOUT_{variable}": value})
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr and "pydantic" not in done.stderr

    @pytest.mark.parametrize("command", ["test", "eval run"])
    def test_settings_say_how_often_the_policy_is_tried(self, osmosis, command):
        with ScriptedPolicy(Status(500, "away")) as policy:
            more = ["--no-preflight"] if command == "eval run" else []
            arguments = "-d" if command == "test" else "--dataset", ROWS, "--limit", 1, *more
            url = "--base-url", policy.base_url
            tries = {"OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES": "0"}
            osmosis(*command.split(), TARGET, *arguments, *url, **tries)
        assert len(policy.requests) == 1

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_policy_that_nobody_can_use_ends_the_run(self, osmosis, status, tmp_path):
        with ScriptedPolicy(Status(status)) as policy:
            where = ("--base-url", policy.base_url, "-o", "out.json")
            done = osmosis("test", "-m", TARGET, "-d", ROWS, *where)
        assert done.returncode == 1 and len(policy.requests) == 1
        assert f"stopped early: the policy at {policy.base_url}" in done.stderr
        summary = json.loads((tmp_path / "out.json").read_text())["summary"]
        assert (summary["total"], summary["stopped_early"]) == (1, True)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("-m", TARGET), "Missing option '-d'"),
            (("-m", TARGET, "-d", ROWS), "--policy NAME; registered policies: demo"),
            (("-m", TARGET, "-d", ROWS, "--policy", "demo", "--model", "x"), "--policy goes"),
            (("-m", TARGET, "-d", ROWS, "--model", "x/y", "--api-key", "k"), "--api-key goes with"),
            (("-d", ROWS, "--policy", "demo"), "give TARGET once"),
            (("-m", TARGET, "--mcp", ".", "-d", ROWS, "--policy", "demo"), "not both"),
            (("-m", "json:dumps", "-d", ROWS, "--policy", "demo"), "json:dumps"),
            (("-m", TARGET, "-d", "gone.jsonl", "--policy", "demo"), "no data set 'gone.jsonl'"),
            (("-m", TARGET, "-d", ROWS, "--policy", "dmo"), "did you mean 'demo'?"),
            (("-m", TARGET, "-d", ROWS, "--model", "openai/x"), "LiteLLM is not installed"),
            (("--mcp", ".", "-d", ROWS, "--policy", "demo"), "no main.py in '.'"),
        ],
    )
    def test_each_mistake_is_one_line_and_exit_2(self, here, arguments, text):
        code, out, err = here("test", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert text in err

    def test_workflow_is_referred_to_eval(self, osmosis, tmp_path):
        text = "from osmosis_core import AgentWorkflow\nclass W(AgentWorkflow):\n"
        (tmp_path / "w.py").write_text(text + "    async def run(self, ctx): pass\n")
        done = osmosis("test", "w.py", "-d", ROWS, "--policy", "demo")
        assert "is a workflow, no agent loop; use `osmosis eval run`" in done.stderr

    def test_mcp_server_is_a_loop(self, osmosis, tmp_path):
        (tmp_path / "main.py").write_text(MCP)
        done = osmosis("test", "--mcp", tmp_path, "-d", ROWS, "--policy", "demo", "--row", "1")
        assert done.returncode == 0, done.stderr
        assert "row 0" not in done.stderr and "row 1: stop, no reward, 2 calls" in done.stderr


class TestInteractive:
    """In a real terminal."""

    @pytest.fixture
    def terminal(self, tmp_path):
        opened = []

        def open_(policy, editor=None):
            command = ["test", "-m", TARGET, "-d", str(ROWS), "--row", "0", "--interactive"]
            (tmp_path / "edit.py").write_text(editor or "")
            env = {**os.environ, "EDITOR": f"{sys.executable} {tmp_path / 'edit.py'}"}
            command += ["--base-url", policy.base_url]
            opened.append(
                pexpect.spawn(
                    str(OSMOSIS), command, env=env, encoding="utf-8", timeout=30, cwd=tmp_path
                )
            )
            return opened[-1]

        yield open_
        for child in opened:
            child.close(force=True)

    def test_turns_are_shown_with_tool_calls_and_results(self, terminal):
        with ScriptedPolicy(Tool("multiply", {"a": 6, "b": 7}), "It is 42.") as policy:
            child = terminal(policy)
            child.expect("user: What is 6 \\* 7")
            child.expect("turn 1: .*> ")
            child.sendline("n")
            child.expect("assistant calls multiply")
            child.expect("answer: .*> ")
            child.sendline("")
            child.expect("tool: 42")
            child.expect("turn 2: .*> ")
            child.sendline("c")
            child.expect("assistant: It is 42.")
            child.expect("1 passed")
            child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0

    def test_last_message_can_be_edited_and_the_turn_tried_again(self, terminal):
        editor = (
            "import sys, pathlib\nfile = pathlib.Path(sys.argv[1])\n"
            "file.write_text(file.read_text().replace('6 * 7', '7 * 7').replace('41', '49'))\n"
        )
        with ScriptedPolicy("bad", "It is 41.") as policy:
            child = terminal(policy, editor)
            child.expect("turn 1: .*> ")
            child.sendline("e")
            child.expect("turn 1: .*> ")
            child.sendline("n")
            child.expect("assistant: bad")
            child.expect("answer: .*> ")
            child.sendline("r")
            child.expect("assistant: It is 41")
            child.expect("answer: .*> ")
            child.sendline("e")
            child.expect("assistant: It is 49")
            child.expect("answer: .*> ")
            child.sendline("m")
            child.expect("user: What is 7 \\* 7")
            child.expect("assistant: It is 49")
            child.expect("answer: .*> ")
            child.sendline("n")
            child.expect("1 passed")
        asked = [request.body["messages"][-1]["content"] for request in policy.requests]
        assert asked == ["What is 7 * 7?"] * 2

    def test_tools_are_shown_unknown_keys_are_refused_and_q_quits(self, terminal):
        with ScriptedPolicy("hi") as policy:
            child = terminal(policy)
            child.expect("turn 1: .*> ")
            child.sendline("t")
            child.expect('"name": "multiply"')
            child.expect("turn 1: .*> ")
            child.sendline("x")
            child.expect("'x' is none of n, e, c, m, t, q")
            child.sendline("q")
            child.expect(pexpect.EOF)
        child.wait()
        assert (child.exitstatus, policy.requests) == (0, [])

    def test_edit_that_is_no_json_changes_nothing(self, terminal):
        editor = "import sys, pathlib\npathlib.Path(sys.argv[1]).write_text('{oops')\n"
        with ScriptedPolicy("hi") as policy:
            child = terminal(policy, editor)
            child.expect("turn 1: .*> ")
            child.sendline("e")
            child.expect("unchanged: ")
            child.expect("turn 1: .*> ")
            child.sendline("c")
            child.expect("1 passed")
        assert policy.requests[0].body["messages"][-1]["content"] == "What is 6 * 7?"

    def test_ctrl_c_ends_it(self, terminal):
        with ScriptedPolicy("hi") as policy:
            child = terminal(policy)
            child.expect("turn 1: .*> ")
            child.sendintr()
            child.expect("interrupted")
            child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 130


GRADED = """
from osmosis_core import Grader
from osmosis_agent_loop import RolloutAgentLoop
class Once(RolloutAgentLoop):
    name = "once"
    def get_tools(self, request): return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        return ctx.complete([*messages, (await ctx.chat(messages)).message], reward=0.25)
class Right(Grader):
    async def grade(self, ctx):
        for name, sample in ctx.get_samples().items():
            asked, answered = sample.messages[-2]["content"], sample.messages[-1]["content"]
            ctx.set_sample_reward(name, len(asked) + float(ctx.label in answered))
agent_loop = Once()
"""


@pytest.mark.parametrize("backend", ["local", "process"])
def test_graded_rewards_of_a_loop_are_the_same_on_every_backend(osmosis, tmp_path, backend):
    (tmp_path / "loop.py").write_text(GRADED)
    rows = [{"user_prompt": "x" * n, "system_prompt": "s", "ground_truth": "42"} for n in (1, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with ScriptedPolicy("It is 42.") as policy:
        where = "--base-url", policy.base_url, "--backend", backend, "--no-preflight", "-o", "out"
        done = osmosis("eval", "run", "loop:agent_loop", "--dataset", "rows.jsonl", *where)
    assert done.returncode == 0, done.stderr
    results = map(json.loads, (tmp_path / "out/results.jsonl").read_text().splitlines())
    assert sorted(result["rewards"]["once"] for result in results) == [2.0, 3.0]


def test_eval_run_takes_agent_loops(osmosis, tmp_path):
    rows = [{"messages": [{"role": "user", "content": "What is 6 * 7?"}]}]
    rows[0] |= {"metadata": {"ground_truth": "42"}, "label": "42"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    done = osmosis("eval", "run", TARGET, "--dataset", "rows.jsonl", "--policy", "demo", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["name"].startswith("calculator")
    assert summary["samples"]["calculator"]["mean"] == 1.0
    plain = osmosis("eval", "run", TARGET, "--dataset", "rows.jsonl", "--policy", "demo")
    assert "no grader in the entrypoint: samples were collected, rewards are" in plain.stdout


class TestDatasets:
    ROW = '{"system_prompt": "s", "USER_PROMPT": "u", "ground_truth": "g", "level": 3}'

    def write(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    def test_columns_match_in_any_case_and_the_others_are_metadata(self, tmp_path):
        (row,) = read_rows(self.write(tmp_path, "rows.jsonl", f"\n{self.ROW}\n\n"))
        assert [m["content"] for m in row.messages] == ["s", "u"]
        known = {"ground_truth": "g", "row_index": 0, "execution_mode": "test"}
        assert row.metadata == {**known, "level": 3}

    def test_every_format_is_read(self, tmp_path):
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        csv = "system_prompt,user_prompt,ground_truth\ns,u,g\n"
        files = [
            self.write(tmp_path, "rows.json", f"[{self.ROW}]"),
            self.write(tmp_path, "rows.csv", csv),
            tmp_path / "rows.parquet",
        ]
        table = {"system_prompt": ["s"], "user_prompt": ["u"], "ground_truth": ["g"]}
        parquet.write_table(pa.table(table), files[2])
        assert [read_rows(file)[0].ground_truth for file in files] == ["g"] * 3

    @pytest.mark.parametrize(
        ("name", "text", "kind", "said"),
        [
            ("rows.txt", "x", DatasetParseError, "ends in '.txt'"),
            ("rows.jsonl", f"{ROW}\n{{oops", DatasetParseError, "rows.jsonl:2: not JSON"),
            ("rows.json", "{}", DatasetParseError, "holds dict; give an array"),
            ("rows.csv", "a,b\n1,2,3\n", DatasetParseError, "rows.csv:2: more fields"),
            ("rows.parquet", "x", DatasetParseError, "not Parquet"),
            ("rows.jsonl", "[1]", DatasetValidationError, "Row 0: not an object"),
            ("rows.jsonl", '{"user_prompt": "u"}', DatasetValidationError, "Row 0: no column"),
            ("rows.jsonl", ROW.replace('"u"', "null"), DatasetValidationError, "is null"),
            ("rows.jsonl", ROW.replace('"u"', "3"), DatasetValidationError, "is int"),
            ("rows.jsonl", ROW.replace('"u"', '" "'), DatasetValidationError, "is empty"),
            ("rows.jsonl", "", DatasetValidationError, "row 0 is not there"),
        ],
    )
    def test_each_mistake_has_its_error(self, tmp_path, name, text, kind, said):
        with pytest.raises(kind, match=said):
            read_rows(self.write(tmp_path, name, text))

    def test_file_that_is_not_there_is_a_file_not_found_error(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="no data set"):
            read_rows(tmp_path / "gone.jsonl")
        assert issubclass(DatasetNotFoundError, FileNotFoundError)


class Served:
    """`osmosis serve` as a process."""

    def __init__(self, cwd, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("OSMOSIS_")}
        command = [OSMOSIS, "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines = []
        self.wait_for("serving on ")
        self.url = self.lines[-1].split("serving on ")[1].split(": ")[0]
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                httpx.get(f"{self.url}/health")
                return
            except httpx.TransportError:
                time.sleep(0.02)

    def wait_for(self, text):
        while not self.lines or text not in self.lines[-1]:
            line = self.process.stderr.readline()
            assert line, self.lines
            self.lines.append(line)

    def init(self, trainer, rollout_id="r-1", **headers):
        body = {"rollout_id": rollout_id, "server_url": trainer.url, "completion_params": {}}
        body |= {"messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.url}/v1/rollout/init"
        return httpx.post(url, json=body, headers=headers, timeout=20)

    def stop(self, number=signal.SIGTERM):
        os.killpg(self.process.pid, number)
        self.process.stderr.close()
        return self.process.wait(30)


class TestServe:
    @pytest.fixture
    def serve(self, tmp_path):
        opened = []

        def open_(*arguments):
            opened.append(Served(tmp_path, *arguments))
            return opened[-1]

        yield open_
        for each in opened:
            if each.process.poll() is None:
                each.stop(signal.SIGKILL)
            each.process.stderr.close()

    def test_loop_is_served_with_a_key_and_debug_logs(self, serve, tmp_path):
        server = serve("-m", TARGET, "--api-key", "osm_rollout_x", "--log", "logs")
        with Trainer("The answer is 42.") as trainer:
            assert server.init(trainer).status_code == 401
            assert server.init(trainer, authorization="osm_rollout_x").status_code == 202
            assert trainer.wait()[0]["status"] == "COMPLETED"
        health = httpx.get(f"{server.url}/health").json()
        assert health["agent_loop"] == "calculator"
        assert server.stop() == 0
        (file,) = (tmp_path / "logs").glob("*/*.jsonl")
        assert file.name == "r-1.jsonl" and file.parent.name.isdigit()

    def test_killed_server_reports_its_rollouts_when_it_is_back(self, serve):
        with Trainer("hang") as trainer:
            first = serve("-m", TARGET, "--local")
            assert first.init(trainer).status_code == 202
            trainer.wait_asked()
            first.stop(signal.SIGKILL)
            serve("-m", TARGET, "--local")
            (body,) = trainer.wait()
        assert body["status"] == "ERROR" and "restarted" in body["error_message"]

    def test_mcp_directory_is_served(self, serve, tmp_path):
        (tmp_path / "main.py").write_text(MCP)
        server = serve("--mcp", ".")
        with Trainer("ok") as trainer:
            (tool,) = server.init(trainer).json()["tools"]
            assert tool["function"]["name"] == "add"
            assert tool["function"]["parameters"]["properties"]["a"]["type"] == "integer"
            assert trainer.wait()[0]["status"] == "COMPLETED"

    def test_code_that_changes_is_served_anew(self, serve, tmp_path):
        text = (Path(__file__).parent / "broken/unknown_tool_type.py").read_text()
        (tmp_path / "loop.py").write_text(text)
        server = serve("-m", "loop:agent_loop", "--reload")
        (tmp_path / "loop.py").write_text(text.replace('"broken"', '"mended"'))
        server.wait_for("serving anew")
        server.wait_for("serving on ")
        url = server.lines[-1].split("serving on ")[1].split(": ")[0]
        until, name = time.monotonic() + 20, None
        while name is None and time.monotonic() < until:
            try:
                name = httpx.get(f"{url}/health").json()["agent_loop"]
            except httpx.TransportError:
                time.sleep(0.05)
        assert name == "mended"
        server.stop()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("-m", "loop"), "run() is not async"),
            (("-m", TARGET, "--local", "--api-key", "k"), "--local serves without a key"),
            (("-m", TARGET, "--mcp", "."), "give TARGET or --mcp DIR, not both"),
            (("--mcp", "."), "no main.py in '.'"),
        ],
    )
    def test_each_mistake_is_one_line(self, here, tmp_path, arguments, text):
        broken = (Path(__file__).parent / "broken/run_not_async.py").read_text()
        (tmp_path / "loop.py").write_text(broken)
        code, _, err = here("serve", "--port", "0", *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert text in err

    def test_no_validate_serves_what_has_errors(self, serve, tmp_path):
        broken = (Path(__file__).parent / "broken/run_not_async.py").read_text()
        (tmp_path / "loop.py").write_text(broken)
        server = serve("-m", "loop", "--no-validate")
        with Trainer() as trainer:
            assert server.init(trainer).status_code == 202
            assert trainer.wait()[0]["status"] == "ERROR"
