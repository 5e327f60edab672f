"""Its run is gone once it is made."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return []

    def __getattribute__(self, name):
        if name == "run":
            raise AttributeError(name)
        return super().__getattribute__(name)

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
