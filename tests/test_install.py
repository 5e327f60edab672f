"""Wheels, installed in clean environments, work without anything of this checkout."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[1]
FOREIGN = {"httpx", "httpx2", "litellm", "openai", "osmosis-eval", "osmosis-gateway", "rich"}
FOREIGN |= {"starlette", "strands-agents", "uvicorn"}

STRANDS_ROLLOUT = """
import asyncio
from osmosis_core import AgentWorkflow, ExecutionRequest, Grader, LocalBackend
from osmosis_core.testing import ScriptedPolicy, Tool
from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent
from strands import tool

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

class Solve(AgentWorkflow):
    async def run(self, ctx):
        model = OsmosisRolloutModel()
        agent = OsmosisStrandsAgent(name="solver", model=model, tools=[add], messages=ctx.prompt)
        await agent.invoke_async()

class Strict(Grader):
    async def grade(self, ctx):
        said = str(ctx.sample.messages[-1]["content"])
        ctx.set_reward(1.0 if ctx.label in said else 0.0)

async def main():
    results = []
    async def report(result):
        results.append(result)
    request = ExecutionRequest("r", [{"role": "user", "content": "2 + 3?"}], label="5")
    with ScriptedPolicy(Tool("add", {"a": 2, "b": 3}), "it is 5") as policy, policy.rollout():
        await LocalBackend(workflow=Solve, grader=Strict).execute(request, report, report)
    assert [result.status for result in results] == ["success", "success"], results
    sample = results[1].samples["solver"]
    assert (sample.reward, len(sample.calls)) == (1.0, 2), sample

asyncio.run(main())
"""
KERNEL_ROLLOUT = """
import asyncio
import osmosis_core.policy
from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend

class Idle(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]

async def main():
    results = []
    async def report(result):
        results.append(result)
    request = ExecutionRequest("r", [{"role": "user", "content": "go"}])
    await LocalBackend(workflow=Idle).execute(request, report)
    assert results[0].status == "success", results
    assert results[0].samples["main"].messages[-1]["content"] == "done", results

asyncio.run(main())
"""
DEMO_POLICY = """
import asyncio, json, urllib.request
from osmosis_core.plugins import get_plugins

def ask(base_url):
    body = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
    url, headers = base_url + "/chat/completions", {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=20))

async def main():
    async with get_plugins().policy("demo")() as endpoint:
        answer = await asyncio.to_thread(ask, endpoint.base_url)
    assert "5" in answer["choices"][0]["message"]["content"], answer

asyncio.run(main())
"""


THIRD_PARTIES = ROOT / "examples/plugins"


@pytest.fixture(scope="module")
def with_strands(environment):
    return environment("osmosis-core[strands]", "-c", ROOT / "constraints.txt")


@pytest.fixture(scope="module")
def kernel_alone(environment):
    return environment("osmosis-core", "-c", ROOT / "constraints.txt")


def test_one_wheel_for_each_distribution(wheels):
    names = {wheel.name.partition("-")[0] for wheel in wheels.glob("*.whl")}
    plugins = {f"osmosis_{plugin.name}" for plugin in (ROOT / "plugins").iterdir()}
    assert names == {"osmosis_core", *plugins}


def test_extra_brings_its_plugin(with_strands):
    listed = with_strands.osmosis("plugins", "--strict")
    assert [line.split()[0] for line in listed.splitlines()] == ["core", "strands"]


def test_strands_agent_is_rolled_out_from_wheels(with_strands):
    with_strands.python("-c", STRANDS_ROLLOUT)


def test_kernel_alone_brings_no_framework(kernel_alone):
    assert kernel_alone.versions().keys() & FOREIGN == set()


def test_kernel_alone_is_sound(kernel_alone):
    listed = kernel_alone.osmosis("plugins", "--strict")
    assert [line.split()[0] for line in listed.splitlines()] == ["core"]
    assert "validate" in kernel_alone.osmosis("--help")


def test_kernel_alone_runs_a_rollout(kernel_alone):
    kernel_alone.python("-c", KERNEL_ROLLOUT)


def test_kernel_alone_has_a_demo_policy(kernel_alone):
    kernel_alone.python("-c", DEMO_POLICY)


def test_kernel_alone_says_how_to_get_the_rest(kernel_alone):
    command = [kernel_alone.bin / "osmosis", "eval", "run", "x.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install 'osmosis-core[eval]'" in done.stderr


@pytest.fixture
def install(environment, build, tmp_path):
    """Build a project outside of this workspace and install it with what its tests need."""

    def install(source):
        options = "--find-links", build(source, tmp_path / "wheel"), "-c", ROOT / "constraints.txt"
        return environment(f"{source.name.replace('_', '-')}[test]", *options)

    return install


def passes_its_own_tests(environment, folder):
    """Run a project's tests, copied away from its sources, with nothing but what is installed."""
    tests = shutil.copytree(folder / "tests", environment.folder / "its_tests")
    (environment.folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    said = environment.run("pytest", "-q", tests)
    return int(said.rpartition(" passed")[0].split()[-1])


@pytest.mark.parametrize("name", ["pydantic_ai", "smolagents"])
def test_plugin_of_a_third_party_works_from_wheels(name, tmp_path, install):
    source = shutil.copytree(THIRD_PARTIES / f"osmosis_{name}", tmp_path / f"osmosis_{name}")
    installed = install(source)
    assert passes_its_own_tests(installed, source) > 90
    assert ", 0 failed," in installed.osmosis("plugins", "check", name)
    listed = installed.osmosis("plugins", "--strict")
    assert [line.split()[0] for line in listed.splitlines()] == ["core", name]


@pytest.mark.parametrize("kind", ["framework", "backend"])
def test_new_plugin_works_from_a_wheel(kind, tmp_path, install, kernel_alone):
    kernel_alone.osmosis("plugins", "new", "tide-pool", f"--{kind}", "--dir", tmp_path)
    installed = install(tmp_path / "osmosis-tide-pool")
    assert passes_its_own_tests(installed, tmp_path / "osmosis-tide-pool") > 50
    if kind == "framework":
        assert ", 0 failed," in installed.osmosis("plugins", "check", "tide-pool")
    listed = installed.osmosis("plugins", "--strict")
    assert [line.split()[0] for line in listed.splitlines()] == ["core", "tide-pool"]
