"""Its run is a text."""

from osmosis_agent_loop import RolloutAgentLoop


class Broken(RolloutAgentLoop):
    name = "broken"

    def get_tools(self, request):
        return []

    run = "later"


agent_loop = Broken()
