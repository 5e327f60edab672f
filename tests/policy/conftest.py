"""What the tests of the road to the policy share: clients of every kind, and quick retries."""

import asyncio
import importlib
from types import ModuleType
from typing import Any

import httpx
import pytest

from osmosis_core import PolicyCall, RetryPolicy
from osmosis_core.policy import BASE_URL, async_client, client
from osmosis_core.testing import ScriptedPolicy

QUICK = RetryPolicy(max_attempts=3, base_delay_sec=0.001, max_delay_sec=0.002)
URL = f"{BASE_URL}/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("CHAT_COMPLETIONS_URL", "API_KEY", "ROLLOUT_ID"):
        monkeypatch.delenv(f"OSMOSIS_{name}", raising=False)


@pytest.fixture
def quick() -> RetryPolicy:
    return QUICK


@pytest.fixture(params=["httpx", "httpx2"])
def lib(request) -> ModuleType:
    return importlib.import_module(request.param)


@pytest.fixture
def ask():
    """Post one chat completion, or another request, through the shared asynchronous client."""

    async def ask(*, headers=None, timeout: float = 20.0, lib=httpx, **body: Any):
        body = {"model": "m", "messages": HI, **body}
        return await async_client(lib).post(URL, json=body, headers=headers, timeout=timeout)

    return ask


@pytest.fixture(params=["async", "sync"])
def post(request, lib, ask):
    """As `ask`, for each of the four clients; the synchronous ones in a thread."""

    async def post(*, headers=None, **body: Any):
        if request.param == "async":
            return await ask(headers=headers, lib=lib, **body)
        body = {"model": "m", "messages": HI, **body}
        return await asyncio.to_thread(
            client(lib).post, URL, json=body, headers=headers, timeout=20.0
        )

    return post


@pytest.fixture
def call(ask):
    """The record of one call to a policy with this script."""

    async def call(*script, api_key: str | None = None, body=None, **options: Any) -> PolicyCall:
        options = {"retry": QUICK, **options}
        with (
            ScriptedPolicy(*script, api_key=api_key) as policy,
            policy.rollout("r", **options) as rollout,
        ):
            await ask(**(body or {}))
        return rollout.calls[0]

    return call
