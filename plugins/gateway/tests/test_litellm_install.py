"""`osmosis-gateway[litellm]`, installed in a clean environment: quiet and offline.

It has an environment of its own because LiteLLM holds openai below 3.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).parent / "uv"

CALLS = """
import asyncio, os, sys

def loopback_only(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "127.0.0.1", b"127.0.0.1"):
        raise SystemExit(f"name resolution of {args[0]!r}")
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        raise SystemExit(f"connection to {args[1]!r}")

sys.addaudithook(loopback_only)

from osmosis_core import RetryPolicy, RolloutContext
from osmosis_core.policy import WireRequest, bound_headers, exchange
from osmosis_core.testing import ScriptedPolicy, Status, Tool
from osmosis_gateway import litellm_policy
import json

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

async def ask(rollout, **more):
    body = {"messages": [{"role": "user", "content": "hi"}], **more}
    headers = bound_headers(rollout, "main")
    request = WireRequest("POST", "/chat/completions", headers, json.dumps(body).encode())
    answer = await exchange(request)
    return answer.status, json.loads(answer.body), answer.headers.get("retry-after")

async def main():
    script = "hello", Tool("add", {"a": 1}), Status(429, "slow", retry_after="3")
    with ScriptedPolicy(*script, api_key="sk-upstream") as upstream:
        os.environ.update(OPENAI_API_BASE=upstream.base_url, OPENAI_API_KEY="sk-upstream")
        async with litellm_policy("openai/big") as endpoint:
            once = RetryPolicy(max_attempts=1)
            rollout = RolloutContext(endpoint.base_url, endpoint.api_key, model="m", retry=once)
            _, said, _ = await ask(rollout)
            assert said["choices"][0]["message"]["content"] == "hello", said
            _, said, _ = await ask(rollout, tools=[TOOL])
            (call,) = said["choices"][0]["message"]["tool_calls"]
            assert call["function"]["name"] == "add", said
            status, said, retry_after = await ask(rollout, stream=False)
            assert (status, retry_after) == (429, "3"), said
            status, said, _ = await ask(rollout, api_base="http://127.0.0.1:9/")
            assert status == 400 and "not told api_base" in said["error"]["message"], said
        assert [request.body["model"] for request in upstream.requests] == ["big"] * 3
        assert "LEAKED" not in os.environ

asyncio.run(main())
"""


def run(*command, cwd):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON", "VIRT"))}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python in a project with a `.env`, with the extra."""
    folder = tmp_path_factory.mktemp("litellm")
    (folder / ".env").write_text("LEAKED=1\n")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    requirements = (ROOT, f"{ROOT / 'plugins' / 'gateway'}[litellm]")
    run(UV, "pip", "install", "--quiet", "--python", python, *requirements, cwd=folder)
    return python


def test_litellm_is_a_policy_quiet_and_offline(python):
    done = run(python, "-c", CALLS, cwd=python.parents[2])
    assert (done.stdout, done.stderr) == ("", "")
