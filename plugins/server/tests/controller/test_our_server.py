"""Our controller and our server, in every protocol, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest
import uvicorn

from osmosis_core import (
    AgentWorkflow,
    ExecutionRequest,
    Grader,
    LocalBackend,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.policy import BASE_URL, agent_scope, async_client
from osmosis_core.testing.backend_conformance import (
    Cancelling,
    Capacity,
    Deadlines,
    Failures,
    Isolation,
    Reporting,
    Rewards,
)
from osmosis_gateway.serving import listen, origin_of
from osmosis_server import (
    ControllerClient,
    ControllerLimits,
    ServerBackend,
    ServerSettings,
    create_rollout_server,
)

PROTOCOLS = ["polling", "single-sample", "multi-sample"]


@contextmanager
def served(backend, protocol="polling", **settings):
    """Our server on a thread of its own; yields its URL."""
    callbacks = "single-sample" if protocol == "single-sample" else "multi-sample"
    given = ServerSettings(journal=":memory:", callback_protocol=callbacks, **settings)
    app = create_rollout_server(backend=backend, settings=given, configure_logging=False)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server, listener = uvicorn.Server(config), listen("127.0.0.1", 0, allow_remote=False)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield origin_of(listener)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


class Asks(AgentWorkflow):
    """Asks the policy once under each name in its metadata."""

    async def run(self, ctx):
        import httpx2

        for name in (ctx.metadata or {}).get("names", ["main"]):
            with agent_scope(name):
                body = {"model": "m", "messages": ctx.prompt}
                answer = await async_client(httpx2).post(f"{BASE_URL}/chat/completions", json=body)
                answer.raise_for_status()


class Equals(Grader):
    async def grade(self, ctx):
        for sample_id, sample in ctx.samples.items():
            ctx.set_sample_reward(sample_id, float(ctx.label in sample.messages[-1]["content"]))


class Sleeps(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.sleep(60)


def asked(rollout_id="r-1", prompt="What is 6 * 7?", **fields):
    given = {"label": "42", "agent_timeout_sec": 20.0, "grader_timeout_sec": 20.0, **fields}
    return ExecutionRequest(rollout_id, [{"role": "user", "content": prompt}], **given)


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return request.param


async def test_demo_policy_is_graded_over_every_protocol(protocol):
    requests = [asked(f"r-{i}", f"What is {i} * 7?", label=str(i * 7)) for i in range(20)]
    with served(LocalBackend(workflow=Asks, grader=Equals, max_concurrent=20), protocol) as url:
        async with ControllerClient(url, "demo", protocol=protocol) as client:
            results = {r.id: result async for r, result in client.rollouts(requests)}
    assert {result.status for result in results.values()} == {RolloutStatus.SUCCESS}
    assert {result.sample.reward for result in results.values()} == {1.0}
    assert all(len(result.sample.calls) == 1 for result in results.values())


async def test_several_samples_come_with_their_calls_where_the_protocol_has_them(protocol):
    with served(LocalBackend(workflow=Asks, grader=Equals), protocol) as url:
        async with ControllerClient(url, "demo", protocol=protocol) as client:
            result = await client.rollout(asked(metadata={"names": ["solver", "judge"]}))
    assert {name: len(s.calls) for name, s in result.samples.items()} == {"solver": 1, "judge": 1}
    if protocol == "multi-sample":
        assert {s.reward for s in result.samples.values()} == {1.0}
    else:
        assert "2 samples" in result.err_message
        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR


async def test_two_servers_share_the_rollouts(protocol):
    backends = [LocalBackend(workflow=Asks, grader=Equals, max_concurrent=9) for _ in range(2)]
    with served(backends[0], protocol) as one, served(backends[1], protocol) as other:
        async with ControllerClient([one, other], "demo", protocol=protocol) as client:
            requests = [asked(f"r-{i}") for i in range(8)]
            results = [result async for _, result in client.rollouts(requests)]
    assert {result.sample.reward for result in results} == {1.0}


async def test_cancel_ends_the_rollout_on_the_server(protocol):
    backend = LocalBackend(workflow=Sleeps)
    with served(backend, protocol) as url:
        async with ControllerClient(url, "demo", protocol=protocol) as client:
            running = asyncio.create_task(client.rollout(asked()))
            async with asyncio.timeout(10):
                while backend.rollout_status("r-1") is not RolloutStatus.RUNNING:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await client.cancel(prefix="r-")
                assert (await running).status is RolloutStatus.CANCELLED
                while backend.rollout_status("r-1") is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_paused_server_starts_nothing_until_it_is_resumed(protocol):
    backend = LocalBackend(workflow=Asks, grader=Equals)
    with served(backend, protocol) as url:
        async with ControllerClient(url, "demo", protocol=protocol) as client:
            await client.pause()
            assert (await client.health())[url]["lifecycle"]["paused"] is True
            running = asyncio.create_task(client.rollout(asked()))
            done, _ = await asyncio.wait([running], timeout=0.3)
            await client.resume()
            assert not done and (await running).sample.reward == 1.0


async def test_lost_answer_to_a_submission_loses_and_doubles_nothing(protocol, tiny):
    """Between them is a proxy that drops the first answer, or the request before it arrives."""
    ran = []

    class Counts(Asks):
        async def run(self, ctx):
            ran.append(ctx.prompt)
            await super().run(ctx)

    backend = LocalBackend(workflow=Counts, grader=Equals)
    with served(backend, protocol) as url:
        proxy = await tiny(url)
        async with ControllerClient(proxy.url, "demo", protocol=protocol) as client:
            for lost in ("answer", "request"):
                proxy.loses = lost
                assert (await client.rollout(asked(lost))).sample.reward == 1.0
    assert len(ran) == 2 and len(proxy.bodies) >= 3


async def test_full_server_is_waited_for():
    limits = ControllerLimits(max_in_flight=4)
    backend = LocalBackend(workflow=Asks, grader=Equals)
    with served(backend, max_pending=3) as url:
        async with ControllerClient(url, "demo", limits=limits) as client:
            requests = [asked(f"r-{i}") for i in range(4)]
            results = [result async for _, result in client.rollouts(requests)]
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}


REUSES_AN_ID = (  # a server remembers the ids of rollouts that ended
    "test_cancelled_caller_leaves_the_queue",
    "test_errors_of_the_grader_have_their_category",
    "test_errors_of_the_workflow_have_their_category",
    "test_finished_id_can_be_used_again",
    "test_input_of_a_workflow_is_its_own_copy",
    "test_no_task_is_left_behind",
    "test_odd_errors_are_results_too",
    "test_removed_and_helper_samples_need_no_reward",
    "test_slot_is_freed_after_the_error_of_a_callback",
)
NOT_ON_THE_WIRE = (  # queueing, contexts, what is beside samples, when a callback was taken
    "test_cancel_between_the_phases_is_reported",
    "test_cancel_in_the_last_callback_comes_too_late",
    "test_cancel_all_ends_running_and_queued_rollouts",
    "test_cancel_ends_a_queued_rollout",
    "test_cancel_ends_grading",
    "test_context_variables_are_each_rollout_s_own",
    "test_grader_is_not_reported_when_the_request_says_no",
    "test_returned_output_is_the_sample",
    "test_rollout_without_a_grader_callback_is_reported_once",
    "test_status_is_queued_then_running_then_grading",
)
WRITES_TRAJECTORIES = ("test_artifacts_directory_is_created_on_demand",)
RUNS_IN_THE_SAME_PROCESS = (  # here, whose observers hear both sides of the wire
    "test_observers_hear_each_event_once_and_here",
)
RETRIED_BY_AGENTS_TOO = (
    "test_policy_that_keeps_failing_is_an_http_error",
    "test_unreachable_policy_is_an_http_error",
)


class TestConformance(Reporting, Deadlines, Cancelling, Capacity, Failures, Isolation, Rewards):
    """The promises of every backend, as far as the protocol with the most words can keep them."""

    crowd = 20

    @pytest.fixture(autouse=True)
    def _servers(self):
        self._open = []
        yield
        for server in self._open:
            server.__exit__(None, None, None)

    def create_backend(self, **options):
        server = served(LocalBackend(**options), "multi-sample")
        self._open.append(server)
        return ServerBackend(servers=server.__enter__(), protocol="multi-sample")


for name in (
    *REUSES_AN_ID,
    *NOT_ON_THE_WIRE,
    *WRITES_TRAJECTORIES,
    *RUNS_IN_THE_SAME_PROCESS,
    *RETRIED_BY_AGENTS_TOO,
):
    setattr(TestConformance, name, None)
