"""The listener as the policy of agents on servers."""

from __future__ import annotations

import asyncio
import threading

import aiohttp
import pytest

from osmosis_core import RolloutStatus
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.testing import Delay, Endless, ScriptedPolicy, Status
from osmosis_server.controller import ControllerClient


@pytest.fixture
def agent(server):
    """Run an agent on the server; answers what `call(body)` answered, once the rollout ended."""
    told = []

    def run(call):
        async def submit(request):
            return server.lease()

        async def result(request):
            told.append(await call(server.bodies[-1]))
            return server.result(sample=server.sample())

        server.on |= {"rollout": submit, "result": result}
        return told

    return run


async def post(body, path="/chat/completions", **fields):
    headers = {"authorization": f"Bearer {body['llm_api_key']}", **fields.pop("headers", {})}
    asked = {"model": "m", "messages": body["initial_messages"], **fields}
    async with aiohttp.ClientSession() as session:
        url = f"{body['chat_completions_url']}{path}"
        async with session.post(url, json=asked, headers=headers) as response:
            return response.status, await response.text()


async def test_streams_are_passed_on_as_they_come(server, agent, asked):
    arrivals = []

    async def call(body):
        headers = {"authorization": f"Bearer {body['llm_api_key']}"}
        said = {"model": "m", "messages": body["initial_messages"], "stream": True}
        url = f"{body['chat_completions_url']}/chat/completions"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, json=said, headers=headers) as response:
                async for line in response.content:
                    if line.strip():
                        arrivals.append(line)
                        if len(arrivals) == 1:
                            gate.set()

    gate = threading.Event()
    script = Delay("x" * 64, between_sec=0.05)
    agent(call)
    with ScriptedPolicy(script) as policy:
        async with ControllerClient(server.url, policy.endpoint) as client:
            running = asyncio.create_task(client.rollout(asked()))
            assert await asyncio.to_thread(gate.wait, 10)
            assert not running.done() and b"[DONE]" not in arrivals[-1]
            result = await running
    assert arrivals[-1].strip() == b"data: [DONE]" and len(arrivals) > 4
    assert result.sample.calls[0].answer["content"] == "x" * 64


async def test_agents_are_answered_while_the_callers_loop_is_blocked(
    tiny, server, agent, controller, asked
):
    stalled = threading.Event()

    async def call(body):
        answers = []

        def ask():
            import urllib.request

            request = urllib.request.Request(
                f"{body['chat_completions_url']}/chat/completions",
                b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}',
                {"authorization": f"Bearer {body['llm_api_key']}"},
            )
            with urllib.request.urlopen(request, timeout=10) as response:
                answers.append(response.status)
            stalled.set()

        threading.Thread(target=ask).start()
        stalled.wait(10)  # blocks this loop, which is the client's too
        return answers

    told = agent(call)
    async with controller(server) as client:
        await client.rollout(asked())
    assert told == [[200]]


@pytest.mark.parametrize("path", ["/responses", "/messages", "/chat/completions"])
async def test_every_dialect_of_the_gateway_is_spoken(path, server, agent, controller, asked):
    said = {"/responses": {"input": "hi"}, "/messages": {"max_tokens": 9}}.get(path, {})
    told = agent(lambda body: post(body, path, **said))
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert told[0][0] == 200 and "42" in told[0][1]
    assert len(result.sample.calls) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": "Bearer other"}, 401), ({"x-rollout-id": "r-2"}, 422), ({}, 200)],
)
async def test_keys_and_routing_ids_are_checked(headers, status, server, agent, controller, asked):
    told = agent(lambda body: post(body, headers=headers))
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert told[0][0] == status
    assert len(result.samples["main"].calls) == (status == 200)


async def test_key_of_one_rollout_opens_no_other(server, agent, controller, asked):
    bodies = []

    async def call(body):
        bodies.append(body)
        return await post({**body, "llm_api_key": bodies[0]["llm_api_key"]})

    told = agent(call)
    async with controller(server) as client:
        for name in ("r-1", "r-2"):
            await client.rollout(asked(name))
    assert [status for status, _ in told] == [200, 401]


async def test_calls_after_the_end_are_answered_410(server, agent, controller, asked):
    agent(post)
    async with controller(server) as client:
        result = await client.rollout(asked())
        status, text = await post(server.bodies[-1])
    assert status == 410 and len(result.sample.calls) == 1, text


async def test_call_under_way_at_the_end_is_ended_and_recorded_as_failed(server, agent, asked):
    pending = []

    async def call(body):
        pending.append(asyncio.create_task(post(body)))
        await asyncio.sleep(0.1)

    agent(call)
    with ScriptedPolicy(Endless()) as policy:
        async with ControllerClient(server.url, policy.endpoint) as client:
            result = await client.rollout(asked())
    assert (await pending[0])[0] == 410
    assert result.sample.calls[0].error is not None


async def test_policy_errors_keep_their_status_and_are_recorded(server, agent, asked):
    told = agent(post)
    with ScriptedPolicy(Status(400, "context too long")) as policy:
        async with ControllerClient(server.url, policy.endpoint) as client:
            result = await client.rollout(asked())
    assert told[0][0] == 400 and "context too long" in told[0][1]
    assert "context too long" in result.sample.calls[0].error


async def test_model_and_key_of_the_policy_replace_the_callers(server, agent, asked):
    agent(post)
    with ScriptedPolicy("42", api_key="upstream") as policy:
        endpoint = PolicyEndpoint(policy.base_url, "upstream", "big-model")
        async with ControllerClient(server.url, endpoint) as client:
            await client.rollout(asked())
    (received,) = policy.requests
    assert received.body["model"] == "big-model" and received.rollout_id == "r-1"
    assert received.headers["authorization"] == "Bearer upstream"


async def test_registered_policy_is_started_by_name(server, agent, asked):
    told = agent(post)
    async with ControllerClient(server.url, "demo") as client:
        result = await client.rollout(asked())
    assert told[0][0] == 200 and result.status is RolloutStatus.SUCCESS


async def test_active_rollout_context_is_the_policy_where_none_was_given(
    server, agent, policy, asked
):
    agent(post)
    async with ControllerClient(server.url) as client:
        with policy.rollout():
            await client.rollout(asked())
    assert len(policy.requests) == 1


async def test_unknown_paths_below_a_rollout_are_404(server, agent, controller, asked):
    told = agent(lambda body: post(body, "/nothing"))
    async with controller(server) as client:
        await client.rollout(asked())
    assert told[0][0] == 404
