"""One phase of a rollout as a value that can travel: a workflow to run, or samples to grade."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_core.context import Policy
from osmosis_core.execution import Cutoff, Program, run_grader, run_workflow
from osmosis_core.types import ExecutionRequest, ExecutionResult, RolloutSample


@dataclass(frozen=True, slots=True)
class Phase:
    """What runs a phase anywhere; it pickles, and pydantic's `TypeAdapter(Phase)` reads its JSON.

    The same holds for the `ExecutionResult` that comes back.
    """

    request: ExecutionRequest
    policy: Policy = field(repr=False)
    artifacts_dir: Path | None = None
    """The rollout's own; made by `ctx.artifacts_dir` when it is first asked for."""
    spent_sec: float = 0.0
    """Of `request.agent_timeout_sec`; seconds, because clocks differ from machine to machine."""
    samples: dict[str, RolloutSample] | None = None
    """To grade; None asks for the workflow."""

    async def run(self, program: Program, cutoff: Cutoff | None = None) -> ExecutionResult:
        """Run the workflow or the grader here; what user code raises is a failed result."""
        options: dict[str, Any] = {"cutoff": cutoff, "artifacts_dir": self.artifacts_dir}
        if self.samples is not None:
            return await run_grader(self.request, program, self.samples, **options)
        options |= {"policy": self.policy, "submitted_at": time.monotonic() - self.spent_sec}
        return await run_workflow(self.request, program, **options)
