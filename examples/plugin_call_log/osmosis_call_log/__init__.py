"""Appends what happens to the file named by `OSMOSIS_CALL_LOG`, one JSON object per line."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from osmosis_core import ExecutionRequest, ExecutionResult, PolicyCall, hookimpl

_lock = threading.Lock()


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest) -> None:
    _append(event="rollout_started", rollout_id=request.id)


@hookimpl
def osmosis_sample_registered(rollout_id: str, sample_id: str) -> None:
    _append(event="sample_registered", rollout_id=rollout_id, sample_id=sample_id)


@hookimpl
def osmosis_policy_call_finished(call: PolicyCall) -> None:
    _append(
        event="policy_call_finished",
        rollout_id=call.rollout_id,
        sample_id=call.sample_id,
        attempts=len(call.attempts),
        duration_sec=call.duration_sec,
        error=call.error,
    )


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    rewards = {sample_id: sample.reward for sample_id, sample in result.samples.items()}
    _append(event="rollout_finished", rollout_id=request.id, status=result.status, rewards=rewards)


def _append(**event: Any) -> None:
    path = os.environ.get("OSMOSIS_CALL_LOG")
    if path:
        with _lock, Path(path).open("a", encoding="utf-8") as log:
            log.write(json.dumps(event) + "\n")
