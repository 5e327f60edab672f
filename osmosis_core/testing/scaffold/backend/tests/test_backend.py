from importlib.metadata import EntryPoint

from osmosis_acme.backend import AcmeBackend

from osmosis_core import AgentWorkflow, ExecutionRequest, Grader
from osmosis_core.plugins import PluginManager
from osmosis_core.testing import BackendConformance


class TestBackend(BackendConformance):
    crowd = 50

    def create_backend(self, *, workflow, **options):
        return AcmeBackend(workflow=workflow, **options)


class Echo(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "42"}]


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(ctx.sample.messages[-1]["content"] == ctx.label)


async def test_plugin_offers_a_backend_that_grades(tmp_path):
    plugins = PluginManager([EntryPoint("acme", "osmosis_acme.plugin", "osmosis_core")])
    assert [record.error for record in plugins.records] == [None, None]
    results = []

    async def keep(result):
        results.append(result)

    backend = plugins.backend("acme")(workflow=Echo, grader=Exact, artifacts_root=tmp_path)
    request = ExecutionRequest("r-1", [{"role": "user", "content": "6 * 7?"}], label="42")
    await backend.execute(request, keep, keep)
    await backend.shutdown()
    assert results[-1].sample.reward == 1.0
