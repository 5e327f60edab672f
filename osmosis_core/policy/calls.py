"""Policy calls as records: what was asked, what came back, what every engine calls its fields."""

import math
import re
import time
import uuid
from contextlib import suppress
from typing import Any

from osmosis_core.active import Scope
from osmosis_core.context import RolloutContext
from osmosis_core.policy.assemble import Json
from osmosis_core.policy.chains import conversations
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
    context.begin_call(call, scope.parent)
    conversations(context).begin(call, context.wire.replay)
    return call


def end_call(context: RolloutContext, call: PolicyCall) -> None:
    """The call has ended, well or not: it takes its place in the rollout's conversations."""
    conversations(context).end(call)


def complete_call(call: PolicyCall, completion: Json) -> None:
    """Fill the record from the completion, whatever the engine calls its fields.

    Sources: training.md 1.1 (vLLM, SGLang, mlx-lm, llama.cpp). What was not returned, or in no
    shape of theirs, stays None.
    """
    choice: Json = completion["choices"][0]
    call.answer = choice["message"]
    call.finish_reason = choice["finish_reason"]
    call.usage = completion.get("usage")
    call.response_id = completion.get("id")
    call.model = completion.get("model")
    call.error = None
    with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        _read_tokens(call, completion, choice)


def _read_tokens(call: PolicyCall, completion: Json, choice: Json) -> None:
    sglext, meta = _object(completion.get("sglext")), _object(choice.get("meta_info"))
    entries: list[Json] = _object(choice.get("logprobs")).get("content") or []
    triples: list[Any] = meta.get("output_token_logprobs") or []
    call.prompt_token_ids = _first(
        completion.get("prompt_token_ids"), choice.get("prompt_token_ids"), sglext.get("input_ids")
    )
    outputs: list[Any] = sglext.get("output_ids") or [None]
    call.completion_token_ids = _first(
        choice.get("token_ids"),
        choice.get("response_token_ids"),
        outputs[0],
        _ids_in(entries),
        [triple[1] for triple in triples] or None,
    )
    logprobs = [_logprob(entry) for entry in entries] or [float(triple[0]) for triple in triples]
    call.logprobs = logprobs or None
    is_sglang = bool(sglext or triples or "metadata" in completion)
    is_sglang = is_sglang or "response_token_ids" in choice
    call.weight_versions = _weight_versions(completion, choice, call.completion_token_ids)
    if call.logprobs:
        is_vllm = "prompt_token_ids" in completion and not is_sglang
        call.logprobs_kind = "sampling" if is_sglang else "raw" if is_vllm else "unknown"


def _logprob(entry: Json) -> float | None:
    if "logprob" not in entry and entry.get("prob"):
        return math.log(entry["prob"])
    value = entry.get("logprob")
    return None if value is None else float(value)


def _weight_versions(completion: Json, choice: Json, ids: Any) -> list[Json]:
    metadata = _object(completion.get("metadata"))
    spans = choice.get("weight_versions") or metadata.get("weight_versions")
    if spans:
        return spans
    version = metadata.get("weight_version") or completion.get("weight_version")
    end = len(ids) if ids is not None else 0
    return [] if version is None else [{"version": str(version), "start": 0, "end": end}]


def _ids_in(entries: list[Json]) -> list[int] | None:
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        return [entry["id"] for entry in entries]
    tokens = [str(entry.get("token")) for entry in entries]
    if tokens and all(re.fullmatch(r"token_id:\d+", token) for token in tokens):
        return [int(token.removeprefix("token_id:")) for token in tokens]
    return None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _first(*candidates: Any) -> Any:
    return next((ids for ids in candidates if isinstance(ids, list)), None)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
