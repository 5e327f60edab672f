"""A function that says nothing about itself."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "add"}}]

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
