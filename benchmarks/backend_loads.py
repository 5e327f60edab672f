"""What `backends.py` rolls out; workers import it by name."""

import asyncio
import os

from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader

UNLIMITED = AgentWorkflowConfig(name="benchmark")
ROUNDS = 800_000


class NoOp(AgentWorkflow):
    """Does nothing."""

    async def run(self, ctx):
        return [{"role": "assistant", "content": ""}]


class Computes(AgentWorkflow):
    """Keeps a processor busy for some 50 ms."""

    async def run(self, ctx):
        total = 0
        for number in range(ROUNDS):
            total += number * number % 7
        return [{"role": "assistant", "content": str(total)}]


class Waits(AgentWorkflow):
    """Waits a second, and says where."""

    async def run(self, ctx):
        await asyncio.sleep(1)
        return [{"role": "assistant", "content": str(os.getpid())}]


class Grades(Grader):
    """Gives every sample 1.0."""

    async def grade(self, ctx):
        ctx.set_reward(1.0)
