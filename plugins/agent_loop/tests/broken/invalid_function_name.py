"""A function's name is a number."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return [{"type": "function", "function": {"name": 1, "description": "Add."}}]

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
