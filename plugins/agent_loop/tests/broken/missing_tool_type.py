"""A tool has no type."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return [{"function": {"name": "add", "description": "Add."}}]

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
