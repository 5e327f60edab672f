"""Its name is None once it is made."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def __init__(self):
        self.name = None

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
