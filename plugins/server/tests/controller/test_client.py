"""Many rollouts through one client: order, back-pressure, cancels, ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web

from osmosis_core import BackendError, RolloutStatus
from osmosis_server.controller import ControllerClient, ControllerLimits


@pytest.fixture
def serving(server):
    """A server whose rollouts end when their id is let go; `cancelled` are those it was told."""
    server.go, server.cancelled = {}, []

    async def submit(request):
        server.go.setdefault(server.bodies[-1]["rollout_id"], asyncio.Event())
        return server.lease()

    async def result(request):
        rollout_id = request.path.split("/")[2]
        try:
            await asyncio.wait_for(server.go[rollout_id].wait(), 1)
        except TimeoutError:
            return server.result(rollout_id=rollout_id, status="running")
        return server.result(rollout_id=rollout_id, sample=server.sample())

    async def cancel(request):
        server.cancelled += (await request.json())["ids"]
        return web.json_response({"dispositions": {}})

    server.on |= {"rollout": submit, "result": result, "cancel": cancel}
    return server


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - servers notify nobody
            await asyncio.sleep(0.005)


async def test_results_come_as_rollouts_finish(serving, controller, asked):
    requests = [asked(f"r-{i}") for i in range(3)]
    async with controller(serving) as client:
        async with aclosing(client.rollouts(requests)) as results:
            first = asyncio.create_task(anext(results))
            await until(lambda: len(serving.go) == 3)
            serving.go["r-2"].set()
            assert (await first)[0] is requests[2]
            serving.go["r-0"].set()
            serving.go["r-1"].set()
            assert {request.id async for request, _ in results} == {"r-0", "r-1"}


async def test_requests_are_taken_only_as_results_are(serving, controller, asked):
    taken = []

    def requests():
        for i in range(1000):
            taken.append(i)
            serving.go[f"r-{i}"] = go = asyncio.Event()
            go.set()
            yield asked(f"r-{i}")

    async with controller(serving, limits=ControllerLimits(max_in_flight=4)) as client:
        async with aclosing(client.rollouts(requests())) as results:
            for count in range(1, 21):
                await anext(results)
                await asyncio.sleep(0.002)
                assert len(taken) <= count + 4


async def test_asynchronous_requests_may_be_slower_than_results(serving, controller, asked):
    async def requests():
        for i in range(3):
            serving.go[f"r-{i}"] = go = asyncio.Event()
            go.set()
            yield asked(f"r-{i}")
            await asyncio.sleep(0.02)

    async with controller(serving) as client:
        ended = [request.id async for request, _ in client.rollouts(requests())]
    assert ended == ["r-0", "r-1", "r-2"]


async def test_error_of_the_requests_is_raised_and_cancels_the_rest(serving, controller, asked):
    def requests():
        yield asked("r-0")
        raise LookupError("no more rows")

    async with controller(serving) as client:
        with pytest.raises(LookupError, match="no more rows"):
            async for _ in client.rollouts(requests()):
                pass
        assert client.status("r-0") is None


async def test_leaving_early_cancels_what_is_under_way(serving, controller, asked):
    async with controller(serving) as client:
        async with aclosing(client.rollouts([asked("r-0"), asked("r-1")])) as results:
            taking = asyncio.create_task(anext(results))
            await until(lambda: client.status("r-1") is RolloutStatus.RUNNING)
            serving.go["r-0"].set()
            await taking
        assert serving.cancelled == ["r-1"]


async def test_cancelled_task_cancels_its_rollout_on_the_server(serving, controller, asked):
    async with controller(serving) as client:
        running = asyncio.create_task(client.rollout(asked()))
        await until(lambda: client.status("r-1") is RolloutStatus.RUNNING)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert serving.cancelled == ["r-1"]


async def test_cancel_makes_the_result_cancelled(serving, controller, asked):
    async with controller(serving) as client:
        running = asyncio.create_task(client.rollout(asked()))
        await until(lambda: client.status("r-1") is RolloutStatus.RUNNING)
        told = await client.cancel(ids=["r-1", "r-2"])
        assert (await running).status is RolloutStatus.CANCELLED
        assert told == {"r-1": "cancelled_running", "r-2": "not_found"}
        assert await client.cancel(ids=["r-1"]) == {"r-1": "not_found"}
    assert serving.cancelled == ["r-1"]


async def test_id_under_way_is_refused_and_the_first_goes_on(serving, controller, asked):
    async with controller(serving) as client:
        running = asyncio.create_task(client.rollout(asked()))
        await until(lambda: "r-1" in serving.go)
        with pytest.raises(BackendError, match="'r-1' is under way"):
            await client.rollout(asked())
        serving.go["r-1"].set()
        assert (await running).status is RolloutStatus.SUCCESS


async def test_request_that_is_no_json_is_a_failure(serving, controller, asked):
    async with controller(serving) as client:
        result = await client.rollout(asked(metadata={"when": object()}))
    assert "cannot be sent as JSON" in result.err_message and serving.bodies == []


async def test_closed_client_ends_what_is_under_way_and_takes_nothing(serving, policy, asked):
    async with ControllerClient(serving.url, policy.endpoint) as client:
        running = asyncio.create_task(client.rollout(asked()))
        await until(lambda: client.status("r-1") is RolloutStatus.RUNNING)
    assert (await running).status is RolloutStatus.CANCELLED
    with pytest.raises(BackendError, match="async with ControllerClient"):
        await client.rollout(asked())


async def test_each_result_is_recorded_before_it_is_returned(serving, controller, asked):
    recorded = []

    async def record(request, result):
        recorded.append((request.id, result.status))

    serving.go["r-1"] = go = asyncio.Event()
    go.set()
    async with controller(serving, record=record) as client:
        result = await client.rollout(asked())
    assert recorded == [("r-1", result.status)]
