"""Run workflows and graders in this process and event loop."""

from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.types import ExecutionResult


class LocalBackend(PlacedBackend):
    """Runs everything in the current process: instant, debuggable, not isolated."""

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run it on the caller's event loop."""
        return await phase.run(self.program, run.cutoff)
