"""What a framework did to a conversation before it asked again: messages gone, added, changed."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Any

from osmosis_core.records import REASONING, FindingKind, Message

_sorted_json = json.JSONEncoder(sort_keys=True).encode

type Key = tuple[str, str, Hashable]
"""Role, text, and the tool calls made (their arguments as a hash) or answered."""


def message_key(message: Message) -> Key:
    """The same for messages that differ only in how a framework writes them.

    Text parts are joined, tool arguments are compared as JSON, reasoning is left out.
    """
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str):
        content = _text(content)
    if isinstance(calls, list) and calls:
        return str(message.get("role")), content, tuple(map(_tool_key, calls))  # pyright: ignore[reportUnknownArgumentType]
    return str(message.get("role")), content, str(message.get("tool_call_id"))


def _text(content: Any) -> str:
    try:
        return "".join(part["text"] for part in content or ())
    except (KeyError, TypeError):
        return _sorted_json(content)


def _tool_key(call: Any) -> Hashable:
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        same = _sorted_json(json.loads(arguments or "{}"))
        return str(call.get("id")), str(name), hash(same)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return _sorted_json(call)


def as_generated(answer: Message, copy: Message) -> Message:
    """An answer to be sent again, with what the framework's copy of it has besides."""
    thoughts = [answer[name] for name in REASONING if answer.get(name)]
    added = {
        name: value
        for name, value in copy.items()
        if value is not None and name not in ("role", "content", "tool_calls")
        if not (thoughts and name in REASONING and value in ("", *thoughts))
    }
    content = copy.get("content")
    parts: Any = content if isinstance(content, list) else ()  # pyright: ignore[reportUnknownVariableType]
    if any(set(part) - {"type", "text"} for part in parts):
        added["content"] = content
    return {**answer, **added} if added else answer


def departure(
    before: Sequence[Key], now: Sequence[Key], *, is_handoff: bool
) -> tuple[FindingKind, str] | None:
    """How `now` departs from a conversation that it holds a turn of; None when it goes on.

    With `is_handoff` another agent's history was taken over: its instructions may differ.
    """
    skipped = _leading_instructions(before)
    if is_handoff:
        before, now = before[skipped:], now[_leading_instructions(now) :]
    changes = _changes(before, now)
    gone = sum(end - start for start, end, _, _ in changes)
    added = sum(_added(before, now, *change) for change in changes)
    if not changes:
        return None
    text = f"{gone} of {len(before)} messages are gone" + (f", {added} are new" if added else "")
    if is_handoff:
        return "handoff", text
    if all(_are_results(before[i:j], now[k:m]) for i, j, k, m in changes):
        return "tool_results", text
    if gone > added:
        is_window = len(changes) == 1 and changes[0][0] == skipped and changes[0][1] < len(before)
        return ("summary" if added else "window" if is_window else "dropped"), text
    return "edited", text


def _changes(before: Sequence[Key], now: Sequence[Key]) -> list[tuple[int, int, int, int]]:
    """Parts of `before` and what `now` has in their places, the common ends put aside first."""
    same = (i for i, (one, other) in enumerate(zip(before, now, strict=False)) if one != other)
    head = next(same, min(len(before), len(now)))
    end = next((i for i in range(len(now), head, -1) if now[i - 1] == before[-1]), len(now))
    tail = 0
    while tail < min(len(before), end) - head and before[-1 - tail] == now[end - 1 - tail]:
        tail += 1
    middles = before[head : len(before) - tail], now[head : end - tail]
    opcodes = SequenceMatcher(None, *middles, autojunk=False).get_opcodes()
    changes = [tuple(head + i for i in code[1:]) for code in opcodes if code[0] != "equal"]
    return [(i, j, k, m) for i, j, k, m in changes if i < len(before)]


def _added(before: Sequence[Key], now: Sequence[Key], i: int, j: int, k: int, m: int) -> int:
    """Messages put in place of `before[i:j]`; what follows the end goes on, but for an answer."""
    if j < len(before):
        return m - k
    return int(m > k and before[i][0] == now[k][0] == "assistant")


def _leading_instructions(keys: Sequence[Key]) -> int:
    return next((i for i, key in enumerate(keys) if key[0] not in ("system", "developer")), 0)


def _are_results(before: Sequence[Key], now: Sequence[Key]) -> bool:
    ids = [[key[2] for key in keys if key[0] == "tool"] for keys in (before, now)]
    return ids[0] == ids[1] and len(ids[0]) == len(before) == len(now)
