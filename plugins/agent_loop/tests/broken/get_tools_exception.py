"""Its get_tools raises."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        raise KeyError("tool server")

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
