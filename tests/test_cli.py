"""`osmosis` as a user meets it: exit codes, one message per mistake, answers on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader

class Solve(AgentWorkflow):
    async def run(self, ctx): pass

class Strict(Grader):
    async def grade(self, ctx): pass
"""
BLOCKING = GOOD.replace("async def run", "def run").replace("async def grade", "def grade")
CONSTRUCTOR = "    def __init__(self, config=None): raise RuntimeError('no key')\n"
UNBUILDABLE = GOOD.replace("    async", CONSTRUCTOR + "    async")
UNGRADED = GOOD.partition("class Strict")[0]
UNNAMED = GOOD + "config = AgentWorkflowConfig(name='  ')\n"
TYPED = GOOD.replace("(AgentWorkflow)", "(AgentWorkflow[Deep])").replace(
    "class Solve", "class Deep(AgentWorkflowConfig): pass\nclass Solve"
)
CRASHING = "def start():\n    raise RuntimeError('no key')\n\nstart()\n"


@pytest.fixture
def validate(osmosis, tmp_path):
    """Run `osmosis validate solve.py` over a module of this text."""

    def validate(text, *options, target="solve.py"):
        (tmp_path / "solve.py").write_text(text)
        return osmosis("validate", *([target] if target else []), *options)

    return validate


def assert_one_message(done, message):
    """Our own errors are one line, and no traceback."""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


class TestRoot:
    @pytest.mark.parametrize("group", [[], ["eval"]])
    def test_no_command_shows_the_help_on_stderr(self, group, osmosis):
        done = osmosis(*group)
        assert done.stderr == osmosis(*group, "--help").stdout
        assert (done.returncode, done.stdout) == (2, "")

    def test_help_lists_the_commands_of_plugins(self, osmosis):
        done = osmosis("--help")
        assert done.returncode == 0
        listed = done.stdout.partition("Commands:")[2]
        assert [line.split()[0] for line in listed.strip().splitlines()] == [
            "eval",
            "gateway",
            "plugins",
            "validate",
        ]

    def test_version_is_that_of_the_kernel(self, osmosis):
        assert osmosis("--version").stdout.startswith("osmosis, version 0.")

    def test_no_command_at_all_shows_the_help(self, osmosis):
        done = osmosis()
        assert done.returncode == 2
        assert "Commands:" in done.stdout + done.stderr

    def test_unknown_command_suggests_the_nearest(self, osmosis):
        assert_one_message(osmosis("validat", "x"), "did you mean 'validate'?")

    def test_unknown_option_is_a_usage_error(self, osmosis):
        assert_one_message(osmosis("plugins", "--jsn"), "No such option")

    @pytest.mark.parametrize("command", [("train", "submit"), ("login",), ("deploy",)])
    def test_commands_of_the_hosted_platform_say_so_and_name_validate(self, osmosis, command):
        done = osmosis(*command)
        assert_one_message(done, "hosted platform")
        assert "osmosis validate" in done.stderr

    def test_command_of_a_disabled_plugin_says_so(self, osmosis):
        done = osmosis("eval", "run", OSMOSIS_DISABLED_PLUGINS="eval")
        assert_one_message(done, "is disabled (OSMOSIS_DISABLED_PLUGINS)")

    def test_reader_that_goes_away_is_no_error_message(self):
        read, write = os.pipe()
        os.close(read)
        command = [Path(sys.executable).parent / "osmosis", "plugins", "--json"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
        os.close(write)
        assert (done.returncode, done.stderr) == (1, b"")


class TestPlugins:
    def test_each_installed_plugin_has_a_line(self, osmosis):
        done = osmosis("plugins", "--strict")
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.split() for line in done.stdout.splitlines()]
        installed = "core call-log eval gateway langgraph loop-watch openai_agents"
        installed += " process pydantic_ai smolagents strands"
        assert [line[0] for line in lines] == installed.split()
        assert {line[3] for line in lines} == {"loaded"}

    def test_json_lists_what_each_offers(self, osmosis):
        listed = json.loads(osmosis("plugins", "--json").stdout)
        offers = {record["name"]: record["offers"] for record in listed["plugins"]}
        assert offers["core"] == {"backend": ["local"], "policy": ["demo"]}
        assert offers["eval"] == {"command": ["eval"]}
        assert listed["conflicts"] == []

    def test_taken_command_stays_with_its_owner_and_strict_exits_1(self, osmosis, installed):
        env = installed(
            "greedy",
            "import click\nfrom osmosis_core import hookimpl\n@hookimpl\n"
            "def osmosis_register_commands(cli): cli.add_command(click.Command('validate'))\n",
        )
        done = osmosis("plugins", "--strict", **env)
        assert done.returncode == 1
        assert (
            "command 'validate' is offered by core and greedy (osmosis-greedy 1.0)" in done.stderr
        )
        assert "TARGET is a module" in osmosis("validate", "--help", **env).stdout

    def test_plugin_that_exits_while_adding_commands_is_a_record(self, osmosis, installed):
        env = installed(
            "leaving",
            "import sys\nfrom osmosis_core import hookimpl\n@hookimpl\n"
            "def osmosis_register_commands(cli): sys.exit('gone')\n",
        )
        done = osmosis("plugins", **env)
        assert done.returncode == 0
        assert "SystemExit: gone" in done.stdout


class TestValidate:
    @pytest.mark.parametrize("target", ["solve.py", "solve", "solve:Solve", "solve.py:Solve"])
    def test_sound_entrypoint_is_ok_in_every_form(self, validate, target):
        done = validate(GOOD, target=target)
        assert done.stdout == "ok: Solve: workflow Solve, grader Strict\n"
        assert (done.returncode, done.stderr) == (0, "")

    def test_documented_option_is_accepted(self, validate):
        assert validate(GOOD, "-m", "solve", target=None).returncode == 0

    @pytest.mark.parametrize(("target", "options"), [("solve", ["-m", "solve"]), (None, [])])
    def test_target_is_given_once(self, validate, target, options):
        assert_one_message(validate(GOOD, *options, target=target), "give TARGET once")

    @pytest.mark.parametrize(
        ("text", "codes"),
        [
            (BLOCKING, ["WORKFLOW_RUN_NOT_ASYNC", "GRADER_GRADE_NOT_ASYNC"]),
            (UNBUILDABLE, ["WORKFLOW_INIT_FAILED", "GRADER_INIT_FAILED"]),
            (UNGRADED, ["MISSING_GRADER"]),
            (UNNAMED, ["INVALID_AGENT_NAME"]),
        ],
    )
    def test_all_problems_are_shown_with_their_codes(self, validate, text, codes):
        done = validate(text)
        lines = done.stderr.splitlines()
        assert [line.rpartition(" ")[2] for line in lines] == [f"[{code}]" for code in codes]
        assert all(line.startswith("error: ") for line in lines)
        assert (done.returncode, done.stdout) == (2, "")

    def test_warning_alone_is_ok(self, validate):
        done = validate(TYPED)
        assert done.returncode == 0
        assert done.stderr.startswith("warning: no Deep instance")
        assert done.stdout.startswith("ok: ")

    def test_json_holds_the_whole_result(self, validate):
        done = validate(UNGRADED, "--json")
        result = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (2, "")
        assert (result["valid"], result["workflow"], result["grader"]) == (False, "Solve", None)
        assert result["errors"][0]["code"] == "MISSING_GRADER"

    def test_what_the_users_code_prints_stays_out_of_the_answer(self, validate):
        done = validate("print('loading')\n" + GOOD, "--json")
        assert json.loads(done.stdout)["valid"] is True
        assert done.stderr == "loading\n"

    @pytest.mark.parametrize("target", ["solve.py", "solve"])
    def test_users_traceback_is_printed_once_without_our_frames(self, validate, target):
        done = validate(CRASHING, target=target)
        assert done.stderr.count("Traceback") == 1
        assert done.stderr.count("line 2, in start") == 1
        assert "osmosis_core" not in done.stderr and "importlib" not in done.stderr
        assert done.stderr.endswith("cannot be imported: RuntimeError: no key\n")
        assert done.returncode == 2

    @pytest.mark.parametrize("target", ["slove.py", "slove", "solve:Slove", ""])
    def test_target_that_is_not_there_is_one_message(self, validate, target):
        done = validate(GOOD, "--", target, target=None)
        assert_one_message(done, f"error: {target!r}" if target in ("", "solve:Slove") else target)

    def test_module_without_a_workflow_is_one_message(self, validate):
        assert_one_message(validate("answer = 42"), "no concrete AgentWorkflow subclass")

    def test_interrupt_is_one_word_and_exit_130(self, validate):
        done = validate("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_target_that_cannot_be_loaded_is_json_too(osmosis):
    done = osmosis("validate", "--json", "nowhere")
    assert done.returncode == 2
    assert json.loads(done.stdout)["errors"][0]["code"] == "NOT_LOADED"


def test_raw_output_of_user_code_stays_out_of_the_json(osmosis, tmp_path):
    (tmp_path / "solve.py").write_text("import os\nos.write(1, b'raw')\nprint('hi')\n" + GOOD)
    done = osmosis("validate", "--json", "solve.py")
    assert json.loads(done.stdout)["valid"] is True
    assert "raw" in done.stderr


def test_thread_of_user_code_does_not_keep_validate(osmosis, tmp_path):
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    (tmp_path / "solve.py").write_text(thread + GOOD)
    assert osmosis("validate", "solve.py").returncode == 0


def test_method_that_takes_no_context_is_an_error(osmosis, tmp_path):
    (tmp_path / "solve.py").write_text(GOOD.replace("run(self, ctx)", "run(self)"))
    done = osmosis("validate", "solve.py")
    assert done.returncode == 2
    assert "WORKFLOW_RUN_WITHOUT_CTX" in done.stderr


def test_usage_errors_are_one_line(osmosis):
    done = osmosis("validate")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: give TARGET once")
