"""Keeps a watch on every event loop that runs rollouts, and one thread that looks at them all."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import suppress

from osmosis_core import ExecutionRequest, hookimpl
from osmosis_loop_watch.watch import LoopWatch, note_collection, sleep_until_look

_IDLE_LOOKS = 40
_lock = threading.Lock()
_watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}
_looker: threading.Thread | None = None


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest) -> None:
    """Watch the running loop for this rollout, unless `OSMOSIS_LOOP_WATCH=0`."""
    task = asyncio.current_task()
    if task is None:
        return
    loop = asyncio.get_running_loop()
    with _lock:
        watch = _watches.get(loop) or _begin(loop)
        if watch is not None:
            watch.rollouts[id(request)] = request.id, task


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest) -> None:
    """Watch on only for the loop's other rollouts."""
    with _lock:
        watch = _watches.get(asyncio.get_running_loop())
        if watch is not None:
            watch.rollouts.pop(id(request), None)


def _begin(loop: asyncio.AbstractEventLoop) -> LoopWatch | None:
    global _looker
    if os.environ.get("OSMOSIS_LOOP_WATCH") == "0":
        return None
    if _looker is None:
        _looker = threading.Thread(target=_look, name="osmosis-loop-watch", daemon=True)
        _looker.start()
    return _watches.setdefault(loop, LoopWatch(loop))


def _look() -> None:
    """The thread's work; it ends soon after the last rollout, not with it: the next may follow."""
    idle_looks = 0
    gc.callbacks.append(note_collection)
    while idle_looks < _IDLE_LOOKS or not _is_ended():
        held_sec = sleep_until_look()
        watches = list(_watches.values())
        for watch, stack in [(watch, watch.step()) for watch in watches]:
            with suppress(OSError):  # the loop's thread has ended
                watch.look(stack, held_sec)
        idle_looks = 0 if watches else idle_looks + 1
        _drop_ended()
    gc.callbacks.remove(note_collection)


def _drop_ended() -> None:
    with _lock:
        ended = [_watches.pop(loop) for loop, watch in list(_watches.items()) if watch.is_over()]
    for watch in ended:
        watch.delay.close()


def _is_ended() -> bool:
    global _looker
    with _lock:
        _looker = _looker if _watches else None
        return _looker is None


def _forget() -> None:
    """A forked child has neither the thread nor the loops, and perhaps a lock that was held."""
    global _lock, _looker
    _lock, _looker = threading.Lock(), None
    _watches.clear()
    with suppress(ValueError):
        gc.callbacks.remove(note_collection)


os.register_at_fork(after_in_child=_forget)
