"""The polling protocol against a server written from protocol.md 1.8."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from aiohttp import web

from osmosis_core import RolloutErrorCategory, RolloutStatus

WIRE = {"rollout_id", "initial_messages", "label", "metadata", "chat_completions_url"} | {
    "llm_api_key",
    "grade",
    "agent_timeout_sec",
    "grader_timeout_sec",
    "extra_fields",
}


@pytest.fixture
def serving(server):
    """A server that accepts, lets an agent call once, and then answers with what is given."""

    def serve(*first, **said):
        answers = iter(first)

        async def submit(request):
            return server.lease()

        async def result(request):
            for answer in answers:
                return answer() if callable(answer) else answer
            await server.agent(server.bodies[-1])
            return server.result(**{"sample": server.sample(), **said})

        server.on |= {"rollout": submit, "result": result}
        return server

    return serve


async def test_result_has_the_sample_with_its_recorded_calls(serving, controller, asked):
    async with controller(serving()) as client:
        result = await client.rollout(asked())
    assert (result.status, result.sample.reward, result.sample.id) == ("success", 1.0, "main")
    (call,) = result.sample.calls
    assert (call.rollout_id, call.answer["content"]) == ("r-1", "42")


async def test_submission_has_the_documented_fields_and_a_lease_of_our_choice(
    serving, controller, asked
):
    async with controller(server := serving(), api_key="k") as client:
        await client.rollout(asked(metadata={"a": 1}, extra_fields={"row": 2}))
    assert server.bodies[0].keys() == WIRE
    assert server.headers[0]["authorization"] == "Bearer k"
    assert len(server.headers[0]["x-osmosis-rollout-lease"]) >= 32


@pytest.mark.parametrize("wait", [None, "soon", [30]])
async def test_lease_without_a_time_is_a_failed_rollout(wait, server, controller, asked):
    async def submit(request):
        return server.lease(polling_lease_timeout_sec=wait)

    server.on["rollout"] = submit
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert (result.status, result.err_category) == ("failure", "internal_error")
    assert "does not speak the polling protocol" in result.err_message


async def test_reward_of_a_failure_is_none(serving, controller, asked):
    said = {"status": "failure", "err_message": "boom", "err_category": "agent_error"}
    async with controller(serving(**said)) as client:
        result = await client.rollout(asked())
    assert (result.err_message, result.err_category) == ("boom", "agent_error")
    assert result.sample.reward is None and len(result.sample.calls) == 1


async def test_failure_without_a_sample_keeps_what_the_wire_knows(serving, controller, asked):
    said = {"status": "failure", "err_message": "boom", "sample": None}
    async with controller(serving(**said)) as client:
        result = await client.rollout(asked())
    assert result.sample.messages[-1]["content"] == "42"


@pytest.mark.parametrize("status", ["queued", "running", "grading"])
async def test_unfinished_answers_are_followed_by_another_poll(status, serving, controller, asked):
    server = serving()
    polls = itertools.count()
    finish = server.on["result"]

    async def result(request):
        return server.result(status=status) if next(polls) < 3 else await finish(request)

    server.on["result"] = result
    async with controller(server) as client:
        assert (await client.rollout(asked())).status is RolloutStatus.SUCCESS


async def test_polls_survive_proxies_that_answer_502_and_503(serving, controller, asked):
    bad = [web.Response(status=502), web.Response(status=503)]
    async with controller(serving(*bad)) as client:
        assert (await client.rollout(asked())).status is RolloutStatus.SUCCESS


async def test_polls_end_when_the_lease_cannot_hold_any_longer(serving, controller, asked):
    server = serving()

    async def submit(request):
        return server.lease(polling_lease_timeout_sec=11.5)

    async def result(request):
        return web.Response(status=502)

    server.on |= {"rollout": submit, "result": result}
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert "its result cannot be read: 502" in result.err_message
    assert result.err_category is RolloutErrorCategory.HTTP_ERROR


@pytest.mark.parametrize(("status", "detail"), [(404, "unknown rollout_id"), (403, "invalid")])
async def test_a_refused_poll_is_final(status, detail, serving, controller, asked):
    refusal = web.json_response({"detail": detail}, status=status)
    async with controller(server := serving(refusal)) as client:
        result = await client.rollout(asked())
    assert f"{status} {detail}" in result.err_message
    assert sum("result" in path for path in server.paths) == 1


async def test_expired_lease_is_a_failure_of_that_category(serving, controller, asked):
    said = {"err_message": "polling lease expired", "err_category": "lease_expired"}
    async with controller(serving(status="failure", sample=None, **said)) as client:
        result = await client.rollout(asked())
    assert result.err_category is RolloutErrorCategory.LEASE_EXPIRED


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"rollout_id": "r-2"}, "another rollout's"),
        ({"status": "done"}, "'done' is not a valid"),
        ({"sample": {"reward": "high"}}, "reward"),
        ({"sample": []}, "not an object"),
    ],
)
async def test_malformed_result_is_a_failure_that_says_what_is_wrong(
    said, why, serving, controller, asked
):
    async with controller(serving(**said)) as client:
        result = await client.rollout(asked())
    assert result.status is RolloutStatus.FAILURE and why in result.err_message


async def test_lost_202_is_asked_again_with_the_same_id_and_token(serving, controller, asked):
    server, submissions = serving(), itertools.count()

    async def submit(request):
        token = server.headers[-1]["x-osmosis-rollout-lease"]
        if next(submissions) == 0:
            request.transport.close()
            return web.Response()
        return server.lease(token)

    server.on["rollout"] = submit
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert result.status is RolloutStatus.SUCCESS
    tokens = {headers["x-osmosis-rollout-lease"] for headers in server.headers}
    assert len(server.bodies) == 2 and len(tokens) == 1 and server.bodies[0] == server.bodies[1]


async def test_slow_202_is_asked_again_too(serving, controller, asked):
    server, submissions = serving(), itertools.count()

    async def submit(request):
        if next(submissions) == 0:
            await asyncio.sleep(1)
        return server.lease()

    server.on["rollout"] = submit
    async with controller(server) as client:
        assert (await client.rollout(asked())).status is RolloutStatus.SUCCESS


async def test_lost_202_of_a_server_that_chose_the_token_fails_and_goes_nowhere_else(
    serving, tiny, controller, asked
):
    server, other, submissions = serving(), await tiny(), itertools.count()

    async def submit(request):
        if next(submissions) == 0:
            request.transport.close()
        return web.json_response({"detail": "rollout_id is already registered"}, status=409)

    server.on["rollout"] = submit
    async with controller(server, other) as client:
        result = await client.rollout(asked())
    assert "may have the rollout" in result.err_message and "409" in result.err_message
    assert other.bodies == [] and "POST /rollout/cancel" not in server.paths


async def test_a_server_of_another_protocol_is_told_apart(server, controller, asked):
    async def submit(request):
        return web.json_response({})

    server.on["rollout"] = submit
    async with controller(server) as client:
        result = await client.rollout(asked())
    assert "speaks another protocol" in result.err_message
    assert "POST /rollout/cancel" in server.paths
