"""AgentWorkflow, the older page: the custom config, with its imports changed."""

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
)


class MyConfig(AgentWorkflowConfig):
    name: str = "my-workflow"
    max_iterations: int = 10
    temperature: float = 0.7


class ConfigurableWorkflow(AgentWorkflow[MyConfig]):
    async def run(self, ctx: AgentWorkflowContext[MyConfig]) -> None:
        max_iter = ctx.config.max_iterations if ctx.config else 10
        # ... use config values in your agent logic ...
        self.seen = max_iter
