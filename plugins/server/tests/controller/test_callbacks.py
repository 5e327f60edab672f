"""The callback protocols against a server written from protocol.md 1.3 to 1.6."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from osmosis_core import RolloutErrorCategory, RolloutStatus

COMMON = {"rollout_id", "initial_messages", "label", "metadata", "chat_completions_url"} | {
    "controller_api_key",
    "completion_callback_url",
    "grader_callback_url",
    "agent_timeout_sec",
    "grader_timeout_sec",
    "extra_fields",
}
WIRE = {"multi-sample": COMMON, "single-sample": COMMON | {"llm_api_key"}}
ACCEPTS = {"multi-sample": 200, "single-sample": 202}


@pytest.fixture(params=["multi-sample", "single-sample"])
def protocol(request):
    return request.param


@pytest.fixture
def serving(server, protocol):
    """A server that runs `script(body)` once it has accepted."""

    def serve(script):
        async def submit(request):
            server.later(script(server.bodies[-1]))
            return web.json_response({}, status=ACCEPTS[protocol])

        server.on["rollout"] = submit
        return server

    return serve


@pytest.fixture
def graded(server, protocol):
    """The members of a grader callback that carry samples."""

    def samples(reward=1.0):
        sample = server.sample(reward)
        is_single = protocol == "single-sample"
        return {"sample": sample} if is_single else {"samples": {"main": {"id": "main", **sample}}}

    return samples


@pytest.fixture
def well(server, graded, protocol):
    """What an agent and a grader do when all goes well."""

    async def script(body):
        headers = {"x-rollout-id": body["rollout_id"], "x-sample-id": "main"}
        await server.agent(body, **(headers if protocol == "multi-sample" else {}))
        await server.call_back(body, "completion")
        await server.call_back(body, "grader", **graded())

    return script


async def test_result_has_reward_and_recorded_calls(serving, well, protocol, controller, asked):
    async with controller(server := serving(well), protocol=protocol) as client:
        result = await client.rollout(asked())
    assert (result.status, result.sample.reward) == (RolloutStatus.SUCCESS, 1.0)
    assert [call.answer["content"] for call in result.sample.calls] == ["42"]
    assert server.bodies[0].keys() == WIRE[protocol]


async def test_key_of_the_policy_takes_no_callbacks(server, controller, asked):
    told = []

    async def submit(request):
        body = server.bodies[-1]
        told.append(await server.post(body["completion_callback_url"], body["llm_api_key"], {}))
        server.later(server.call_back(body, "grader", status="failure"))
        return web.json_response({}, status=202)

    server.on["rollout"] = submit
    async with controller(server, protocol="single-sample") as client:
        await client.rollout(asked())
    assert told == [(401, {"detail": "Unauthorized"})]


async def test_calls_of_several_samples_go_to_each(server, controller, asked):
    async def script(body):
        for name in ("judge", "my agent"):
            await server.agent(body, **{"x-rollout-id": body["rollout_id"], "x-sample-id": name})
        samples = {name: server.sample(0.5, id=name) for name in ("judge", "my agent")}
        await server.call_back(body, "completion")
        await server.call_back(body, "grader", samples=samples)

    async def submit(request):
        server.later(script(server.bodies[-1]))
        return web.json_response({})

    server.on["rollout"] = submit
    async with controller(server, protocol="multi-sample") as client:
        result = await client.rollout(asked())
    assert {name: len(s.calls) for name, s in result.samples.items()} == {
        "judge": 1,
        "my%20agent": 1,
    }


async def test_grader_callback_that_comes_first_ends_the_rollout(
    serving, server, graded, protocol, controller, asked
):
    told = []

    async def script(body):
        told.append(await server.call_back(body, "grader", **graded()))
        told.append(await server.call_back(body, "completion"))

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
        await asyncio.sleep(0.1)
    assert result.sample.reward == 1.0 and told == [(200, {"ok": True})] * 2


async def test_repeated_callbacks_get_the_first_ones_answer_and_change_nothing(
    serving, server, graded, protocol, controller, asked, caplog
):
    told, done = [], asyncio.Event()

    async def script(body):
        for reward in (1.0, 1.0, 0.0):
            told.append(await server.call_back(body, "grader", **graded(reward)))
        done.set()

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
        await done.wait()
    assert result.sample.reward == 1.0 and told == [(200, {"ok": True})] * 3
    assert caplog.text.count("unlike the first") == 1


async def test_nothing_is_acknowledged_before_it_is_recorded(
    serving, server, graded, protocol, controller, asked
):
    order = []

    async def script(body):
        order.append((await server.call_back(body, "grader", **graded()))[0])
        order.append((await server.call_back(body, "grader", **graded()))[0])

    async def record(request, result):
        order.append(f"recorded {result.sample.reward}")
        if len(order) == 1:
            raise OSError("disk full")

    async with controller(serving(script), protocol=protocol, record=record) as client:
        await client.rollout(asked())
        await asyncio.sleep(0.1)
    assert order == ["recorded 1.0", 500, "recorded 1.0", 200]


@pytest.mark.parametrize(
    ("change", "status", "detail"),
    [
        ({"rollout_id": "r-2"}, 422, "rollout_id mismatch"),
        ({"status": "pending"}, 422, "grader callback status must be terminal"),
        ({"status": "success", "sample": 3, "samples": 3}, 422, "grader callback: "),
    ],
)
async def test_malformed_callback_is_refused_and_ends_nothing(
    change, status, detail, serving, server, well, protocol, controller, asked
):
    told = []

    async def script(body):
        told.append(await server.call_back(body, "grader", **change))
        await well(body)

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
    assert told[0][0] == status and told[0][1]["detail"].startswith(detail)
    assert result.status is RolloutStatus.SUCCESS


@pytest.mark.parametrize(
    ("segment", "keyed_as", "status", "detail"),
    [
        ("r-9", "r-9", 404, "unknown rollout_id"),
        ("a%2Fb", "a/b", 422, "invalid rollout_id"),
        ("r-1", "r-9", 401, "Unauthorized"),
    ],
)
async def test_callback_of_no_rollout_here_is_refused(
    segment, keyed_as, status, detail, serving, server, well, controller, asked, protocol
):
    async with controller(serving(well), protocol=protocol) as client:
        await client.rollout(asked())
        key = client._registry.keys.callbacks(keyed_as, "0")
        base = server.bodies[0]["grader_callback_url"].removesuffix("r-1/grader")
        headers = {"authorization": f"Bearer {key}"}
        from yarl import URL

        url = URL(f"{base}{segment}/grader", encoded=True)
        async with aiohttp.ClientSession() as session:
            async with session.post(url, json={"status": "success"}, headers=headers) as response:
                told = response.status, (await response.json())["detail"]
    assert told == (status, detail)


async def test_callbacks_of_an_earlier_rollout_with_the_same_id_change_nothing(
    serving, server, graded, well, protocol, controller, asked
):
    told = []

    async def script(body):
        if len(server.bodies) == 2:
            late = server.bodies[0]
            told.append(await server.call_back(late, "grader", **graded(0.0)))
            told.append((await server.agent(late, **{"x-rollout-id": "r-1"}))[0])
            await well(body)
        else:
            await server.call_back(body, "completion")

    async with controller(serving(script), protocol=protocol) as client:
        await client.rollout(asked(grade=False))
        server.bodies[0]["grader_callback_url"] = server.bodies[0][
            "completion_callback_url"
        ].replace("/completion", "/grader")
        result = await client.rollout(asked())
    assert told == [(200, {"ok": True}), 410]
    assert (result.sample.reward, len(result.sample.calls)) == (1.0, 1)


async def test_failed_workflow_whose_grader_is_never_reported_fails_with_its_reason(
    serving, server, protocol, controller, asked, monkeypatch
):
    monkeypatch.setattr("osmosis_server.controller.callbacks._SETTLE_SEC", 0.1)

    async def script(body):
        said = {"err_message": "boom", "err_category": "agent_error"}
        await server.call_back(body, "completion", status="failure", **said)

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
    assert (result.err_message, result.err_category) == ("boom", "agent_error")


async def test_failed_workflow_keeps_its_reason_when_the_grader_gives_none(
    serving, server, protocol, controller, asked
):
    async def script(body):
        said = {"err_message": "boom", "err_category": "agent_error"}
        await server.call_back(body, "completion", status="failure", **said)
        await server.call_back(body, "grader", status="failure")

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
    assert (result.err_message, result.err_category) == ("boom", "agent_error")


async def test_failure_without_any_reason_says_what_that_may_mean(
    serving, server, protocol, controller, asked
):
    async def script(body):
        await server.call_back(body, "completion")
        await server.call_back(body, "grader", status="failure")

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked())
    assert "no grader ran" in result.err_message


async def test_ungraded_rollout_ends_with_its_completion(
    serving, server, protocol, controller, asked
):
    async def script(body):
        await server.agent(body, **{"x-rollout-id": body["rollout_id"]})
        await server.call_back(body, "completion")

    async with controller(serving(script), protocol=protocol) as client:
        result = await client.rollout(asked(grade=False))
    assert server.bodies[0]["grader_callback_url"] is None
    assert len(result.sample.calls) == 1 and result.sample.trainable


async def test_rollout_without_callbacks_ends_at_its_deadline_and_is_cancelled(
    serving, protocol, controller, asked
):
    from osmosis_server.controller import ControllerLimits

    async def script(body):
        pass

    limits = ControllerLimits(grace_sec=0.1)
    async with controller(server := serving(script), protocol=protocol, limits=limits) as client:
        result = await client.rollout(asked(agent_timeout_sec=0.1, grader_timeout_sec=0.1))
    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert "no result within 0.3 s" in result.err_message
    assert "POST /rollout/cancel" in server.paths


async def test_lost_answer_is_forgiven_when_the_rollout_shows_up(
    server, well, protocol, controller, asked
):
    async def submit(request):
        server.later(well(server.bodies[-1]))
        request.transport.close()
        return web.Response()

    server.on["rollout"] = submit
    async with controller(server, protocol=protocol) as client:
        result = await client.rollout(asked())
    assert result.status is RolloutStatus.SUCCESS and len(server.bodies) == 1


async def test_lost_answer_without_a_sign_of_life_fails_and_is_submitted_nowhere_else(
    server, tiny, protocol, controller, asked
):
    async def submit(request):
        request.transport.close()
        return web.Response()

    server.on["rollout"] = submit
    other = await tiny()
    async with controller(server, other, protocol=protocol) as client:
        result = await client.rollout(asked())
    assert "nothing was heard of it" in result.err_message
    assert len(server.bodies) == 1 and other.bodies == []


async def test_polled_server_is_told_apart(server, controller, asked):
    async def submit(request):
        return server.lease()

    server.on["rollout"] = submit
    async with controller(server, protocol="single-sample") as client:
        result = await client.rollout(asked())
    assert "use protocol 'polling'" in result.err_message


async def test_acknowledgement_may_report_the_calls(
    serving, server, graded, protocol, controller, asked
):
    told = []

    async def script(body):
        await server.agent(body, **{"x-rollout-id": body["rollout_id"]})
        told.append((await server.call_back(body, "grader", **graded()))[1])

    async with controller(serving(script), protocol=protocol, reports_calls=True) as client:
        await client.rollout(asked())
        await asyncio.sleep(0.1)
    (metrics,) = told[0]["trajectory"]["samples"]["main"]["llm_call_metrics"]
    assert metrics["prompt_tokens"] > 0 and metrics["completion_tokens"] == 2
