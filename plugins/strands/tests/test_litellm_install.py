"""`osmosis-strands[litellm]`, installed in a clean environment: LiteLLM, quiet and offline.

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
RUNNERS = ("pytest", "pytest-asyncio", "pytest-timeout")

OFFLINE = """
import sys

def loopback_only(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "127.0.0.1", b"127.0.0.1"):
        raise SystemExit(f"name resolution of {args[0]!r}")
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        raise SystemExit(f"connection to {args[1]!r}")

sys.addaudithook(loopback_only)
"""
AGENT = """
import asyncio, copy, os, threading
from osmosis_core import PolicyNotBoundError
from osmosis_core.testing import ScriptedPolicy, Say, Status, Tool
from osmosis_strands import LiteLLMRolloutModel, OsmosisRolloutModel, OsmosisStrandsAgent
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.litellm import LiteLLMModel

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

class Answer(BaseModel):
    number: int

MODEL = LiteLLMRolloutModel(params={"temperature": 0.5}, max_tokens=9)
assert isinstance(copy.deepcopy(MODEL), LiteLLMModel)
assert not isinstance(MODEL, OsmosisRolloutModel)

async def outside():
    try:
        await anext(MODEL.stream([]))
    except PolicyNotBoundError as error:
        assert "LiteLLMRolloutModel" in str(error), error
    else:
        raise AssertionError("called outside a rollout")

async def documented():
    with ScriptedPolicy(Tool("add", {"a": 2, "b": 3}), "it is 5") as policy:
        with policy.rollout() as rollout:
            agent = OsmosisStrandsAgent(
                name="solver", model=MODEL, tools=[add], callback_handler=None
            )
            assert "it is 5" in str(await agent.invoke_async("2 + 3?"))
            samples = await rollout.get_samples()
    sample = samples["solver"]
    assert (len(sample.messages), len(sample.calls)) == (4, 2), sample
    body = policy.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9), body
    assert body["model"] == "osmosis-rollout" and body["tools"], body

async def plain():
    with ScriptedPolicy("hi", Tool("Answer", {"number": 4})) as policy:
        with policy.rollout() as rollout:
            agent = Agent(name="plain", model=MODEL, callback_handler=None)
            await agent.invoke_async("hello")
            events = agent.model.for_sample("helper", rollout).structured_output(
                Answer, [{"role": "user", "content": [{"text": "2+2"}]}]
            )
            assert [event["output"] async for event in events] == [Answer(number=4)]
    assert [r.sample_id for r in policy.requests] == ["plain", "helper"]

async def failing():
    with ScriptedPolicy(Status(401)) as policy, policy.rollout():
        try:
            await Agent(name="a", model=MODEL, callback_handler=None).invoke_async("q")
        except Exception as error:
            assert type(error).__name__ == "PolicyError", repr(error)
    assert len(policy.requests) == 1

async def main():
    for step in (outside, documented, plain, failing):
        await step()

asyncio.run(main())
assert "LEAKED" not in os.environ
"""
SETTINGS = """
import os
os.environ.update(LITELLM_LOCAL_BLOG_POSTS="False", LITELLM_MODE="CUSTOM")
import osmosis_strands
assert "LITELLM_LOCAL_MODEL_COST_MAP" not in os.environ
osmosis_strands.LiteLLMRolloutModel
assert os.environ["LITELLM_LOCAL_BLOG_POSTS"] == "False"
assert os.environ["LITELLM_MODE"] == "CUSTOM"
assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
"""
CONFORMANCE = """
from osmosis_core.testing import AdapterConformance, AdapterFixtures
from osmosis_strands import LiteLLMRolloutModel
from osmosis_strands.conformance import StrandsAdapter

class LiteLLMAdapter(StrandsAdapter):
    stream_agent = AdapterFixtures.stream_agent  # LiteLLM reads a stream to its end, also unread

    def create_model(self):
        return LiteLLMRolloutModel(params={"temperature": 1.0})

class TestLiteLLMConforms(AdapterConformance):
    fixtures = LiteLLMAdapter()
"""


def run(*command, cwd):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OSMOSIS_", "PYTHON", "VIRT", "LITELLM", "OPENAI"))
    }
    done = subprocess.run(
        command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    for source in (ROOT, ROOT / "plugins" / "strands"):
        options = ["--quiet", "--wheel", "--python", sys.executable, "--out-dir", folder / "dist"]
        run(UV, "build", *options, source, cwd=folder)
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    options = ["--quiet", "--python", folder / "venv", "--find-links", folder / "dist"]
    run(UV, "pip", "install", *options, "osmosis-strands[litellm]", *RUNNERS, cwd=folder)
    (folder / ".env").write_text("LEAKED=yes\n")
    return folder


def python(environment, *arguments):
    return run(environment / "venv" / "bin" / "python", *arguments, cwd=environment)


def test_extra_brings_what_litellm_needs_for_tools(environment):
    options = ["--python", environment / "venv", "--format", "freeze"]
    listed = run(UV, "pip", "list", *options, cwd=environment).stdout.splitlines()
    versions = dict(line.split("==") for line in listed if "==" in line)
    assert {"litellm", "mcp"} <= versions.keys()
    assert versions["openai"].startswith("2.")


def test_agent_with_a_tool_is_quiet_and_offline(environment):
    done = python(environment, "-W", "error", "-c", OFFLINE + AGENT)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_the_user_set_stays(environment):
    python(environment, "-c", SETTINGS)


def test_model_conforms(environment):
    (environment / "test_conforms.py").write_text(CONFORMANCE)
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout", "120"]
    done = python(environment, "-m", "pytest", *options, "test_conforms.py")
    assert " passed" in done.stdout
