import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    ConfigError,
    ExecutionRequest,
    Grader,
    GraderConfig,
    LocalBackend,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance import BackendConformance
from osmosis_core.testing.backend_conformance.kit import (
    in_flight,
    request,
    run,
    said,
)

TIMEOUT = RolloutErrorCategory.TIMEOUT


class TestConformance(BackendConformance):
    def create_backend(self, **arguments):
        return LocalBackend(**arguments)


class WithClient(AgentWorkflow):
    async def run(self, ctx):
        ctx.config.seen.append(ctx.prompt)
        same = ctx.config.client.lock is programs_client.lock and self.config is ctx.config
        return [programs.answer(f"{same} {len(ctx.config.seen)}")]


class BadMetrics(AgentWorkflow):
    async def run(self, ctx):
        output = AgentWorkflowOutput()
        output.metrics["loss"] = float("nan")
        return output


class AwaitsCancelledTask(AgentWorkflow):
    async def run(self, ctx):
        task = asyncio.ensure_future(asyncio.sleep(3600))
        task.cancel()
        await task


class Unprintable(AgentWorkflow):
    async def run(self, ctx):
        class HostileError(Exception):
            def __str__(self):
                raise RuntimeError

        raise HostileError


class SpoilsContext(AgentWorkflow):
    async def run(self, ctx):
        ctx.prompt.clear()
        raise ValueError


class NamesConfig(Grader):
    async def grade(self, ctx):
        self.config.seen.append(1)
        ctx.set_reward(len(self.config.seen))


class WaitsThenRewards(Grader):
    async def grade(self, ctx):
        await asyncio.sleep(0.2)
        ctx.set_reward(1)


class Client:
    def __init__(self):
        self.lock = threading.Lock()


programs_client = Client()


class EarlyLoop(asyncio.SelectorEventLoop):
    """Fires its timers early, as uvloop does by some milliseconds."""

    def call_at(self, when, callback, *args, context=None):
        return super().call_at(when - 0.03, callback, *args, context=context)


def local(workflow=programs.Answers, grader=programs.Rewards, **arguments):
    return LocalBackend(workflow=workflow, grader=grader, **arguments)


def config(**concurrency):
    return AgentWorkflowConfig(name="w", concurrency=concurrency)


@pytest.fixture
def artifacts_root(monkeypatch, tmp_path):
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    return tmp_path


async def test_arguments_may_be_import_paths():
    paths = {
        name: programs.import_path(thing)
        for name, thing in {
            "workflow": programs.ChangesItsInput,
            "workflow_config": programs.TOOLS,
            "grader": programs.Rewards,
        }.items()
    }
    backend = LocalBackend(**paths)
    assert (await run(backend, request(metadata={"list": []}))).grader.sample.reward == 1.0
    assert backend.program.workflow is programs.ChangesItsInput
    assert backend.program.workflow_config is programs.TOOLS


@pytest.mark.parametrize(
    ("given", "cap"),
    [
        ({}, 4),
        ({"workflow_config": config(max_concurrent=7)}, 7),
        ({"workflow_config": config()}, 0),
        ({"workflow_config": config(max_concurrent=None)}, 0),
    ],
)
def test_concurrency_is_four_without_a_config_and_the_configs_with_one(given, cap):
    assert local(**given).max_concurrency == cap


async def test_health_counts_queued_and_running_rollouts():
    backend = local(programs.Hangs, workflow_config=config(max_concurrent=1))
    async with (
        in_flight(backend, request("a")),
        in_flight(backend, request("b"), status=RolloutStatus.QUEUED),
    ):
        counts = {"max_concurrent": 1, "queued": 1, "running": 1}
        assert backend.health() == {"status": "ok", "concurrency": counts}
    counts = {"max_concurrent": 1, "queued": 0, "running": 0}
    assert backend.health() == {"status": "ok", "concurrency": counts}


def test_health_of_an_unlimited_backend_says_null():
    assert local(workflow_config=config()).health()["concurrency"]["max_concurrent"] is None


async def test_capacity_ends_when_max_queued_rollouts_wait():
    backend = local(programs.Hangs, workflow_config=config(max_concurrent=1), max_queued=1)
    async with in_flight(backend, request("a")):
        assert backend.has_capacity()
        async with in_flight(backend, request("b"), status=RolloutStatus.QUEUED):
            assert not backend.has_capacity()
        assert backend.has_capacity()


def test_max_queued_is_at_least_one():
    with pytest.raises(ConfigError, match="max_queued is 0"):
        local(max_queued=0)


async def test_artifacts_root_comes_from_the_environment(artifacts_root):
    reported = await run(local(programs.WritesArtifact), request("r-1"))
    assert said(reported.workflow) == str(artifacts_root / "r-1" / "artifacts")


async def test_artifacts_root_of_the_caller_wins_over_the_environment(artifacts_root):
    with tempfile.TemporaryDirectory() as root:
        backend = local(programs.WritesArtifact, artifacts_root=root)
        assert said((await run(backend, request())).workflow).startswith(root)
    assert list(artifacts_root.iterdir()) == []


async def test_artifacts_root_is_the_home_directory_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = said((await run(local(programs.WritesArtifact), request("r"))).workflow)
    assert place == str(tmp_path / ".osmosis" / "r" / "artifacts")


@pytest.mark.parametrize(
    "rollout_id",
    ["...", "~root", "C:x", "a:b*?<>|", "%2e%2e", "%2F", " ", "ü" * 250, "x" * 256, "…\u202e"],
)
async def test_hostile_ids_have_a_directory_of_their_own(artifacts_root, rollout_id):
    backend = local(programs.WritesArtifact, programs.ReadsArtifact)
    reported = await run(backend, request(rollout_id))
    assert reported.grader.sample.reward == 1.0
    directory = Path(said(reported.workflow))
    assert directory.resolve().parent.parent == artifacts_root
    assert len(directory.parent.name) <= 255 and directory.parent.name.isascii()


async def test_unusable_artifacts_root_leaves_no_directory(tmp_path, caplog):
    root = tmp_path / "a file"
    root.write_text("")
    reported = await run(local(programs.WritesArtifact, artifacts_root=root), request())
    assert reported.workflow.err_category is RolloutErrorCategory.AGENT_ERROR
    assert "cannot be created" in caplog.text


async def test_config_is_copied_but_what_cannot_be_copied_is_shared():
    settings = AgentWorkflowConfig(name="w", client=programs_client, seen=[])
    backend = local(WithClient, workflow_config=settings)
    heard = [said((await run(backend, request())).workflow) for _ in range(2)]
    assert heard == ["True 1", "True 1"] and settings.seen == []


async def test_grader_config_is_copied_too():
    settings = GraderConfig(name="g", seen=[])
    backend = local(grader=NamesConfig, grader_config=settings)
    rewards = [(await run(backend, request())).grader.sample.reward for _ in range(2)]
    assert rewards == [1.0, 1.0] and settings.seen == []


def test_instance_is_refused_with_advice():
    with pytest.raises(ConfigError, match="pass the class, not an instance"):
        local(programs.Answers())


def test_abstract_class_is_refused_with_what_is_missing():
    with pytest.raises(ConfigError, match="workflow AgentWorkflow is abstract; implement run"):
        local(AgentWorkflow)
    with pytest.raises(ConfigError, match="grader Grader is abstract; implement grade"):
        local(grader=Grader)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workflow": int}, "workflow is the class int; give a subclass of AgentWorkflow"),
        ({"workflow": 7}, "workflow is 7"),
        ({"grader": programs.Answers}, "grader is the class Answers"),
        ({"workflow_config": {"name": "w"}}, "give an instance of AgentWorkflowConfig"),
        ({"workflow_config": GraderConfig(name="g")}, "workflow_config is GraderConfig"),
        ({"grader_config": config()}, "give an instance of GraderConfig"),
    ],
)
def test_wrong_types_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        local(**arguments)


def test_import_path_without_a_colon_is_refused():
    with pytest.raises(ConfigError, match="write 'module:attr'"):
        local("osmosis_core")


def test_missing_attribute_suggests_the_nearest_name():
    with pytest.raises(ConfigError, match=r"has no 'Answer'.*Answers"):
        local("osmosis_core.testing.conformance_workflows:Answer")


def test_missing_module_is_named():
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        local("nowhere:Answers")


async def test_deadline_in_the_queue_says_so():
    backend = local(programs.Hangs, workflow_config=config(max_concurrent=1))
    async with in_flight(backend, request("first")):
        result = (await run(backend, request("second", agent_timeout_sec=0.1))).workflow
    assert "exceeded its 0.1s deadline" in result.err_message and "queued" in result.err_message


async def test_deadline_message_says_how_much_was_spent_queued():
    backend = local(programs.Hangs, workflow_config=config(max_concurrent=1))
    async with in_flight(backend, request("first")):
        second = asyncio.create_task(run(backend, request("second", agent_timeout_sec=0.6)))
        await asyncio.sleep(0.2)
        await backend.cancel_rollouts(ids=["first"])
        result = (await second).workflow
    assert "s of it spent queued)" in result.err_message
    assert result.extra_fields["queued_sec"] >= 0.1


async def test_grader_has_a_budget_of_its_own():
    backend = local(grader=WaitsThenRewards)
    reported = await run(backend, request(agent_timeout_sec=0.15))
    assert reported.workflow.err_category is reported.grader.err_category is None
    assert reported.grader.sample.reward == 1.0


async def test_grader_deadline_message_names_the_grader():
    backend = local(grader=programs.GraderHangs)
    result = (await run(backend, request(grader_timeout_sec=0.05))).grader
    assert result.err_message == "grader exceeded its 0.05s deadline"


@pytest.mark.parametrize("workflow", [programs.Hangs, programs.SwallowsCancellation])
def test_loop_whose_timers_fire_early_reports_a_timeout(workflow):
    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        reported = runner.run(run(local(workflow), request(agent_timeout_sec=0.1)))
    assert reported.workflow.err_category is TIMEOUT


async def test_timeout_error_of_user_code_keeps_its_text():
    backend = local(programs.Raises)
    one = request(agent_timeout_sec=60, metadata={"error": "TimeoutError"})
    result = (await run(backend, one)).workflow
    assert (result.err_category, result.err_message) == (TIMEOUT, "told to")


async def test_infinite_metrics_are_a_validation_error():
    result = (await run(local(BadMetrics), request())).workflow
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR


async def test_cancelled_task_of_the_user_does_not_cancel_the_rollout():
    result = (await run(local(AwaitsCancelledTask), request())).workflow
    assert result.status is RolloutStatus.FAILURE
    assert "something that it awaited was cancelled" in result.err_message


async def test_error_without_a_text_is_reported_by_its_type():
    result = (await run(local(Unprintable), request())).workflow
    assert (result.status, result.err_message) == (RolloutStatus.FAILURE, "HostileError")


async def test_prompt_is_copied_even_when_the_workflow_fails():
    one = ExecutionRequest("r", [{"role": "user", "content": "hi"}])
    result = (await run(local(SpoilsContext), one)).workflow
    assert (result.err_message, len(one.prompt)) == ("ValueError", 1)


async def test_cancel_during_the_workflow_callback_skips_grading():
    backend, results = local(), []

    async def cancelling(result):
        results.append(result.status)
        await backend.cancel_rollouts(all=True)

    async def graded(result):
        results.append(result.status)

    await backend.execute(request(), cancelling, graded)
    assert results == [RolloutStatus.SUCCESS, RolloutStatus.CANCELLED]


async def test_second_cancel_finds_nothing():
    backend = local(programs.Hangs)
    async with in_flight(backend, request()) as (task,):
        assert await backend.cancel_rollouts(ids=["r-1"]) == {"r-1": "cancelled_running"}
        assert await backend.cancel_rollouts(ids=["r-1"]) == {"r-1": "not_found"}
        await task


async def test_results_say_how_long_things_took():
    reported = await run(local(), request())
    assert {"queued_sec", "duration_sec"} <= reported.workflow.extra_fields.keys()
    assert reported.grader.extra_fields["duration_sec"] >= 0


def test_backend_can_be_used_on_one_loop_after_another():
    backend = local(programs.TimesItself, workflow_config=config(max_concurrent=1))

    async def two():
        await asyncio.gather(run(backend, request("a")), run(backend, request("b")))

    asyncio.run(two())
    asyncio.run(two())
    assert backend.health()["concurrency"]["running"] == 0
