"""What goes to a worker and comes back, and what is said when it cannot."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import rude

from osmosis_core import AgentWorkflow, AgentWorkflowConfig, ConfigError, RolloutErrorCategory
from osmosis_core.testing import ScriptedPolicy
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import request, run, said
from osmosis_process import ProcessBackend

VALIDATION = RolloutErrorCategory.VALIDATION_ERROR
SCRIPT = """
import asyncio
from osmosis_core import AgentWorkflow, ExecutionRequest
from osmosis_process import ProcessBackend

class Mine(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": __name__}]

async def show(result):
    print(result.err_message or result.sample.messages)

async def roll():
    backend = ProcessBackend(workflow=Mine, num_workers=1, artifacts_root="here")
    await backend.execute(ExecutionRequest("r", []), show)
    await backend.shutdown()
"""
GUARDED = f"{SCRIPT}\nif __name__ == '__main__':\n    asyncio.run(roll())\n"
BARE = f"{SCRIPT}\nasyncio.run(roll())\n"
TARGET = """
from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader
from helper import text

class Config(AgentWorkflowConfig):
    word: str

config = Config(name="mine", word="6")

class Mine(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": text(ctx.config.word)}]

class Marks(Grader):
    async def grade(self, ctx):
        ctx.set_reward(ctx.sample.messages[-1]["content"] == ctx.label)
"""


OSMOSIS = str(Path(sys.executable).parent / "osmosis")


def python(folder, *arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def refusal(**options):
    with pytest.raises(ConfigError) as caught:
        ProcessBackend(**{"workflow": rude.Rude, **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_class_in_a_function_is_refused_with_advice():
    class Local(AgentWorkflow):
        async def run(self, ctx): ...

    assert "is defined in a function, where no worker finds it" in refusal(workflow=Local)


def test_class_under_another_name_is_refused():
    hidden = type("Hidden", (rude.Rude,), {"__module__": "rude"})
    assert "is not what rude.Hidden names" in refusal(workflow=hidden)


def test_config_that_cannot_be_pickled_is_refused_with_the_cause():
    config = AgentWorkflowConfig(name="w", client=threading.Lock())
    text = refusal(workflow_config=config)
    assert "cannot pickle '_thread.lock' object" in text and "beside Rude" in text


COUNTS = ["num_workers", "max_concurrent_per_worker", "max_rollouts_per_worker"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("number", [0, 1.5, "two", True])
def test_what_is_no_count_is_refused(name, number):
    assert refusal(**{name: number}) == f"{name} is {number!r}; give a whole number of at least 1"


@pytest.mark.parametrize("name", ["grace_sec", "max_memory_mb"])
@pytest.mark.parametrize("number", [0, -1.0, float("nan"), "two"])
def test_what_is_no_amount_is_refused(name, number):
    assert refusal(**{name: number}) == f"{name} is {number!r}; give a number above 0"


def test_negative_restarts_are_refused():
    assert "max_restarts is -1; give a whole number of at least 0" in refusal(max_restarts=-1)


async def test_config_at_module_level_may_hold_anything(create):
    backend = create(rude.UsesClient, workflow_config=rude.CONFIG_WITH_LOCK)
    assert said((await run(backend, request())).workflow) == "lock"


async def test_arguments_may_be_import_paths(create):
    names = {name: programs.import_path(getattr(programs, name)) for name in ("TOOLS", "Rewards")}
    workflow = programs.import_path(programs.ChangesItsInput)
    backend = create(workflow, workflow_config=names["TOOLS"], grader=names["Rewards"])
    reported = await run(backend, request(metadata={"list": []}))
    assert reported.grader.sample.reward == 1.0


@pytest.mark.parametrize("field", ["messages", "metrics", "extra_fields"])
async def test_sample_that_cannot_be_pickled_is_named(create, field):
    result = (await run(create(rude.HoldsLock), request(metadata={"field": field}))).workflow
    assert result.err_category is VALIDATION
    assert f"{field} of sample 'holder' cannot leave the worker" in result.err_message
    assert "cannot pickle '_thread.lock' object" in result.err_message
    assert list(result.samples) == ["holder"]


async def test_row_that_cannot_be_pickled_is_an_error_of_its_rollout(create):
    row = request(metadata={"lock": threading.Lock()})
    result = (await run(create(rude.Rude), row)).workflow
    assert result.err_category is VALIDATION
    assert "the rollout cannot be sent to a worker" in result.err_message


@pytest.mark.parametrize(
    ("error", "text"),
    [("lock", "held"), ("ctrl-c", "KeyboardInterrupt"), ("closed", "GeneratorExit")],
)
async def test_exceptions_of_every_kind_become_results(create, error, text):
    backend = create(rude.Raises)
    result = (await run(backend, request(metadata={"error": error}))).workflow
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert text in result.err_message
    assert (await run(backend, request(metadata={"error": "lock"}))).results


def test_class_of_the_script_itself_runs_in_workers(tmp_path):
    (tmp_path / "script.py").write_text(GUARDED)
    done = python(tmp_path, "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "__mp_main__" in done.stdout


def test_script_without_a_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(BARE)
    done = python(tmp_path, "script.py")
    assert 'under `if __name__ == "__main__":`' in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_class_of_an_interactive_session_is_refused(tmp_path):
    done = python(tmp_path, "-c", GUARDED)
    assert "is defined in an interactive session; put it into a file" in done.stderr


@pytest.mark.parametrize("target", ["deep/mine.py", "json/mine.py", "deep/json.py"])
def test_eval_runs_a_file_that_is_on_no_path(tmp_path, target):
    file = tmp_path / target
    file.parent.mkdir()
    file.write_text(TARGET)
    (file.parent / "helper.py").write_text("def text(word):\n    return word * 2\n")
    row = {"user_prompt": "6?", "ground_truth": "66"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    options = ["--dataset", "rows.jsonl", "--policy", "demo", "--backend", "process", "--json"]
    done = python(tmp_path, OSMOSIS, "eval", "run", target, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rewards"]["mean"] == 1.0


def test_module_that_only_the_worker_cannot_import_is_named(tmp_path):
    source = "from osmosis_process import worker\nassert not worker.is_serving, 'not\\nhere'\n"
    (tmp_path / "mine.py").write_text(source + SCRIPT)
    script = "import asyncio, mine; asyncio.run(mine.roll())"
    done = python(tmp_path, "-c", script)
    assert "cannot load the program: AssertionError: not here" in done.stdout


async def test_policy_of_the_caller_is_called_from_the_worker(create):
    with ScriptedPolicy("42") as policy:
        with policy.rollout(model="mine"):
            reported = await run(create(programs.CallsPolicy), request())
    assert [received.rollout_id for received in policy.requests] == ["r-1"]
    (call,) = reported.workflow.samples["main"].calls
    assert call.request["model"] == "mine" and said(reported.workflow) == "42"
