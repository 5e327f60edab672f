"""Which server a rollout goes to, and when it goes to another one."""

from __future__ import annotations

import asyncio
import itertools
import socket

import pytest
from aiohttp import web

from osmosis_core import BackendError, ConfigError, RolloutErrorCategory, RolloutStatus
from osmosis_server.controller import ControllerClient, ControllerLimits, Listen


@pytest.fixture
def serving(tiny):
    """Start a server that takes every rollout, after the refusals that are given."""

    async def start(*refusals, until=None):
        server, answers = await tiny(), iter(refusals)

        async def submit(request):
            return next(answers, None) or server.lease()

        async def result(request):
            if until is not None:
                await until.wait()
            rollout_id = request.path.split("/")[2]
            return server.result(rollout_id=rollout_id, sample=server.sample())

        async def health(request):
            return web.json_response({"status": "ok"})

        server.on |= {"rollout": submit, "result": result, "health": health}
        server.on["cancel"] = lambda request: asyncio.sleep(0, web.json_response({}))
        return server

    return start


@pytest.fixture
def nowhere():
    """A URL where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def busy(status, retry_after="0.05"):
    headers = {"retry-after": retry_after} if retry_after else {}
    return web.json_response({"detail": "later"}, status=status, headers=headers)


async def test_rollouts_go_to_the_least_loaded_server(serving, controller, asked):
    go = asyncio.Event()
    servers = [await serving(until=go) for _ in range(3)]
    async with controller(*servers) as client:
        running = [asyncio.create_task(client.rollout(asked(f"r-{i}"))) for i in range(6)]
        while sum(len(server.bodies) for server in servers) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(*running)
    assert [len(server.bodies) for server in servers] == [2, 2, 2]


@pytest.mark.parametrize("status", [429, 503])
async def test_busy_server_leaves_the_rollout_to_another(status, serving, controller, asked):
    full, free = await serving(busy(status, "60")), await serving()
    async with controller(full, free) as client:
        results = [await client.rollout(asked(f"r-{i}")) for i in range(3)]
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}
    assert (len(full.bodies), len(free.bodies)) == (1, 3)


@pytest.mark.parametrize("retry_after", ["0", "0.1", "soon"])
async def test_busy_only_server_is_waited_for(retry_after, serving, controller, asked):
    server = await serving(busy(429, retry_after), busy(503, "0"))
    async with controller(server) as client:
        assert (await client.rollout(asked())).status is RolloutStatus.SUCCESS
    assert len(server.bodies) == 3


async def test_wait_for_capacity_ends_at_its_limit(serving, controller, asked):
    server = await serving(busy(429, "60"))
    async with controller(server, limits=ControllerLimits(admission_timeout_sec=0.2)) as client:
        result = await client.rollout(asked())
    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert "no rollout server took it within 0.2 s" in result.err_message


async def test_server_that_is_gone_leaves_the_rollout_to_another(serving, nowhere, policy, asked):
    server = await serving()
    async with ControllerClient([nowhere, server.url], policy.endpoint) as client:
        results = [await client.rollout(asked(f"r-{i}")) for i in range(4)]
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}


async def test_no_server_at_all_is_a_failure_that_names_the_last(nowhere, policy, asked):
    limits = ControllerLimits(unreachable_sec=0.3)
    async with ControllerClient(nowhere, policy.endpoint, limits=limits) as client:
        result = await client.rollout(asked())
    assert result.err_category is RolloutErrorCategory.HTTP_ERROR and nowhere in result.err_message


@pytest.mark.parametrize(
    ("status", "category"), [(401, "http_error"), (422, "validation_error"), (500, "http_error")]
)
async def test_refusal_is_final_and_says_what_the_server_said(
    status, category, serving, controller, asked
):
    server = await serving(web.json_response({"detail": "no, thanks"}, status=status))
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert f"answered {status} to the submission: no, thanks" in result.err_message
    assert result.err_category == category and len(server.bodies) == 1


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_server_that_takes_nothing_swallows_no_rollouts(status, serving, controller, asked):
    broken = await serving(*[web.json_response({}, status=status) for _ in range(99)])
    well = await serving()
    async with controller(broken, well) as client:
        requests = [asked(f"r-{i}") for i in range(8)]
        results = [result async for _, result in client.rollouts(requests)]
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}
    assert len(well.bodies) == 8


async def test_redirects_are_not_followed(serving, controller, asked):
    there = await serving()
    here = await serving(web.Response(status=307, headers={"location": f"{there.url}/rollout"}))
    async with controller(here) as client:
        result = await client.rollout(asked())
    assert result.status is RolloutStatus.FAILURE and there.bodies == []


async def test_health_of_each_server_is_told(serving, nowhere, policy):
    server = await serving()
    async with ControllerClient([server.url, nowhere], policy.endpoint) as client:
        health = await client.health()
        await client.check()
    assert (health[server.url], health[nowhere]["status"]) == ({"status": "ok"}, "unreachable")


async def test_check_says_which_servers_are_not_ready(nowhere, policy):
    async with ControllerClient(nowhere, policy.endpoint) as client:
        with pytest.raises(ConfigError, match=f"no rollout server is ready.*{nowhere}"):
            await client.check()


async def test_pause_reaches_all_servers_and_names_those_that_cannot(serving, tiny, controller):
    ours, theirs, paused = await serving(), await tiny(), itertools.count()

    async def pause(request):
        next(paused)
        return web.json_response({"paused": True})

    ours.on |= {"pause": pause}
    async with controller(ours, theirs) as client:
        with pytest.raises(BackendError, match=f"pause did not reach 1 of 2.*{theirs.url} cannot"):
            await client.pause()
    assert next(paused) == 1


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9000",
        "ftp://host",
        "http://user:key@host",
        "http://",
        "http://[::1",
        "http://localhost:99999",
    ],
)
def test_url_that_is_none_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match="needs the form http://host:port") as refused:
        ControllerClient(url)
    with pytest.raises(ConfigError, match="public_url needs the form http://host:port"):
        ControllerClient("http://10.1.2.3:9000", listen=Listen(public_url=url))
    assert "key@" not in str(refused.value)


def test_listener_that_servers_elsewhere_cannot_reach_is_refused():
    with pytest.raises(ConfigError, match=r"cannot reach a listener on 127\.0\.0\.1"):
        ControllerClient("http://10.1.2.3:9000")
    with pytest.raises(ConfigError, match="no address to call"):
        ControllerClient("http://10.1.2.3:9000", listen=Listen("0.0.0.0"))
    ControllerClient("http://10.1.2.3:9000", listen=Listen(public_url="https://me.example"))


def test_unknown_protocol_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'polling'"):
        ControllerClient("http://127.0.0.1:1", protocol="poling")
