"""Gives each phase of a rollout a thread and event loop, so one that blocks holds up nobody."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from osmosis_core import ExecutionResult
from osmosis_core.backends.phase import Phase
from osmosis_core.backends.placed import PlacedBackend, Run
from osmosis_core.execution import Cutoff


class AcmeBackend(PlacedBackend):
    """Takes the keyword arguments of `LocalBackend`; see there."""

    default_concurrency = 8

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.threads = ThreadPoolExecutor(self.max_concurrency or 64)

    async def place(self, run: Run, phase: Phase) -> ExecutionResult:
        """Run the workflow, or the grader, in a thread."""
        cutoff = Cutoff()

        async def there() -> ExecutionResult:
            loop = asyncio.get_running_loop()

            def stop() -> None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(cutoff.cancel)

            run.stop = stop
            cutoff.cancelled = run.cutoff.cancelled  # before there was somebody to stop
            return await phase.run(self.program, cutoff)

        context = contextvars.copy_context()
        thread = self.threads.submit(context.run, lambda: asyncio.run(there()))
        return await asyncio.wrap_future(thread)

    async def shutdown(self) -> None:
        """Cancel what runs, and let the threads end."""
        await super().shutdown()
        self.threads.shutdown(wait=False)
