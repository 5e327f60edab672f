"""Parameters are a list."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        function = {"name": "add", "description": "Add.", "parameters": ["a", "b"]}
        return [{"type": "function", "function": function}]

    async def run(self, ctx):
        return ctx.complete([])


agent_loop = Broken()
