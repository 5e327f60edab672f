"""Every framework plugin on the oldest and the newest framework that it claims, and all of them.

Each environment is clean: wheels of the kernel and the plugin, what they bring, and pytest. What
is oldest follows from the plugin's requirements, each pinned at its lower bound.
"""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from osmosis_core.plugins import get_plugins

ROOT = Path(__file__).parents[1]
PLUGINS = ("strands", "langgraph", "openai_agents")
RUNNERS = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
CONFORMANCE = "test_conformance.py"
NEWEST = ("-c", ROOT / "constraints.txt")
ALSO = {"langgraph": ("langchain", "langgraph-supervisor", "langgraph-swarm")}
"""What a plugin's tests use and the plugin does not need."""

pytestmark = pytest.mark.timeout(540)
slow = pytest.mark.slow

STATE_GRAPH = """
import asyncio
from importlib.util import find_spec
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend
from osmosis_core.testing import ScriptedPolicy, Tool
from osmosis_langgraph import ChatOsmosis

assert find_spec("langchain") is None

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

MODEL = ChatOsmosis().bind_tools([add])

async def think(state: MessagesState):
    return {"messages": [await MODEL.ainvoke(state["messages"])]}

building = StateGraph(MessagesState).add_node("think", think).add_node("tools", ToolNode([add]))
building.add_edge(START, "think").add_edge("tools", "think")
GRAPH = building.add_conditional_edges("think", tools_condition).compile(name="adder")

class Adds(AgentWorkflow):
    async def run(self, ctx):
        await GRAPH.ainvoke({"messages": ctx.prompt})

async def main():
    results = []
    async def report(result):
        results.append(result)
    request = ExecutionRequest("r", [{"role": "user", "content": "2 + 3?"}])
    with ScriptedPolicy(Tool("add", {"a": 2, "b": 3}), "it is 5") as policy, policy.rollout():
        await LocalBackend(workflow=Adds).execute(request, report)
    sample = results[0].samples["adder"]
    assert (len(sample.messages), len(sample.calls)) == (4, 2), sample
    assert sample.messages[2]["content"] == "5", sample

asyncio.run(main())
"""


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())


def by_name(listed):
    return {canonicalize_name(r.name): r for r in map(Requirement, listed)}


def needs(plugin):
    """What a plugin requires, by name, but the kernel."""
    listed = by_name(project(ROOT / "plugins" / plugin)["project"]["dependencies"])
    return {name: needed for name, needed in listed.items() if name != "osmosis-core"}


def for_tests(*plugins):
    developing = by_name(project(ROOT)["dependency-groups"]["dev"])
    also = [name for plugin in plugins for name in ALSO.get(plugin, ())]
    return [str(developing[name]) for name in (*RUNNERS, *also)]


def lowest(needed):
    (bound,) = (s.version for s in needed.specifier if s.operator == ">=")
    return f"{needed.name}=={bound}"


def known(name):
    """The newest version that the checkout is developed with."""
    pins = by_name((ROOT / "constraints.txt").read_text().splitlines())
    (pin,) = pins[name].specifier
    return Version(pin.version)


def offer(plugin):
    return next(f for f in get_plugins().frameworks if f.module == f"osmosis_{plugin}")


@pytest.fixture
def tested(environment):
    """Install what is wanted, run the plugins' own tests there; answers the versions."""

    def run(plugins, *wanted, tests=""):
        built = environment(*wanted, *for_tests(*plugins))
        tests = [ROOT / "plugins" / plugin / "tests" / tests for plugin in plugins]
        options = ["-q", "-n", "2", "-c", ROOT / "pyproject.toml"]
        assert " passed" in built.python("-m", "pytest", *options, *tests)
        return built.versions()

    return run


@pytest.mark.parametrize("plugin", PLUGINS)
def test_offer_claims_the_versions_that_the_distribution_requires(plugin):
    offered = offer(plugin)
    assert SpecifierSet(offered.versions) == needs(plugin)[offered.distribution].specifier


@slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_alone_works_on_the_oldest_versions_that_it_claims(plugin, tested):
    pins = [lowest(needed) for needed in needs(plugin).values()]
    ran_with = tested([plugin], f"osmosis-{plugin}", *pins)
    assert ran_with.keys().isdisjoint(elsewhere(plugin))


@slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_alone_works_on_the_newest_versions_that_it_claims(plugin, tested):
    ran_with = tested([plugin], f"osmosis-{plugin}", *NEWEST)
    assert {n: v for n in needs(plugin) if Version(v := ran_with[n]) < known(n)} == {}
    assert ran_with.keys().isdisjoint(elsewhere(plugin))


def elsewhere(plugin):
    """What only other plugins bring."""
    return {"litellm", *(offer(other).distribution for other in PLUGINS if other != plugin)}


@slow
def test_all_plugins_work_together(tested):
    wanted = map("osmosis-{}".format, PLUGINS)
    ran_with = tested(PLUGINS, *wanted, *NEWEST, tests=CONFORMANCE)
    frameworks = [offer(plugin).distribution for plugin in PLUGINS]
    assert {n: v for n in frameworks if Version(v := ran_with[n]) < known(n)} == {}
    assert "litellm" not in ran_with and Version(ran_with["openai"]).major == 3


@slow
def test_all_plugins_work_together_beside_litellm(tested):
    wanted = ["osmosis-strands[litellm]", *map("osmosis-{}".format, PLUGINS)]
    ran_with = tested(PLUGINS, *wanted, tests=CONFORMANCE)
    assert "litellm" in ran_with and Version(ran_with["openai"]).major == 2


@slow
def test_state_graphs_need_no_langchain(environment):
    environment("osmosis-langgraph").python("-c", STATE_GRAPH)
