"""Workflows inside the container: what they are given, and what is believed of them."""

import shutil

import container_programs as programs
import pytest

from osmosis_core import LocalBackend, RolloutContext, RolloutErrorCategory, RolloutStatus
from osmosis_core.testing import ScriptedPolicy
from osmosis_core.testing.backend_conformance.kit import request, rewards, run
from osmosis_core.testing.backend_conformance.sameness import Sameness
from osmosis_harbor import HarborBackend

slow = pytest.mark.slow
KINDS = pytest.mark.parametrize("kind", ["docker", "light"])


@pytest.fixture
def options(docker, task_dir, tmp_path):
    """Of a backend whose workflows run inside."""
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(programs.__file__, code)
    return {
        "task_dir": task_dir,
        "user_code_dir": code,
        "runs_in": "container",
        "environment": "light",
        "artifacts_root": tmp_path / "artifacts",
    }


async def ran(options, workflow, grader=programs.Half, config=None, **fields):
    backend = HarborBackend(workflow=workflow, workflow_config=config, grader=grader, **options)
    policy = ScriptedPolicy("4", "5", api_key="sk-secret")
    async with policy:
        with RolloutContext(policy.base_url, "sk-secret"):
            reported = await run(backend, request(**fields))
    await backend.shutdown()
    return reported


@slow
@KINDS
async def test_workflow_in_the_container_has_no_key_and_no_tests(kind, options):
    config = programs.WordConfig(word="told")
    path = "container_programs:Inspects"
    reported = await ran({**options, "environment": kind}, path, config=config)
    assert reported.workflow.status is RolloutStatus.SUCCESS, reported.workflow
    sample = reported.workflow.samples["main"]
    assert sample.messages[-1]["content"] == (
        "run False http+unix://%2Frun%2Fosmosis%2Frelay.sock/v1"
    )
    assert [call.error for call in sample.calls] == [None], "the policy asks for the key"
    kept = options["artifacts_root"] / "r-1/artifacts"
    assert (kept / "note.txt").read_text() == "told"
    assert "printed inside" in (kept / "container.log").read_text()
    assert rewards(reported.grader) == [0.5]


@slow
async def test_results_are_those_of_the_local_backend(options):
    def story(result):
        return {
            key: (sample.messages, sample.label, sample.trainable, [
                (call.request, call.answer, call.chain, call.continues, call.started_by)
                for call in sample.calls
            ])
            for key, sample in result.samples.items()
        }  # fmt: skip

    inside = await ran(options, programs.TwoAgents)
    async with ScriptedPolicy("4", "5") as policy:
        with RolloutContext(policy.base_url, "sk-secret"):
            local = LocalBackend(workflow=programs.TwoAgents, grader=programs.Half)
            here = await run(local, request())
    assert story(inside.grader) == story(here.grader)
    assert [call.index for s in inside.grader.samples.values() for call in s.calls] == [0, 1]


@slow
async def test_forged_result_brings_no_reward_label_or_calls(options):
    reported = await ran(options, "container_programs:Lies", grader=None, metadata={})
    sample = reported.workflow.samples["main"]
    assert (sample.reward, sample.label) == (None, "42")
    assert [call.answer["content"] for call in sample.calls] == ["4"]


@slow
async def test_result_that_is_none_is_a_failure(options):
    reported = await ran(options, "container_programs:Lies", metadata={"raw": '{"status": 1}'})
    assert "the container gave no result" in reported.workflow.err_message
    assert [call.answer["content"] for call in reported.workflow.sample.calls] == ["4"]


@slow
@pytest.mark.parametrize("workflow, why", [("Crashes", "status 3"), ("Missing", "no 'Missing'")])
async def test_crash_and_missing_code_are_told(workflow, why, options):
    reported = await ran(options, f"container_programs:{workflow}")
    assert reported.workflow.status is RolloutStatus.FAILURE
    assert why in reported.workflow.err_message


@slow
async def test_deadline_ends_the_workflow_and_its_container(options):
    path = "container_programs:HangsInside"
    reported = await ran(options, path, agent_timeout_sec=3.0)
    assert reported.workflow.err_category is RolloutErrorCategory.TIMEOUT


PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "their-agent"
version = "1.0"
dependencies = ["osmosis-core", "sortedcontainers==2.3.0"]

[tool.hatch.build.targets.wheel]
packages = ["their_agent"]
"""

AGENT = """
import sortedcontainers
from osmosis_core import AgentWorkflow

class Says(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": sortedcontainers.__version__}]
"""


@slow
async def test_project_is_built_into_a_wheel_with_its_own_dependencies(options, tmp_path):
    project = tmp_path / "project"
    (project / "their_agent").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "their_agent/__init__.py").write_text(AGENT)
    reported = await ran({**options, "user_code_dir": project}, "their_agent:Says")
    assert reported.workflow.sample.messages[0]["content"] == "2.3.0", reported.workflow


@slow
class TestInside(Sameness):
    """Of the conformance suite, what differs when a workflow runs in another process."""

    @pytest.fixture(autouse=True)
    def place(self, options, tmp_path):
        (tmp_path / "empty").mkdir()
        self.options = {**options, "user_code_dir": tmp_path / "empty"}

    def create_backend(self, **options):
        return HarborBackend(**{**self.options, **options})
