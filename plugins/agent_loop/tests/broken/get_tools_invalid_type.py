"""Its get_tools returns no list."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return {"add": 1}

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
