"""The service behind every protocol: admission, execution, leases, cancels, restarts."""

import asyncio
import json
import resource

import pytest

from osmosis_core import AgentWorkflow, ExecutionBackend, ExecutionResult, RolloutStatus
from osmosis_server.journal import JournalFull
from osmosis_server.observer import ServiceObserver
from osmosis_server.stats import Throughput
from osmosis_server.submissions import (
    Duplicate,
    Full,
    ShuttingDown,
    Submission,
    UnknownRollout,
    WrongLease,
)


async def test_rollout_is_run_and_graded_and_its_result_is_read(serve, local, polled, ended):
    async with serve(local()) as service:
        assert (await service.admit(polled())).status == "queued"
        view = await ended(service)
    assert (view.status, view.reward) == ("success", 1.0)
    assert json.loads(view.body)["messages"][-1]["content"] == "4"


async def test_result_is_read_again_after_a_restart(serve, local, polled, ended):
    async with serve(local()) as service:
        await service.admit(polled())
        first = await ended(service)
    async with serve(local()) as service:
        assert await service.wait("r1", "t", 1) == first
        assert await service.view("r1") == first


async def test_in_memory_journal_serves_just_as_well(serve, local, polled, ended):
    async with serve(local(), at=":memory:") as service:
        for n in range(20):
            await service.admit(polled(f"r{n}"))
        assert {(await ended(service, f"r{n}")).status for n in range(20)} == {"success"}
        with pytest.raises(Duplicate):
            await service.admit(polled("r3"))


async def test_id_is_taken_while_its_rollout_is_known_and_equal_ones_are_told_apart(
    serve, local, polled, ended
):
    async with serve(local()) as service:
        await service.admit(polled())
        await ended(service)
        same = await _refusal(service, polled())
        other_token = await _refusal(service, polled(token="other"))
        other_body = await _refusal(service, polled(label="5"))
    assert [e.is_same for e in (same, other_token, other_body)] == [True, False, False]


async def test_of_equal_submissions_at_once_one_is_run(serve, local, gate, polled):
    async with serve(local(gate.workflow, max_concurrent=9)) as service:
        tries = [service.admit(polled()) for _ in range(20)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        gate.opened.set()
    assert sum(isinstance(outcome, Duplicate) for outcome in outcomes) == 19
    assert gate.held == ["r1"]


async def _refusal(service, submission: Submission) -> Duplicate:
    with pytest.raises(Duplicate) as refused:
        await service.admit(submission)
    return refused.value


async def test_too_many_pending_are_refused_with_when_to_come_again(serve, local, gate, polled):
    async with serve(local(gate.workflow), max_pending=3) as service:
        for n in range(3):
            await service.admit(polled(f"r{n}"))
        with pytest.raises(Full, match="retry later") as refused:
            await service.admit(polled("r0"))
        assert 1 <= refused.value.retry_after_sec <= 60
        assert service.stats().refused == {"Full": 1}
        gate.opened.set()


async def test_backend_without_capacity_refuses(serve, polled):
    class Busy(ExecutionBackend):
        async def execute(self, request, on_workflow_complete, on_grader_complete=None): ...

        def has_capacity(self):
            return False

    async with serve(Busy()) as service:
        with pytest.raises(Full):
            await service.admit(polled())


async def test_no_more_run_at_once_than_the_backend_takes(serve, local, gate, polled, until):
    async with serve(local(gate.workflow, max_concurrent=2)) as service:
        for n in range(5):
            await service.admit(polled(f"r{n}"))
        await until(lambda: len(gate.held) == 2)
        assert (service.stats().running, service.stats().queued) == (2, 3)
        assert service.health()["concurrency"] == {"max_concurrent": 2, "queued": 3, "running": 2}
        assert (await service.view("r4")).status == "queued"
        gate.opened.set()
        await until(lambda: service.stats().finished["success"] == 5)
    assert gate.held == ["r0", "r1", "r2", "r3", "r4"]


async def test_large_request_waits_in_the_journal_and_runs_unchanged(serve, local, polled, ended):
    prompt = [{"role": "user", "content": "ü\ud800 " * 5000}]
    async with serve(local(max_concurrent=1)) as service:
        service.pause()
        await service.admit(polled(prompt=prompt, metadata={"n": float("nan"), "big": 2**80}))
        assert service._registry.active["r1"].submission is None
        service.resume()
        view = await ended(service)
    assert json.loads(view.body)["messages"][0] == prompt[0]


async def test_nothing_begins_while_paused(serve, local, gate, polled, ended):
    async with serve(local(gate.workflow)) as service:
        service.pause()
        await service.admit(polled())
        assert (await service.wait("r1", "t", 0.05)).status == "queued"
        assert service.is_paused and gate.held == []
        service.resume()
        gate.opened.set()
        assert (await ended(service)).status == "success"


async def test_poll_returns_when_the_status_changes(serve, local, gate, polled):
    async with serve(local(gate.workflow)) as service:
        service.pause()
        await service.admit(polled())
        poll = asyncio.create_task(service.wait("r1", "t", 30))
        await asyncio.sleep(0.01)
        service.resume()
        assert (await poll).status == "running"
        gate.opened.set()


async def test_poll_needs_the_lease_and_a_known_id(
    serve, local, gate, polled, called_back, controller
):
    async with serve(local(gate.workflow, max_concurrent=9)) as service:
        await service.admit(polled())
        await service.admit(called_back(controller.url, "r2", graded=False))
        for rollout_id in ("r1", "r2"):
            with pytest.raises(WrongLease):
                await service.wait(rollout_id, "wrong", 1)
        with pytest.raises(UnknownRollout):
            await service.wait("r3", "t", 1)
        assert (await service.view("r3")).status == "unknown"
        await service.cancel(all=True)


async def test_lease_that_nobody_renews_fails_the_rollout(serve, local, gate, polled, ended, until):
    lease = {"polling_lease_timeout_sec": 0.2, "result_wait_timeout_sec": 0.1}
    async with serve(local(gate.workflow, max_concurrent=1), **lease) as service:
        await service.admit(polled())
        await service.admit(polled("waiting"))
        await asyncio.sleep(0.4)
        for rollout_id in ("r1", "waiting"):
            view = await ended(service, rollout_id)
            assert (view.status, view.err_category) == ("failure", "lease_expired")
        await until(lambda: service.stats().running == 0)


async def test_polls_keep_the_lease(serve, local, gate, polled, ended):
    lease = {"polling_lease_timeout_sec": 0.3, "result_wait_timeout_sec": 0.1}
    async with serve(local(gate.workflow), **lease) as service:
        await service.admit(polled())
        for _ in range(8):
            assert not (await service.wait("r1", "t", 0.1)).status.is_terminal
        gate.opened.set()
        assert (await ended(service)).status == "success"


async def test_cancel_says_what_it_found_and_the_same_again(serve, local, gate, polled, until):
    async with serve(local(gate.workflow, max_concurrent=1)) as service:
        await service.admit(polled("a-1"))
        await service.admit(polled("a-2"))
        await until(lambda: gate.held)
        found = await service.cancel(prefix="a-")
        assert found == {"a-1": "cancelled_running", "a-2": "cancelled_queued"}
        assert await service.cancel(ids=["a-1", "a-2", "x"]) == {**found, "x": "not_found"}
        await until(lambda: service.stats().finished["cancelled"] == 2)
        assert await service.cancel(ids=["a-1"]) == {"a-1": "not_found"}
        assert await service.cancel(all=True) == {}
        with pytest.raises(ValueError, match="exactly one selector"):
            await service.cancel(ids=[], all=True)


class Foreign(ExecutionBackend):
    """A backend that implements the least there is."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def execute(self, request, on_workflow_complete, on_grader_complete=None):
        if self.error:
            raise self.error
        if request.label == "silent":
            return
        await asyncio.Event().wait()


async def test_backend_that_cannot_cancel_has_its_execution_cancelled(serve, polled, ended, until):
    async with serve(Foreign()) as service:
        await service.admit(polled())
        await until(lambda: service.stats().running)
        assert await service.cancel(ids=["r1"]) == {"r1": "cancelled_running"}
        assert (await ended(service)).status == "cancelled"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
async def test_workflow_that_raises_what_ends_programs_ends_only_itself(
    serve, local, polled, ended, kind
):
    class Ends(AgentWorkflow):
        async def run(self, ctx):
            raise kind

    async with serve(local(Ends)) as service:
        await service.admit(polled())
        view = await ended(service)
        assert service.stats().running == 0
    assert (view.status, view.err_category) == ("failure", "internal_error")
    assert view.err_message == kind.__name__


async def test_what_a_backend_raises_is_an_internal_error_without_secrets(serve, polled, ended):
    error = RuntimeError("cannot reach the farm with sk-policy-secret")
    async with serve(Foreign(error)) as service:
        await service.admit(polled())
        view = await ended(service)
    assert (view.err_message, view.err_category) == (
        "cannot reach the farm with ***",
        "internal_error",
    )


async def test_backend_that_says_nothing_is_an_internal_error(serve, polled, ended):
    async with serve(Foreign()) as service:
        await service.admit(polled(label="silent"))
        assert (await ended(service)).err_message == "Foreign ended without a result"


async def test_deadline_counts_from_submission(serve, local, gate, polled, ended):
    async with serve(local(gate.workflow, max_concurrent=1)) as service:
        service.pause()
        await service.admit(polled("waits", agent_timeout_sec=0.15))
        await service.admit(polled("runs", agent_timeout_sec=0.5))
        waited = await ended(service, "waits")
        service.resume()
        ran = await ended(service, "runs")
    assert waited.err_message.startswith("workflow exceeded its 0.15s deadline (0.")
    assert ran.err_message.startswith("workflow exceeded its 0.5s deadline (0.")
    assert (waited.err_category, ran.err_category) == ("timeout", "timeout")
    assert gate.held == ["runs"]


async def test_several_samples_can_be_refused_before_grading(serve, local, polled, ended):
    class Twins(AgentWorkflow):
        async def run(self, ctx):
            return [{"role": "assistant", "content": "4"}]

    def one_only(submission, result):
        return ExecutionResult(RolloutStatus.FAILURE, err_message="2 samples; use another mode")

    async with serve(local(Twins)) as service:
        service._reporter._protocols["polled"].settle = one_only
        await service.admit(polled())
        view = await ended(service)
    assert (view.status, view.err_message) == ("failure", "2 samples; use another mode")


async def test_result_that_cannot_be_reported_is_a_failure_that_says_so(
    serve, local, polled, ended
):
    class Odd(AgentWorkflow):
        async def run(self, ctx):
            return [{"role": "assistant", "content": "4", "raw": object()}]

    async with serve(local(Odd)) as service:
        await service.admit(polled())
        view = await ended(service)
    assert "is not JSON serializable" in view.err_message


@pytest.mark.parametrize("hook", ["result_body", "settle"])
async def test_protocol_that_raises_ends_the_rollout_all_the_same(
    serve, local, polled, ended, hook
):
    def broken(submission, result):
        raise KeyError("broken")

    async with serve(local()) as service:
        setattr(service._reporter._protocols["polled"], hook, broken)
        await service.admit(polled())
        view = await ended(service)
    assert (view.status, view.err_category) == ("failure", "internal_error")


async def test_message_that_is_no_text_is_escaped(serve, local, polled, ended):
    class Odd(AgentWorkflow):
        async def run(self, ctx):
            raise RuntimeError("\ud800")

    async with serve(local(Odd)) as service:
        await service.admit(polled())
        assert (await ended(service)).err_message == "\\ud800"


async def test_result_that_the_journal_cannot_keep_is_a_failure(serve, local, polled, ended):
    async with serve(local()) as service:
        service._reporter._protocols["polled"].result_body = lambda *_: {"not": "bytes"}
        await service.admit(polled())
        view = await ended(service)
    assert view.err_message.startswith("its result cannot be kept: ")


async def test_drain_lets_rollouts_end_and_admits_no_more(serve, local, gate, polled, until):
    async with serve(local(gate.workflow)) as service:
        await service.admit(polled())
        await until(lambda: gate.held)
        drained = asyncio.create_task(service.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await service.admit(polled("r2"))
        gate.opened.set()
        await drained
        assert (await service.view("r1")).status == "success"


async def test_drain_cancels_what_outlives_the_grace(serve, local, gate, polled):
    async with serve(local(gate.workflow, max_concurrent=1)) as service:
        for n in range(300):
            await service.admit(polled(f"r{n}"))
        await asyncio.gather(service.drain(0.05), service.drain(9))
        assert service.stats().finished == {"cancelled": 300}


async def test_caller_that_goes_away_leaves_its_rollout_running(serve, local, polled, ended, until):
    async with serve(local()) as service:
        admission = asyncio.create_task(service.admit(polled()))
        await asyncio.sleep(0)
        admission.cancel()
        await until(lambda: service.stats().admitted)
        assert (await ended(service)).status == "success"


async def test_result_is_forgotten_after_its_retention(serve, local, polled, ended, until):
    async with serve(local(), result_retention_sec=0.01) as service:
        await service.admit(polled())
        await ended(service)
        service._registry._recent.clear()
        async with asyncio.timeout(10):
            while (await service.view("r1")).status != "unknown":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await service.admit(polled())
        assert (await ended(service)).status == "success"


async def test_journal_that_may_not_grow_refuses(serve, local, gate, polled, until):
    async with serve(local(gate.workflow), max_journal_bytes=2**20) as service:
        await service.admit(polled(metadata={"x": "y" * 2_000_000}))
        await until(lambda: service._retention.is_full)
        with pytest.raises(Full):
            await service.admit(polled("r2"))
        gate.opened.set()
        await until(lambda: not service._retention.is_full)
        await service.admit(polled("r2"))


async def test_full_disk_keeps_results_until_there_is_room(serve, local, gate, polled, until, path):
    async with serve(local(gate.workflow)) as service:
        await service.admit(polled())
        await until(lambda: gate.held)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        try:
            with pytest.raises(JournalFull, match="running rollouts go on"):
                await service.admit(polled("r2", metadata={"x": "y" * 10**7}))
            gate.opened.set()
            assert (await service.wait("r1", "t", 0.3)).status in ("running", "grading")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (await service.wait("r1", "t", 30)).status == "success"


async def test_observer_is_told_of_the_end_and_cannot_spoil_it(
    serve, local, polled, ended, until, caplog
):
    class Watching(ServiceObserver):
        def rollout_ended(self, submission, result):
            raise RuntimeError(f"{submission.request.id} {result.status}")

    async with serve(local(), observer=Watching()) as service:
        await service.admit(polled())
        assert (await ended(service)).status == "success"
        await until(lambda: "RuntimeError: r1 success" in caplog.text)


@pytest.mark.parametrize(
    ("ended_by_now", "retry_after"), [(0, {5}), (100, {5, 6}), (1000, {1}), (1, {60})]
)
def test_retry_after_follows_the_throughput(ended_by_now, retry_after):
    throughput = Throughput()
    for _ in range(ended_by_now):
        throughput.count()
    assert throughput.retry_after_sec(10_000) in retry_after
