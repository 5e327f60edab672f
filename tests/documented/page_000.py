"""Execution backends: the constructor, as documented, with its imports changed."""

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
)


class MyWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        # Build and run your agent here.
        pass


class MyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        pass


backend = LocalBackend(
    workflow=MyWorkflow,
    grader=MyGrader,
)
