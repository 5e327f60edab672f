"""PlacedBackend around any place to run, and phases that travel there."""

import asyncio
import pickle
from importlib.metadata import EntryPoint

import pytest
from pydantic import TypeAdapter

from osmosis_core import (
    BackendError,
    ExecutionResult,
    RetryPolicy,
    RolloutContext,
    RolloutErrorCategory,
    RolloutStatus,
    WireOptions,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend
from osmosis_core.plugins import PluginManager
from osmosis_core.testing import ScriptedPolicy
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    Reported,
    in_flight,
    request,
    rewards,
    run,
    until,
)

RETRY = RetryPolicy(max_attempts=2, base_delay_sec=0.1)
WIRE = WireOptions(stream=False, capture={"logprobs": True})


def over_pickle(value):
    return pickle.loads(pickle.dumps(value))


def over_json(value):
    adapter = TypeAdapter(type(value))
    return adapter.validate_json(adapter.dump_json(value))


class Elsewhere(PlacedBackend):
    """Runs every phase as if it had travelled; keeps what did."""

    travelled = staticmethod(over_pickle)

    async def place(self, run, phase):
        self.phase = self.travelled(phase)
        return self.travelled(await self.phase.run(self.program, run.cutoff))


class OverJson(Elsewhere):
    travelled = staticmethod(over_json)


class Raises(PlacedBackend):
    """Has no place to run."""

    error: BaseException = RuntimeError("no place")

    async def place(self, run, phase):
        raise self.error


class Deaf(PlacedBackend):
    """Answers whatever it was told in the meantime; says when it was stopped."""

    async def place(self, run, phase):
        self.stopped = asyncio.Event()
        run.stop = self.stopped.set
        await self.stopped.wait()
        return ExecutionResult(RolloutStatus.SUCCESS)


@pytest.mark.parametrize("kind", [Elsewhere, OverJson])
async def test_phases_travel_with_their_policy_and_results_with_their_calls(kind):
    with ScriptedPolicy("42") as policy:
        with policy.rollout(retry=RETRY, wire=WIRE, model="m") as context:
            backend = kind(workflow=programs.CallsPolicy, grader=programs.Rewards)
            reported = await run(backend, request())
        assert backend.phase.policy == context.policy
        there = RolloutContext(**backend.phase.policy)
        assert (there.retry, there.wire, there.model) == (RETRY, WIRE, "m")
    assert rewards(reported.grader) == [1.0]
    (call,) = reported.grader.sample.calls
    assert call.answer["content"] == "42" and call.request["logprobs"] is True


def test_key_of_the_policy_is_not_shown_by_repr():
    phase = Phase(request(), RolloutContext("http://x/v1", "secret").policy)
    assert "secret" not in repr(phase)


async def test_time_spent_queued_is_part_of_the_phase():
    backend = Elsewhere(workflow=programs.HangsIfTold, workflow_config=programs.ONE_AT_A_TIME)
    async with in_flight(backend, request("first", metadata={"hang": True})):
        second = asyncio.create_task(run(backend, request("second", agent_timeout_sec=9.0)))
        await asyncio.sleep(0.1)
        await backend.cancel_rollouts(ids=["first"])
        await second
    assert 0.1 <= backend.phase.spent_sec < 9.0


@pytest.mark.parametrize(
    ("error", "text", "category"),
    [
        (RuntimeError("no place"), "the backend raised RuntimeError('no place')", "internal_error"),
        (BackendError("the node is gone"), "the node is gone", "internal_error"),
    ],
)
async def test_place_that_raises_is_a_failed_result(error, text, category):
    backend = Raises(workflow=programs.Answers, grader=programs.Rewards)
    backend.error = error
    reported = await run(backend, request())
    assert reported.workflow.err_message == text
    assert reported.workflow.err_category is RolloutErrorCategory(category)
    assert len(reported.results) == 2 and backend.health()["concurrency"]["running"] == 0


async def test_cancelled_run_reports_cancelled_whatever_its_place_answers():
    backend = Deaf(workflow=programs.Answers)
    task = asyncio.create_task(run(backend, request()))
    await until(lambda: hasattr(backend, "stopped"))
    assert await backend.cancel_rollouts(all=True) == {"r-1": "cancelled_running"}
    assert (await task).workflow.status is RolloutStatus.CANCELLED


async def test_phase_is_stopped_when_its_caller_is_gone():
    backend, reported = Deaf(workflow=programs.Answers), Reported()
    task = asyncio.create_task(backend.execute(request(), reported.on_workflow_complete))
    await until(lambda: hasattr(backend, "stopped"))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and backend.stopped.is_set() and reported.results == []


@pytest.fixture
def observers(tmp_path, monkeypatch):
    (tmp_path / "osmosis_tells.py").write_text(
        "from osmosis_core import hookimpl\nheard = []\n"
        "@hookimpl\ndef osmosis_sample_registered(rollout_id, sample_id):\n"
        "    heard.append((rollout_id, sample_id))\n"
        "@hookimpl\ndef osmosis_policy_call_finished(call):\n    heard.append(call.index)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return PluginManager([EntryPoint("tells", "osmosis_tells", "osmosis_core")])


async def test_observers_are_told_of_agents_and_calls_in_their_order(observers):
    with ScriptedPolicy("42") as policy, policy.rollout():
        backend = Elsewhere(workflow=programs.CallsPolicy)
        result = (await run(backend, request())).workflow
    agents = (await run(Elsewhere(workflow=programs.TwoAgents), request())).workflow
    both = ExecutionResult(RolloutStatus.SUCCESS, {**result.samples, **agents.samples})
    observers.tell("r-1", both)
    import osmosis_tells

    assert osmosis_tells.heard == [("r-1", "solver"), ("r-1", "judge"), 0]
    observers.is_silent = True
    observers.tell("r-1", both)
    assert len(osmosis_tells.heard) == 3
