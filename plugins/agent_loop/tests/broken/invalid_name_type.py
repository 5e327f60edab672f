"""Its name is a number."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = 42

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
