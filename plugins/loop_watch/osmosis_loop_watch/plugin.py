"""Keeps a watch on every event loop that runs rollouts."""

from __future__ import annotations

import asyncio
import os

from osmosis_core import ExecutionRequest, hookimpl
from osmosis_loop_watch.watch import end_all, finished, watch_for


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest) -> None:
    """Watch the running loop for this rollout, unless `OSMOSIS_LOOP_WATCH=0`."""
    task = asyncio.current_task()
    if task is not None:
        watch_for(id(request), request.id, task)


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest) -> None:
    """Watch on only for the loop's other rollouts."""
    finished(id(request))


os.register_at_fork(after_in_child=end_all)
