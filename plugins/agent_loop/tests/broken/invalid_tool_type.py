"""A tool is a text."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return ["add"]

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
