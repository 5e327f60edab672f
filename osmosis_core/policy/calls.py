"""Policy calls as records: what was asked, what came back, what every engine calls its fields."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from osmosis_core.context import RolloutContext, Scope
from osmosis_core.policy.assemble import Json
from osmosis_core.types import PolicyCall

UNFINISHED = "the call has not finished"


def begin_call(context: RolloutContext, scope: Scope, request: Json) -> PolicyCall:
    """A record of a call that starts now, already part of the rollout."""
    call = PolicyCall(
        call_id=uuid.uuid4().hex,
        rollout_id=context.rollout_id,
        sample_id=scope.sample_id,
        index=0,
        request=request,
        started_at=time.time(),
        trainable=scope.trainable,
        error=UNFINISHED,
    )
    context.begin_call(call)
    return call


def complete_call(call: PolicyCall, completion: Json) -> None:
    """Fill the record from the completion; token fields as vLLM and SGLang name them.

    Sources: training.md 1.1. What the endpoint did not return stays None.
    """
    choice: Json = completion["choices"][0]
    sglext = completion.get("sglext")
    extension: Json = sglext if isinstance(sglext, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    call.answer = choice["message"]
    call.finish_reason = choice["finish_reason"]
    call.usage = completion.get("usage")
    call.response_id = completion.get("id")
    call.model = completion.get("model")
    call.prompt_token_ids = _first(
        completion.get("prompt_token_ids"),
        choice.get("prompt_token_ids"),
        extension.get("input_ids"),
    )
    outputs: list[Any] = extension.get("output_ids") or [None]
    call.completion_token_ids = _first(
        choice.get("token_ids"),
        choice.get("response_token_ids"),
        outputs[0],
        _ids_in_logprobs(choice),
    )
    entries = _logprob_entries(choice)
    call.logprobs = [entry.get("logprob") for entry in entries] if entries else None
    call.error = None


def _logprob_entries(choice: Json) -> list[Json]:
    logprobs: Json = choice.get("logprobs") or {}
    return logprobs.get("content") or []


def _ids_in_logprobs(choice: Json) -> list[int] | None:
    entries = _logprob_entries(choice)
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        return [entry["id"] for entry in entries]
    tokens = [str(entry.get("token")) for entry in entries]
    if tokens and all(re.fullmatch(r"token_id:\d+", token) for token in tokens):
        return [int(token.removeprefix("token_id:")) for token in tokens]
    return None


def _first(*candidates: list[int] | None) -> list[int] | None:
    return next((ids for ids in candidates if ids is not None), None)
