"""A shared client finds the rollout and sample of each call, whatever made it and wherever."""

import asyncio
import copy
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import httpx
import httpx2
import pytest

from osmosis_core import PolicyNotBoundError, RolloutContext
from osmosis_core.policy import BASE_URL, agent_scope, async_client, bound_headers, client, wire
from osmosis_core.testing import Delay, ScriptedPolicy

CHAT = f"{BASE_URL}/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SHARED = async_client(httpx)


async def test_call_goes_to_the_active_rollout_with_its_key_and_labels(post):
    with ScriptedPolicy("hello", api_key="k1") as policy, policy.rollout("r1"):
        with agent_scope("solver"):
            answer = await post()
    (received,) = policy.requests
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert received.headers["authorization"] == "Bearer k1"
    assert (received.rollout_id, received.sample_id) == ("r1", "solver")


async def test_headers_of_the_client_above_stay_off_the_wire(post):
    own = {
        "Authorization": "Bearer sdk-key",
        "User-Agent": "AsyncOpenAI/Python 3",
        "X-Stainless-Retry-Count": "0",
        "OpenAI-Organization": "org",
        "X-Custom": "kept",
    }
    with ScriptedPolicy() as policy, policy.rollout("r"):
        await post(headers=own)
    sent = policy.requests[0].headers
    assert "authorization" not in sent and sent["user-agent"] == "osmosis-core"
    assert not [name for name in sent if name.startswith(("x-stainless", "openai", "x-osmosis"))]
    assert sent["x-custom"] == "kept"


async def test_call_without_a_scope_belongs_to_main(call):
    assert (await call()).sample_id == "main"


async def test_scopes_nest_and_the_inner_one_wins(ask):
    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        with agent_scope("outer", trainable=False):
            with agent_scope("inner"):
                await ask()
            await ask()
        await ask()
    assert [c.sample_id for c in rollout.calls] == ["inner", "outer", "main"]
    assert [c.trainable for c in rollout.calls] == [True, False, True]
    assert [r.sample_id for r in policy.requests] == ["inner", "outer", "main"]


async def test_rollouts_nest_and_the_outer_one_returns(ask):
    with ScriptedPolicy() as policy, policy.rollout("outer"):
        async with policy.rollout("inner"):
            await ask()
        await ask()
    assert [r.rollout_id for r in policy.requests] == ["inner", "outer"]


async def test_fifty_concurrent_rollouts_share_one_client_without_mixing(lib):
    async def rollout(number: int, policy: ScriptedPolicy) -> None:
        with RolloutContext(policy.base_url, policy.api_key, f"r{number}") as context:
            for turn in range(3):
                with agent_scope(f"agent-{number}-{turn}"):
                    await async_client(lib).post(CHAT, json=BODY)
            assert [c.error for c in context.calls] == [None] * 3

    async with AsyncExitStack() as stack:
        policies = [
            ScriptedPolicy(Delay("hi", before_sec=0.01), api_key=f"key-{n}") for n in range(5)
        ]
        for policy in policies:
            await stack.enter_async_context(policy)
        await asyncio.gather(*(rollout(n, policies[n % 5]) for n in range(50)))
    for n, policy in enumerate(policies):
        assert {r.rollout_id for r in policy.requests} == {f"r{i}" for i in range(n, 50, 5)}
        assert all(r.sample_id.startswith(f"agent-{r.rollout_id[1:]}-") for r in policy.requests)


def test_client_works_on_one_event_loop_after_another():
    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        for _ in range(5):
            asyncio.run(SHARED.post(CHAT, json=BODY))
    assert [c.error for c in rollout.calls] == [None] * 5


@pytest.mark.parametrize("shared", [async_client(httpx), async_client(httpx2)])
def test_client_works_on_event_loops_in_parallel_threads(shared):
    async def work(number: int) -> int:
        with policy.rollout(f"r{number}"):
            answers = await asyncio.gather(*(shared.post(CHAT, json=BODY) for _ in range(4)))
        return sum(answer.status_code == 200 for answer in answers)

    with ScriptedPolicy() as policy, ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda n: asyncio.run(work(n)), range(24)))
    gc.collect()  # an unclosed session would warn now, and a warning is an error
    assert counts == [4] * 24


def test_session_is_closed_with_its_loop():
    async def work() -> None:
        await SHARED.post(CHAT, json=BODY)
        loops.append(asyncio.get_running_loop())
        sessions.append(await wire.session())

    loops: list[asyncio.AbstractEventLoop] = []
    sessions: list = []
    with ScriptedPolicy() as policy, policy.rollout():
        asyncio.run(work())
    assert sessions[0].closed
    keys = list(wire._sessions)
    assert loops[0] not in [loop for loop, _ in keys]


def test_synchronous_client_works_from_parallel_threads(lib):
    def work(number: int) -> None:
        with policy.rollout(f"r{number}"), agent_scope(f"a{number}"):
            client(lib).post(CHAT, json=BODY)

    with ScriptedPolicy() as policy, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    pairs = {(r.rollout_id, r.sample_id) for r in policy.requests}
    assert pairs == {(f"r{n}", f"a{n}") for n in range(16)}


async def test_bound_headers_beat_the_context_variables(post):
    with ScriptedPolicy() as bound, ScriptedPolicy() as active, active.rollout("active"):
        context = bound.rollout("bound")
        await post(headers=bound_headers(context, "helper", trainable=False))
    (received,) = bound.requests
    assert (received.rollout_id, received.sample_id) == ("bound", "helper")
    assert not context.calls[0].trainable and not active.requests
    assert not [name for name in received.headers if "binding" in name]


async def test_bound_headers_work_outside_a_rollout(ask):
    with ScriptedPolicy() as policy:
        context = policy.rollout("r")
        await ask(headers=bound_headers(context, "main"))
    assert context.calls[0].received


@pytest.mark.parametrize("name", ["my agent", "größe/天", "a\nb", "plain", "50%25"])
async def test_bound_headers_name_the_sample_that_agent_scope_names(ask, name):
    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        await ask(headers=bound_headers(rollout, name))
        with agent_scope(name):
            await ask()
    first, second = policy.requests
    assert first.sample_id == second.sample_id == rollout.calls[0].sample_id
    assert first.sample_id.isascii() and first.sample_id.isprintable()


async def test_binding_to_a_rollout_that_is_gone_is_an_error(ask):
    headers = bound_headers(RolloutContext("http://127.0.0.1:1/v1"), "main")
    gc.collect()
    with pytest.raises(PolicyNotBoundError):
        await ask(headers=headers)


async def test_call_outside_a_rollout_raises_with_a_way_out(post):
    with pytest.raises(PolicyNotBoundError, match=r"with RolloutContext\(chat_completions_url"):
        await post()


async def test_closing_the_shared_client_changes_nothing(lib):
    with ScriptedPolicy() as policy, policy.rollout() as rollout:
        for _ in range(2):
            async with async_client(lib) as shared:
                await shared.post(CHAT, json=BODY)
            await shared.aclose()
            with client(lib) as blocking:
                await asyncio.to_thread(blocking.post, CHAT, json=BODY)
            blocking.close()
    assert [c.error for c in rollout.calls] == [None] * 4


def test_there_is_one_client_per_library_also_after_copying(lib):
    for make in (async_client, client):
        assert make(lib) is make(lib) is copy.deepcopy(make(lib))
    assert async_client() is async_client(httpx)
    assert isinstance(async_client(lib), lib.AsyncClient) and isinstance(client(lib), lib.Client)


async def test_rollout_id_outside_ascii_is_percent_encoded_on_the_wire(ask):
    with ScriptedPolicy() as policy, policy.rollout("lauf-ä 天") as rollout:
        await ask()
    assert policy.requests[0].rollout_id == "lauf-%C3%A4%20%E5%A4%A9"
    assert rollout.calls[0].rollout_id == "lauf-ä 天"


async def test_rollout_without_an_id_sends_no_rollout_header(ask):
    with ScriptedPolicy() as policy, policy.rollout():
        await ask()
    assert policy.requests[0].rollout_id is None


async def test_missing_url_is_a_failed_call_that_names_the_setting(post):
    with RolloutContext() as rollout:
        answer = await post()
    assert answer.status_code == 502
    assert "OSMOSIS_CHAT_COMPLETIONS_URL" in answer.json()["error"]["message"]
    assert rollout.calls[0].error == answer.json()["error"]["message"]
    assert rollout.calls[0].attempts == []


async def test_url_and_key_come_from_the_environment(ask, monkeypatch):
    with ScriptedPolicy(api_key="from-env") as policy:
        monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", policy.base_url)
        monkeypatch.setenv("OSMOSIS_API_KEY", "from-env")
        monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "env-1")
        with RolloutContext():
            assert (await ask()).status_code == 200
    assert policy.requests[0].rollout_id == "env-1"


@pytest.mark.parametrize(("model", "on_wire"), [(None, "osmosis-rollout"), ("qwen", "qwen")])
async def test_model_on_the_wire_is_the_rollouts(ask, model, on_wire):
    with ScriptedPolicy() as policy, policy.rollout(model=model) as rollout:
        await ask(model="openai/gpt-99")
    assert policy.requests[0].body["model"] == rollout.calls[0].request["model"] == on_wire


async def test_trailing_slash_and_prefix_of_the_base_url_are_kept_right(ask):
    with ScriptedPolicy() as policy, RolloutContext(policy.base_url + "/", rollout_id="r"):
        assert (await ask()).status_code == 200


async def test_chunked_request_of_the_client_above_is_sent_whole():
    async def pieces():
        yield b'{"model":"m","messages"'
        yield b":[]}"

    with ScriptedPolicy() as policy, policy.rollout():
        answer = await SHARED.post(CHAT, content=pieces())
    assert answer.status_code == 200 and policy.requests[0].body["messages"] == []


async def test_cookies_of_one_rollout_never_reach_another(ask):
    class Sticky(ScriptedPolicy):
        async def respond(self, request, body):
            response = await super().respond(request, body)
            response.set_cookie("session", "first")
            return response

    with Sticky() as policy:
        url = policy.base_url.replace("127.0.0.1", "localhost")
        for rollout_id in ("a", "b"):
            with RolloutContext(url, rollout_id=rollout_id):
                await ask()
    assert len(policy.requests) == 2
    assert "cookie" not in policy.requests[1].headers


async def test_other_requests_are_forwarded_and_not_recorded(lib):
    with ScriptedPolicy(api_key="k") as policy, policy.rollout() as rollout:
        answer = await async_client(lib).get(f"{BASE_URL}/models?limit=1")
    assert answer.status_code == 404 and rollout.calls == ()


async def test_proxy_settings_of_the_environment_are_ignored(call, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await call()).received
