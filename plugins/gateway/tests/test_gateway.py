import asyncio
import json
import os
import subprocess
import sys
import threading

import anthropic
import httpx2
import openai
import pytest

from osmosis_core import (
    AgentWorkflow,
    ConfigError,
    ExecutionRequest,
    LocalBackend,
    NoActiveRolloutError,
    RolloutContext,
)
from osmosis_core.policy import BASE_URL, agent_scope, async_client, client
from osmosis_core.testing import Delay, ScriptedPolicy, Tool
from osmosis_gateway import Gateway

ASK = [{"role": "user", "content": "hello"}]
BODY = {"model": "m", "messages": ASK}


def post(url, key, path="/chat/completions", **options):
    headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
    return httpx2.post(f"{url}{path}", headers=headers, **{"json": BODY, **options})


def test_calls_belong_to_the_scope_in_which_the_gateway_was_opened():
    with ScriptedPolicy("ok") as policy, policy.rollout("r-1") as rollout:
        with agent_scope("searcher", trainable=False), Gateway() as gateway:
            post(gateway.openai_url, gateway.api_key).raise_for_status()
        assert [(c.sample_id, c.trainable) for c in rollout.calls] == [("searcher", False)]


@pytest.mark.parametrize("name", ["a b/c", "é", "x%20y", "..", "a?b#c"])
def test_any_name_is_a_sample(name):
    with ScriptedPolicy("ok") as policy, policy.rollout("1 é") as rollout, Gateway() as open_:
        where = open_.endpoint(name)
        post(where.openai_url, where.api_key).raise_for_status()
        with agent_scope(name):
            call_in_process()
        assert len({call.sample_id for call in rollout.calls}) == 1


def call_in_process():
    client(httpx2).post(f"{BASE_URL}/chat/completions", json=BODY).raise_for_status()


def test_routing_header_names_a_sample_of_the_agents_own():
    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout, Gateway() as gateway:
        for headers in ({"x-sample-id": "critic"}, {"x-sample-id": "main"}, {}):
            post(gateway.openai_url, gateway.api_key, headers=headers).raise_for_status()
        assert [call.sample_id for call in rollout.calls] == ["critic", "main", "main"]


async def test_call_tells_which_tool_call_started_its_agent():
    with ScriptedPolicy(Tool("delegate"), "done") as policy, policy.rollout() as rollout:
        async with Gateway() as gateway:
            with agent_scope("planner"):
                await async_client(httpx2).post(f"{BASE_URL}/chat/completions", json=BODY)
                where = gateway.endpoint("worker")
            for _ in range(2):
                await asyncio.to_thread(post, where.openai_url, where.api_key)
        assert [call.started_by for call in rollout.calls] == [None, 0, 0]


def test_gateway_needs_a_rollout():
    with pytest.raises(NoActiveRolloutError):
        Gateway()
    with RolloutContext("http://127.0.0.1:1/v1") as rollout:
        gateway = Gateway(rollout)
        with pytest.raises(RuntimeError, match="not open"):
            _ = gateway.openai_url


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "198.51.100.7", "example.invalid"])
def test_only_loopback_is_bound_unless_told(host):
    with RolloutContext("http://127.0.0.1:1/v1"):
        with pytest.raises(ConfigError, match="not loopback"):
            Gateway(host=host)


def test_remote_is_bound_when_told():
    with ScriptedPolicy("ok") as policy, policy.rollout():
        with Gateway(host="0.0.0.0", allow_remote=True) as gateway:
            url = gateway.openai_url.replace("0.0.0.0", "127.0.0.1")
            assert post(url, gateway.api_key).status_code == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages", "/models"])
def test_wrong_key_is_a_401_in_the_callers_dialect(path):
    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout, Gateway() as gateway:
        ask = httpx2.get if path == "/models" else post_without_key
        answer = ask(f"{gateway.openai_url}{path}")
        assert answer.status_code == 401
        assert "wrong API key" in answer.json()["error"]["message"]
        assert ("type" in answer.json()) is (path == "/messages")
        assert rollout.calls == ()


def post_without_key(url):
    return httpx2.post(url, json=BODY, headers={"x-api-key": "sk-osmosis-né".encode()})


def test_one_rollouts_key_does_not_open_another():
    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout:
        with Gateway() as one, Gateway() as other:
            assert post(one.openai_url, other.api_key).status_code == 401
            assert rollout.calls == ()


def test_unknown_rollout_is_a_404_and_an_ended_one_a_410():
    with ScriptedPolicy("ok") as policy, policy.rollout():
        with Gateway() as gateway:
            url, key = gateway.openai_url, gateway.api_key
        assert post(url, key).status_code == 410
        assert post(url, "sk-other").status_code == 401
        assert post(url.replace("~", "~f"), key).status_code == 404


def test_closing_cancels_what_is_in_flight():
    answers = []
    with ScriptedPolicy(Delay("late", before_sec=30)) as policy, policy.rollout() as rollout:
        with Gateway() as gateway:
            url, key = gateway.openai_url, gateway.api_key
            thread = threading.Thread(target=lambda: answers.append(post(url, key, timeout=30)))
            thread.start()
            policy.wait_for_requests(1)
        assert "cancelled" in rollout.calls[0].error
        thread.join(20)
    assert answers[0].status_code == 410


def test_call_whose_body_ends_after_the_rollout_is_not_made():
    def body(gateway):
        yield json.dumps(BODY).encode()
        gateway.__exit__()
        yield b" "

    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout:
        gateway = Gateway().__enter__()
        url, key = gateway.openai_url, gateway.api_key
        assert post(url, key, json=None, content=body(gateway)).status_code == 410
        assert rollout.calls == ()


async def test_blocking_client_on_the_event_loop_is_answered():
    class Blocking(AgentWorkflow):
        async def run(self, ctx):
            async with Gateway() as gateway:
                url, key = gateway.openai_url, gateway.api_key
                with openai.OpenAI(base_url=url, api_key=key) as sdk:
                    sdk.chat.completions.create(model="m", messages=ctx.prompt)

    results = []

    async def keep(result):
        results.append(result)

    with ScriptedPolicy("done") as policy, policy.rollout():
        await LocalBackend(workflow=Blocking).execute(ExecutionRequest("r", ASK), keep)
    assert results[0].status == "success"
    assert results[0].samples["main"].messages[-1]["content"] == "done"


SCRIPT = """
import anthropic, json, openai
ask = [{"role": "user", "content": "hello"}]
with openai.OpenAI() as client:
    chat = client.chat.completions.create(model="m", messages=ask)
    response = client.responses.create(model="m", input="hello")
with anthropic.Anthropic() as client:
    message = client.messages.create(model="m", max_tokens=9, messages=ask)
texts = chat.choices[0].message.content, response.output_text, message.content[0].text
print(json.dumps(texts))
"""


def test_subprocess_finds_its_way_by_the_environment():
    with ScriptedPolicy("1", "2", "3") as policy, policy.rollout() as rollout:
        with Gateway() as gateway:
            proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT],
                env={**os.environ, **proxies, **gateway.env("child")},
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert json.loads(done.stdout or "null") == ["1", "2", "3"], done.stderr
        assert [call.sample_id for call in rollout.calls] == ["child"] * 3


def test_rollout_context_in_a_subprocess_goes_through_the_gateway():
    code = """
import httpx2
from osmosis_core import RolloutContext
from osmosis_core.policy import BASE_URL, agent_scope, client
with RolloutContext():
    for name in ("main", "helper"):
        with agent_scope(name):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            client(httpx2).post(f"{BASE_URL}/chat/completions", json=body).raise_for_status()
"""
    with ScriptedPolicy("ok") as policy, policy.rollout("r-9") as rollout, Gateway() as gateway:
        env = {**os.environ, **gateway.env("child")}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
        assert [call.sample_id for call in rollout.calls] == ["child", "helper"]


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"{not json", 400, "the body is not JSON"),
        (b"[1]", 400, "the body is not a JSON object"),
        (b'{"messages": 3}', 400, "messages is not a list"),
        (b"[" * 200_000, 400, "the body is not JSON"),
        (b" " * (33 * 1024 * 1024), 413, "larger than 33554432 bytes"),
    ],
)
def test_bodies_that_cannot_be_are_refused(content, status, said):
    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout, Gateway() as gateway:
        answer = post(gateway.openai_url, gateway.api_key, json=None, content=content)
        assert (answer.status_code, rollout.calls) == (status, ())
        assert said in answer.json()["error"]["message"]


async def test_keys_stay_out_of_logs_records_and_errors(caplog):
    caplog.set_level("DEBUG")
    with ScriptedPolicy("ok", api_key="sk-policy-secret") as policy, policy.rollout() as rollout:
        async with Gateway() as gateway:
            where, key = gateway.endpoint(), gateway.api_key
            for given in (key, "wrong"):
                answer = await asyncio.to_thread(post, where.openai_url, given)
                assert key not in answer.text and "sk-policy-secret" not in answer.text
        told = caplog.text + repr(rollout.calls) + repr(where) + repr(gateway)
    assert key not in told and "sk-policy-secret" not in told


async def test_a_thousand_calls_of_a_hundred_rollouts_do_not_mix():
    def echo(request):
        return f"{request.rollout_id} {request.body['messages'][-1]['content']}"

    async with (
        openai.AsyncOpenAI(api_key="-") as ours,
        anthropic.AsyncAnthropic(api_key="-") as its,
    ):
        asks = (ours, ask_chat), (ours, ask_responses), (its, ask_messages)
        with ScriptedPolicy(echo) as policy:
            await asyncio.gather(*(crowd_member(policy, f"r{i}", *asks[i % 3]) for i in range(100)))
    assert len(policy.requests) == 1000
    for request in policy.requests:
        assert request.body["messages"][-1]["content"].startswith(f"{request.rollout_id}:")
        assert request.sample_id == request.rollout_id


async def crowd_member(policy, name, client, ask):
    with policy.rollout(name) as rollout:
        async with Gateway() as gateway:
            where = gateway.endpoint(name)
            is_openai = isinstance(client, openai.AsyncOpenAI)
            url = where.openai_url if is_openai else where.anthropic_url
            own = client.with_options(base_url=url, api_key=where.api_key)
            said = [f"{name}:{i}" for i in range(10)]
            answers = await asyncio.gather(*(ask(own, text) for text in said))
            assert answers == [f"{name} {text}" for text in said]
        assert sorted(call.messages[-1]["content"] for call in rollout.calls) == sorted(said)


async def ask_chat(client, text):
    told = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model="m", messages=told)
    return answer.choices[0].message.content


async def ask_responses(client, text):
    return (await client.responses.create(model="m", input=text)).output_text


async def ask_messages(client, text):
    told = [{"role": "user", "content": text}]
    async with client.messages.stream(model="m", max_tokens=9, messages=told) as stream:
        return (await stream.get_final_message()).content[0].text


def test_closed_gateway_gives_no_endpoints_and_is_not_opened_again():
    with ScriptedPolicy("ok") as policy, policy.rollout():
        with Gateway() as gateway:
            pass
        for use in (gateway.endpoint, gateway.__enter__):
            with pytest.raises(RuntimeError, match="the gateway is closed"):
                use()


def test_port_that_does_not_exist_is_refused():
    with RolloutContext("http://127.0.0.1:1/v1"):
        with pytest.raises(ConfigError, match="no port 65536"):
            Gateway(port=65536)
