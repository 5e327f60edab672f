"""The controller drives servers of the published SDK, each version in an environment of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osmosis_core import ExecutionRequest, RolloutErrorCategory, RolloutStatus
from osmosis_gateway.serving import listen
from osmosis_server import ControllerClient, ControllerLimits

UV = Path(sys.executable).parent / "uv"
FOREIGN = ("OSMOSIS_", "PYTHON", "VIRT", "LITELLM", "OPENAI")
VERSIONS = {"0.3.7": "polling", "0.3.0": "single-sample", "0.2.31": "multi-sample"}
KEYED = ("0.3.7",)
"""Servers that can be given a key."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVER = """
import asyncio, sys
import httpx, uvicorn
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, RolloutSample
from osmosis_ai.rollout import get_rollout_context
from osmosis_ai.rollout.context import SampleSource

class Said(SampleSource):
    def __init__(self, messages):
        self.messages = messages
    async def get_sample(self, *name):
        return RolloutSample(**({"id": name[0]} if name else {}), messages=self.messages)

class Asks(AgentWorkflow):
    async def run(self, ctx):
        order = (ctx.metadata or {}).get("order")
        if order == "fail":
            raise ValueError("told to fail")
        if order == "sleep":
            await asyncio.sleep(60)
        rollout = get_rollout_context()
        headers = {"authorization": f"Bearer {rollout.api_key}"}
        if PLURAL:
            headers |= {"x-rollout-id": rollout.rollout_id, "x-sample-id": "asks"}
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            answer = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                json={"model": "openai/osmosis-rollout", "messages": ctx.prompt},
                headers=headers,
            )
        answer.raise_for_status()
        said = Said([*ctx.prompt, answer.json()["choices"][0]["message"]])
        rollout.register_sample_source("asks", said) if PLURAL else rollout.set_sample_source(said)

class Equals(Grader):
    async def grade(self, ctx):
        if PLURAL:
            for name, sample in ctx.samples.items():
                ctx.set_sample_reward(name, float(ctx.label in sample.messages[-1]["content"]))
        else:
            ctx.set_reward(float(ctx.label in ctx.sample.messages[-1]["content"]))

PLURAL = sys.argv[2] == "multi-sample"
if PLURAL:
    from osmosis_ai.rollout import create_rollout_server
else:
    from osmosis_ai.rollout.server import create_rollout_server
options = {"api_key": sys.argv[3]} if len(sys.argv) > 3 else {}
app = create_rollout_server(backend=LocalBackend(workflow=Asks, grader=Equals), **options)
uvicorn.run(app, fd=int(sys.argv[1]), log_level="warning")
"""


def run(*command):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def install(folder, version):
    run(UV, "venv", "-q", "-p", sys.executable, folder)
    wanted = f"osmosis-ai[server]=={version}"
    run(UV, "pip", "install", "-q", "--python", folder / "bin/python", wanted)
    return folder / "bin/python"


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def python(version, tmp_path_factory):
    """An interpreter with that version."""
    return install(tmp_path_factory.mktemp("sdk") / "venv", version)


@pytest.fixture
def serving(python, version, tmp_path):
    """A server of that version; yields its URL."""
    listener = listen("127.0.0.1", 0, allow_remote=False)
    key = ["server-key"] if version in KEYED else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept |= {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    arguments = [python, "-c", SERVER, str(listener.fileno()), VERSIONS[version], *key]
    process = subprocess.Popen(arguments, env=kept, pass_fds=[listener.fileno()])
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    process.kill()
    process.wait()
    listener.close()


@pytest.fixture
def controller(serving, version):
    """Open a client of the server with the demo policy."""

    @asynccontextmanager
    async def opened(**limits):
        key = "server-key" if version in KEYED else None
        given = {"protocol": VERSIONS[version], "api_key": key}
        given["limits"] = ControllerLimits(submit_timeout_sec=60, **limits)
        async with asyncio.timeout(120), ControllerClient(serving, "demo", **given) as client:
            yield client

    return opened


def asked(rollout_id, question="What is 6 * 7?", **fields):
    given = {"label": "42", "agent_timeout_sec": 30.0, "grader_timeout_sec": 30.0, **fields}
    return ExecutionRequest(rollout_id, [{"role": "user", "content": question}], **given)


async def test_every_case_of_the_controller_works_with_the_sdks_server(controller, version):
    async with controller() as client:
        requests = [asked(f"r-{i}", f"What is {i} * 7?", label=str(7 * i)) for i in range(20)]
        results = [result async for _, result in client.rollouts(requests)]
        failed = await client.rollout(asked("fails", metadata={"order": "fail"}))
        plain = await client.rollout(asked("plain", grade=False))
        health = await client.health()
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}, results
    assert {(r.sample.reward, len(r.sample.calls)) for r in results} == {(1.0, 1)}
    assert {name for r in results for name in r.samples} == {
        "asks" if version == "0.2.31" else "main"
    }
    assert (failed.status, failed.err_message) == (RolloutStatus.FAILURE, "told to fail")
    assert failed.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert plain.status is RolloutStatus.SUCCESS and len(plain.sample.calls) == 1
    assert [one["status"] for one in health.values()] == ["ok"]


async def test_cancelled_rollout_ends_here_whatever_the_server_can_do(controller):
    async with controller() as client:
        running = asyncio.create_task(client.rollout(asked("r-1", metadata={"order": "sleep"})))
        done, _ = await asyncio.wait([running], timeout=2)
        assert not done and "not_found" not in (await client.cancel(ids=["r-1"])).values()
        assert (await running).status is RolloutStatus.CANCELLED


async def test_server_of_another_protocol_is_told_apart(serving, version):
    others = [protocol for protocol in VERSIONS.values() if protocol != VERSIONS[version]]
    key = "server-key" if version in KEYED else None
    for protocol in others:
        limits = ControllerLimits(submit_timeout_sec=60)
        async with ControllerClient(
            serving, "demo", protocol=protocol, api_key=key, limits=limits
        ) as client:
            result = await client.rollout(asked("r-1"))
        assert result.status is RolloutStatus.FAILURE
        assert "to the submission" in result.err_message or "polled" in result.err_message
