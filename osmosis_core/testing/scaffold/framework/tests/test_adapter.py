from importlib.metadata import EntryPoint

from osmosis_acme.adapter import AcmeAgent, AcmeSource
from osmosis_acme.conformance import AcmeAdapter

from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend
from osmosis_core.plugins import PluginManager
from osmosis_core.testing import AdapterConformance, ScriptedPolicy, Tool


class TestAdapter(AdapterConformance):
    fixtures = AcmeAdapter()


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Solve(AgentWorkflow):
    async def run(self, ctx):
        await AcmeAgent("solver", ctx.prompt, [add]).run()


async def test_agent_is_rolled_out():
    results = []

    async def keep(result):
        results.append(result)

    request = ExecutionRequest("r-1", [{"role": "user", "content": "2 + 3?"}])
    with ScriptedPolicy(Tool("add", {"a": 2, "b": 3}), "it is 5") as policy, policy.rollout():
        await LocalBackend(workflow=Solve).execute(request, keep)
    sample = results[0].samples["solver"]
    roles = [message["role"] for message in sample.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert len(sample.calls) == 2


def test_plugin_offers_the_framework_and_reads_its_agents():
    plugins = PluginManager([EntryPoint("acme", "osmosis_acme.plugin", "osmosis_core")])
    assert [record.error for record in plugins.records] == [None, None]
    assert plugins.framework("acme").conformance == "osmosis_acme.conformance:AcmeAdapter"
    with ScriptedPolicy("hi") as policy, policy.rollout():
        agent = AcmeAgent("solver", [{"role": "user", "content": "hello"}])
        assert isinstance(plugins.adapt_sample_source(agent), AcmeSource)
