"""What a container can ask of its relay, and what it cannot."""

import tempfile
from pathlib import Path

import aiohttp
import pytest

from osmosis_core.testing import ScriptedPolicy, Status
from osmosis_harbor.relay import Relay

ASKED = {"model": "any", "messages": [{"role": "user", "content": "6 * 7?"}]}


@pytest.fixture
async def asked():
    """A relay in front of a policy with a key, and a client at its socket."""
    with tempfile.TemporaryDirectory() as folder, ScriptedPolicy("42", Status(400)) as policy:
        policy.api_key = "sk-secret"
        context = policy.rollout("r-1")
        context.api_key = "sk-secret"
        socket = Path(folder, "relay.sock")
        connector = aiohttp.UnixConnector(path=str(socket))
        async with Relay(socket, context, b'{"job": 1}') as relay:
            async with aiohttp.ClientSession("http://relay", connector=connector) as client:
                yield relay, context, client


async def test_policy_call_is_made_with_the_hosts_key_and_recorded_there(asked):
    _, context, client = asked
    headers = {"x-sample-id": "sp%C3%A4her", "authorization": "Bearer forged"}
    async with client.post("/v1/chat/completions", json=ASKED, headers=headers) as answer:
        assert (await answer.json())["choices"][0]["message"]["content"] == "42"
        assert "sk-secret" not in str(answer.headers)
    (call,) = context.calls
    assert (call.sample_id, call.rollout_id, call.error) == ("sp%C3%A4her", "r-1", None)


async def test_refused_call_is_an_error_in_the_container_too(asked):
    _, context, client = asked
    for status in (200, 400):
        async with client.post("/v1/chat/completions", json=ASKED) as answer:
            assert answer.status == status
    assert [call.error is None for call in context.calls] == [True, False]


@pytest.mark.parametrize(
    "method, path", [("GET", "/v1/models"), ("POST", "/v1/files"), ("GET", "/result")]
)
async def test_nothing_else_is_passed_on(method, path, asked):
    _, context, client = asked
    async with client.request(method, path) as answer:
        assert answer.status in (404, 405)
    assert context.calls == ()


async def test_job_is_given_and_only_the_first_result_is_taken(asked):
    relay, _, client = asked
    async with client.get("/job") as answer:
        assert await answer.json() == {"job": 1}
    for body, status in (("first", 200), ("second", 409)):
        async with client.post("/result", data=body) as answer:
            assert answer.status == status
    assert relay.result == b"first"


async def test_sample_id_that_is_too_long_is_refused(asked):
    _, context, client = asked
    headers = {"x-sample-id": "x" * 257}
    async with client.post("/v1/chat/completions", json=ASKED, headers=headers) as answer:
        assert answer.status == 400
    assert context.calls == ()
