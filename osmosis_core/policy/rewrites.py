"""What a framework did to a conversation before it asked again: messages gone, added, changed."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Any

from osmosis_core.records import FindingKind, Message

type Key = tuple[str, str, Hashable]
"""Role, text, and the tool calls made (their arguments as a hash) or answered."""


def message_key(message: Message) -> Key:
    """The same for messages that differ only in how a framework writes them.

    Text parts are joined, tool arguments are compared as JSON, reasoning is left out.
    """
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str):
        content = _text(content)
    tools = tuple(_tool_key(call) for call in calls) if calls else str(message.get("tool_call_id"))
    return str(message.get("role")), content, tools


def _text(content: Any) -> str:
    try:
        return "".join(part["text"] for part in content or ())
    except (KeyError, TypeError):
        return json.dumps(content, sort_keys=True)


def _tool_key(call: Any) -> Hashable:
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        same = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
        return call.get("id"), name, hash(same)
    except (AttributeError, KeyError, TypeError, ValueError):
        return json.dumps(call, sort_keys=True)


def departure(
    before: Sequence[Key], now: Sequence[Key], *, is_handoff: bool
) -> tuple[FindingKind, str] | None:
    """How `now` departs from a conversation that it holds a turn of; None when it goes on.

    With `is_handoff` another agent's history was taken over: its instructions may differ.
    """
    skipped = _leading_instructions(before)
    if is_handoff:
        before, now = before[skipped:], now[_leading_instructions(now) :]
    matcher = SequenceMatcher(None, before, now, autojunk=False)
    opcodes = matcher.get_opcodes()
    changes = [change for change in opcodes if change[0] != "equal" and change[1] < len(before)]
    gone = sum(end - start for _, start, end, _, _ in changes)
    added = sum(_added(before, now, *change[1:]) for change in changes)
    if not changes:
        return None
    text = f"{gone} of {len(before)} messages are gone" + (f", {added} are new" if added else "")
    if is_handoff:
        return "handoff", text
    if all(_are_results(before[i:j], now[k:m]) for _, i, j, k, m in changes):
        return "tool_results", text
    if gone > added:
        is_window = len(changes) == 1 and changes[0][1] == skipped and changes[0][2] < len(before)
        return ("summary" if added else "window" if is_window else "dropped"), text
    return "edited", text


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
