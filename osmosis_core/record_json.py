"""Policy calls as JSON values: one that goes on from another holds only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from osmosis_core.packing import joined, shared_length
from osmosis_core.records import Attempt, Finding, PolicyCall

type Record = dict[str, Any]

_NUMBERS = ("prompt_token_ids", "completion_token_ids", "logprobs")


def dump_calls(calls: Sequence[PolicyCall]) -> list[Record]:
    """The calls as JSON values, without members that have their default.

    `base` says what comes before a record's own: `call` is the position of an earlier record here;
    of its messages (its answer, as it is sent again, is the last of them) the first `messages`, of
    its token ids (the prompt's, then the completion's) the first `ids`, and of its request all
    members that the record's own does not name.
    """
    records: list[Record] = []
    positions: dict[int | None, int] = {}
    for position, call in enumerate(calls):
        record = _record(call)
        base = positions.get(call.continues, position - 1)
        is_list = isinstance(call.request.get("messages"), list)
        if base >= 0 and is_list and calls[base].request.keys() <= call.request.keys():
            record |= _what_is_new(call, calls[base], base)
        records.append({k: list(v) if k in _NUMBERS else v for k, v in record.items()})
        positions[call.index] = position
    return records


def load_calls(records: Sequence[Record]) -> list[PolicyCall]:
    """The calls that `dump_calls` gave, sharing in memory what they have in common.

    Raises:
        ValueError: a record is not one of a policy call.
    """
    calls: list[PolicyCall] = []
    for record in records:
        try:
            calls.append(_load(record, calls))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"record {len(calls)} is not one of a policy call: {error}") from error
    return calls


def _record(call: PolicyCall) -> Record:
    record: Record = {}
    for member in fields(call):
        value = getattr(call, member.name)
        default = None if member.default is MISSING else member.default
        if value is not None and (member.name in _NUMBERS or value not in (default, [])):
            record[member.name] = value
    for name in ("attempts", "findings"):
        if name in record:
            record[name] = [asdict(value) for value in record[name]]
    return record


def _what_is_new(call: PolicyCall, base: PolicyCall, position: int) -> Record:
    said, known = base.said, base.request
    pairs = enumerate(zip(call.messages, said, strict=False))
    kept = next(
        (i for i, (one, other) in pairs if one != other), min(len(said), len(call.messages))
    )
    ids = shared_length(call.prompt_token_ids, base.prompt_token_ids, base.completion_token_ids)
    request = {k: v for k, v in call.request.items() if k not in known or known[k] != v}
    return {
        "base": {"call": position, "messages": kept, "ids": ids},
        "request": {**request, "messages": call.messages[kept:]},
        **({"prompt_token_ids": call.prompt_token_ids[ids:]} if call.prompt_token_ids else {}),
    }


def _load(record: Record, earlier: list[PolicyCall]) -> PolicyCall:
    values = dict(record)
    base: PolicyCall | None = None
    shared: dict[str, int] | None = values.pop("base", None)
    if shared:
        base = earlier[shared["call"]]
        request = {**base.request, **values["request"]}
        request["messages"] = base.said[: shared["messages"]] + request["messages"]
        values["request"] = request
        if shared["ids"]:
            known = joined(base.prompt_token_ids, base.completion_token_ids)[: shared["ids"]]
            known.extend(values["prompt_token_ids"])
            values["prompt_token_ids"] = known
    values["attempts"] = [Attempt(**attempt) for attempt in values.get("attempts", ())]
    values["findings"] = [Finding(**finding) for finding in values.get("findings", ())]
    call = PolicyCall(**values)
    call.pack(base)
    return call
