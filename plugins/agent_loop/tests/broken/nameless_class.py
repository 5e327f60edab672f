"""Its class has no name, so that it cannot even be made."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
