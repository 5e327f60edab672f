"""Rollouts in real containers, which the workflow drives from the host."""

import asyncio
import subprocess

import container_programs as programs
import pytest

from osmosis_core import ConfigError, ExecutionRequest, RolloutErrorCategory, RolloutStatus
from osmosis_core.testing.backend_conformance.cancelling import Cancelling
from osmosis_core.testing.backend_conformance.kit import in_flight, rewards, run, until
from osmosis_harbor import HarborBackend
from osmosis_harbor.images import content_tag, ensure_built
from osmosis_harbor.owner import state_dir

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("docker")]
KINDS = pytest.mark.parametrize("kind", ["docker", "light"])


def asked(rollout_id="r-1", label="42", **fields):
    prompt = [{"role": "user", "content": "Go."}]
    return ExecutionRequest(rollout_id, prompt, label, **fields)


def commands(*lines, **fields):
    return asked(metadata={"commands": lines}, **fields)


def docker(*arguments):
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def containers():
    return docker("ps", "--all", "--quiet").split()


def outputs(reported):
    sample = reported.workflow.sample
    assert sample is not None, reported.workflow
    return [message["content"] for message in sample.messages]


async def ran(request, workflow=programs.Commands, grader=None, **options):
    backend = HarborBackend(workflow=workflow, grader=grader, **options)
    reported = await run(backend, request)
    await backend.shutdown()
    assert containers() == []
    assert [path for path in state_dir().glob("*/*") if len(path.name) == 16] == []
    return reported


@KINDS
async def test_each_rollout_has_a_container_of_its_own(kind, task_dir, tmp_path):
    backend = HarborBackend(
        task_dir=task_dir,
        environment=kind,
        workflow=programs.Commands,
        grader=programs.RewardsLast,
        artifacts_root=tmp_path,
    )
    look = commands("cat note.txt 2> /dev/null || echo nothing", "echo mine > note.txt", "echo 42")
    twice = [await run(backend, look) for _ in range(2)]
    assert [outputs(reported)[0] for reported in twice] == ["nothing"] * 2
    assert [rewards(reported.grader) for reported in twice] == [[1.0], [1.0]]
    assert containers() == []


@KINDS
async def test_files_go_in_and_come_back(kind, task_dir, tmp_path):
    options = {"task_dir": task_dir, "environment": kind, "artifacts_root": tmp_path}
    reported = await ran(asked(), programs.Transfers, **options)
    assert outputs(reported) == ["a filea file" * 2]


BOMB = """import os
while os.fork():
    pass
os.execlp("sleep", "sleep", "9")
"""


@KINDS
async def test_commands_have_their_variables(kind, task_dir):
    reported = await ran(asked(), programs.Variables, task_dir=task_dir, environment=kind)
    assert outputs(reported) == ["a b theirs /usr/bin"]


@KINDS
async def test_task_may_name_an_image_and_bring_files_of_its_own(kind, task_dir):
    (task_dir / "environment/Dockerfile").rename(task_dir / "environment/notes.txt")
    (task_dir / "task.toml").write_text("[environment]\ndocker_image = 'osmosis-test-base'\n")
    reported = await ran(commands("ls"), task_dir=task_dir, environment=kind)
    assert outputs(reported) == ["notes.txt"]


@KINDS
async def test_container_has_no_network_and_its_limits(kind, task_dir):
    lines = (
        "ls /sys/class/net",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null",
        f"python3 -c '{BOMB}' > bomb 2>&1; tail -n 1 bomb",
    )
    options = {"environment": kind, "pids_limit": "50", "memory_mb": "256"}
    reported = await ran(commands(*lines), task_dir=task_dir, **options)
    network, memory, refused = outputs(reported)
    assert (network, memory) == ("lo", str(256 * 1024**2))
    assert "Resource temporarily unavailable" in refused


@KINDS
async def test_container_that_docker_refuses_fails_its_rollout_with_the_reason(kind, task_dir):
    reported = await ran(asked(), task_dir=task_dir, environment=kind, memory_mb=1)
    assert "inimum memory limit allowed is" in reported.workflow.err_message


TESTS = """#!/bin/bash
cat /tests/secret.txt
echo '{"reward": 0.25, "steps": 3}' > /logs/verifier/reward.json
sleep 0.5
"""


@KINDS
async def test_tests_come_after_the_agent_whose_processes_are_gone(kind, task_dir):
    (task_dir / "tests").mkdir()
    (task_dir / "tests/test.sh").write_text(TESTS)
    (task_dir / "tests/secret.txt").write_text("the ground truth")
    cheat = "while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; done > /dev/null 2>&1"
    look = "ls -A /tests 2>/dev/null; env; grep -rl 'ground truth' /logs /workspace /tmp; true"
    request = commands(look, f"({cheat}) &", label="the label")
    reported = await ran(request, grader=programs.Half, task_dir=task_dir, environment=kind)
    assert rewards(reported.grader) == [0.25], reported.grader
    assert reported.grader.samples["main"].metrics == {"steps": 3.0}
    assert "secret" not in outputs(reported)[0] and "label" not in outputs(reported)[0]


HOSTILE = {
    "link": ("ln -s /etc/passwd bad", "file", "no regular file"),
    "pipe": ("mkfifo bad", "file", "no regular file"),
    "huge": ("truncate -s 5G bad", "file", "more than"),
    "missing": ("true", "file", "cannot be read"),
    "many": ("mkdir bad && cd bad && touch $(seq 10001)", "dir", "more than"),
    "file": ("touch bad", "dir", "no directory"),
}


@pytest.mark.parametrize("make, kind, why", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_files_are_refused(make, kind, why, task_dir, tmp_path):
    request = asked(metadata={"make": make, "kind": kind})
    options = {"task_dir": task_dir, "environment": "light", "artifacts_root": tmp_path}
    result = (await ran(request, programs.Downloads, **options)).workflow
    assert result.status is RolloutStatus.FAILURE
    assert why in (result.err_message or "")


@KINDS
async def test_links_and_pipes_of_a_directory_are_left_out(kind, task_dir, tmp_path):
    make = "mkdir -p bad/deep && cd bad && touch deep/good && ln -s /etc/passwd link && mkfifo pipe"
    request = asked(metadata={"make": make, "kind": "dir"})
    options = {"task_dir": task_dir, "environment": kind, "artifacts_root": tmp_path}
    reported = await ran(request, programs.Downloads, **options)
    assert outputs(reported) == ["deep good"]


@KINDS
async def test_timeout_and_cancel_remove_the_container(kind, task_dir):
    backend = HarborBackend(task_dir=task_dir, environment=kind, workflow=programs.Hangs)
    late = await run(backend, asked(agent_timeout_sec=4.0))
    assert late.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert containers() == []
    async with in_flight(backend, asked()) as tasks:
        await until(lambda: containers() != [])
        assert await backend.cancel_rollouts(all=True) == {"r-1": "cancelled_running"}
        assert (await tasks[0]).workflow.status is RolloutStatus.CANCELLED
    assert containers() == []


async def test_image_is_built_once_and_named_by_its_content(task_dir):
    environment = task_dir / "environment"
    (environment / "Dockerfile").write_text("FROM osmosis-test-base\nRUN sleep 1; touch /made\n")
    tag = content_tag(environment)
    builds = [asyncio.to_thread(ensure_built, tag, environment, state_dir()) for _ in range(2)]
    await asyncio.gather(*builds)
    made = docker("image", "ls", "--quiet", tag)
    backend = HarborBackend(task_dir=task_dir, environment="light", workflow=programs.Commands)
    await backend.prewarm()
    assert docker("image", "ls", "--quiet", tag) == made
    (environment / "Dockerfile").write_text("FROM osmosis-test-base\n")
    assert content_tag(environment) != tag


async def test_image_that_cannot_be_built_fails_rollouts_with_the_reason(task_dir):
    (task_dir / "environment/Dockerfile").write_text("FROM osmosis-test-base\nRUN exit 7\n")
    reported = await ran(commands("true"), task_dir=task_dir, environment="light")
    assert "was not built" in (reported.workflow.err_message or "")
    assert reported.workflow.err_category is RolloutErrorCategory.INTERNAL_ERROR


def test_docker_that_does_not_run_is_one_line(task_dir, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(ConfigError, match=r"no Docker daemon answers .*; start it"):
        HarborBackend(task_dir=task_dir, workflow=programs.Commands)


def test_missing_compose_plugin_is_one_line_and_light_needs_none(task_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no compose v2 plugin.*environment='light'"):
        HarborBackend(task_dir=task_dir, workflow=programs.Commands)
    HarborBackend(task_dir=task_dir, workflow=programs.Commands, environment="light")


class TestLightBackend(Cancelling):
    """The part of the conformance suite in which containers must go away."""

    @pytest.fixture(autouse=True)
    def place(self, task_dir):
        self.options = {"task_dir": task_dir, "environment": "light"}

    def create_backend(self, **options):
        return HarborBackend(**self.options, **options)
