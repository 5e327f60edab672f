"""Keeps a watch on every event loop that runs rollouts."""

from __future__ import annotations

import asyncio
import os

from osmosis_core import ExecutionRequest, hookimpl
from osmosis_loop_watch.watch import LoopWatch, watches


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest) -> None:
    """Watch the running loop for this rollout, unless `OSMOSIS_LOOP_WATCH=0`."""
    task = asyncio.current_task()
    if task is not None:
        watch = watches.get(task.get_loop())
        if watch is None and os.environ.get("OSMOSIS_LOOP_WATCH") != "0":
            watch = LoopWatch(task.get_loop())
        if watch is not None:
            watch.rollouts[id(request)] = request.id, task


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest) -> None:
    """Watch on only for the loop's other rollouts."""
    watch = watches.get(asyncio.get_running_loop())
    if watch is not None:
        watch.rollouts.pop(id(request), None)


def _forget() -> None:
    """A forked child has neither the threads nor timers of its own: it shares its parent's."""
    for watch in list(watches.values()):
        watch.end()


os.register_at_fork(after_in_child=_forget)
