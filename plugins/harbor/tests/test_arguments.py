"""What a HarborBackend is told when it is made."""

import subprocess
import sys

import container_programs as programs
import pytest
from harbor.models.trial.config import EnvironmentConfig
from harbor.trial.queue import TrialQueue

from osmosis_core import AgentWorkflowConfig, ConcurrencyConfig, ConfigError
from osmosis_core.plugins import get_plugins
from osmosis_core.testing.backend_conformance.kit import request, rewards, run
from osmosis_harbor import HarborBackend


@pytest.fixture
def made(sandbox, task_dir):
    def make(**options):
        defaults = {**sandbox, "task_dir": str(task_dir), "workflow": programs.Commands}
        return get_plugins().backend("harbor")(**{**defaults, **options})

    return make


WRONG = {
    "no task": ({"task_dir": "/nowhere"}, "has no task.toml"),
    "runs_in": ({"runs_in": "moon"}, "runs_in is 'moon'; give 'host' or 'container'"),
    "network": ({"network": "lan"}, "network is 'lan'; give one of 'none', 'bridge', 'host'"),
    "cpus": ({"cpus": "many"}, "cpus is 'many'; give a whole number"),
    "flag": ({"symlink_environment": "maybe"}, "give true or false"),
    "two environments": ({"environment": "light"}, "not both"),
    "prebuild": ({"prebuild_local_image": "true"}, "needs a docker environment"),
    "no code": ({"runs_in": "container"}, "needs user_code_dir and a prebuilt docker image"),
    "no tests": ({"custom_tests_dir": "/tmp"}, "has no test.sh"),
}


@pytest.mark.parametrize("options, why", WRONG.values(), ids=WRONG)
def test_wrong_argument_is_one_line(options, why, made):
    with pytest.raises(ConfigError, match=why):
        made(**options)


TASKS = {
    "not toml": ("[", "task.toml cannot be read"),
    "steps": ("[[steps]]\nname = 'one'", r"has \[\[steps\]\]"),
    "windows": ("[environment]\nos = 'windows'", "is for windows"),
    "verifier": ("[verifier]\nenvironment_mode = 'separate'", "separate verifier environment"),
    "variable": ("[verifier.env]\nKEY = '${OSMOSIS_NO_SUCH}'", r"\[verifier\].env of task.toml"),
}


@pytest.mark.parametrize("text, why", TASKS.values(), ids=TASKS)
def test_task_that_cannot_be_a_rollout_is_one_line(text, why, made, task_dir):
    (task_dir / "task.toml").write_text(text)
    (task_dir / "tests").mkdir()
    (task_dir / "tests/test.sh").touch()
    with pytest.raises(ConfigError, match=why):
        made()


def test_task_without_environment_says_what_to_add(made, task_dir):
    (task_dir / "environment/Dockerfile").unlink()
    with pytest.raises(ConfigError, match="add environment/Dockerfile, or docker_image"):
        made()


def test_missing_docker_is_one_line(task_dir, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no docker command on the PATH; install"):
        HarborBackend(task_dir=task_dir, workflow=programs.Commands)


def test_workflow_of_main_cannot_run_inside(task_dir):
    class Local(programs.Commands):
        pass

    with pytest.raises(ConfigError, match="cannot be imported in a container"):
        HarborBackend(
            task_dir=task_dir, user_code_dir=task_dir, workflow=Local, runs_in="container"
        )


async def test_documented_call_with_an_orchestrator_and_import_paths(sandbox, task_dir, tmp_path):
    (tmp_path / "their_code.py").write_text("from container_programs import Commands, Half\n")
    config = EnvironmentConfig(**sandbox["environment_config"].model_dump())
    backend = HarborBackend(
        orchestrator=TrialQueue(n_concurrent=2),
        task_dir=str(task_dir),
        user_code_dir=str(tmp_path),
        workflow="their_code:Commands",
        grader="their_code:Half",
        trials_dir=tmp_path / "trials/deep",
        environment_config=config,
    )
    reported = await run(backend, request(metadata={"commands": ["pwd"]}))
    assert reported.workflow.sample.messages == programs.said("/workspace")
    assert rewards(reported.grader) == [0.5]
    assert backend.health()["backend"] == "harbor"
    assert config == sandbox["environment_config"], "it is the caller's"


@pytest.mark.parametrize("keeps, left", [("true", 0), ("false", 1)])
async def test_trial_directories_are_kept_where_they_are_asked_for(keeps, left, made, tmp_path):
    trials = tmp_path / "trials/deep"
    backend = made(trials_dir=str(trials), cleanup_successful_trials=keeps, grader=programs.Half)
    await run(backend, request(metadata={"commands": []}))
    assert len(list(trials.glob("*"))) == left
    await run(backend, request("r-2", metadata={"commands": None}))
    assert len(list(trials.glob("r-2-*"))) == 1


async def test_harbor_is_told_the_reward(made, tmp_path):
    heard = []

    async def ended(event):
        heard.append(event.result.verifier_result.rewards)

    queue = TrialQueue(1).on_trial_ended(ended)
    backend = made(orchestrator=queue, grader=programs.Half)
    await run(backend, request(metadata={"commands": ["true"]}))
    assert heard == [{"reward": 0.5}]


async def test_deadlines_of_the_task_count_where_the_request_has_none(made, task_dir):
    (task_dir / "task.toml").write_text("[agent]\ntimeout_sec = 0.5\n")
    reported = await run(made(), request(metadata={"commands": ["sleep 30"]}))
    assert "workflow exceeded its 0.5s deadline" in reported.workflow.err_message


def test_concurrency_is_that_of_the_config(made):
    config = AgentWorkflowConfig(name="x", concurrency=ConcurrencyConfig(max_concurrent=7))
    assert made(workflow_config=config).max_concurrency == 7
    assert made(max_concurrent="3").max_concurrency == 3


def test_finding_the_plugin_imports_no_harbor():
    check = "import osmosis_harbor.plugin, sys; print([m for m in sys.modules if m == 'harbor'])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
