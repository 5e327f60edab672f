"""Its name is blank."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "  "

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
