"""OpenAI chat messages among the SDK's items, which knows no tool calls in them."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from osmosis_core import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")


def native_items(items: Sequence[Any]) -> list[Any]:
    """The items, with chat messages as the SDK's own; the input is never changed.

    Raises:
        ValueError: a chat message has no role that the SDK knows, or lacks what its role needs;
            the text names it by its position.
    """
    return [native for position, item in enumerate(items) for native in _native(item, position)]


def _native(item: Any, position: int) -> Iterator[Any]:
    if not isinstance(item, dict) or "type" in item or "role" not in item:
        yield item
        return
    role = item["role"]
    if role not in _ROLES:
        raise ValueError(
            f"prompt message {position} has role {role!r}; OpenAI Agents takes {', '.join(_ROLES)}"
        )
    try:
        yield from _converted(role, item)
    except (AttributeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__} {error}"
        raise ValueError(f"prompt message {position} is malformed: {what}") from error


def _converted(role: str, message: Message) -> Iterator[Message]:
    content = message.get("content")
    if role == "tool":
        call_id = message["tool_call_id"]
        yield {"type": "function_call_output", "call_id": call_id, "output": _text(content)}
    elif role == "assistant":
        if content or message.get("refusal"):
            yield _said(content, message.get("refusal"))
        for call in message.get("tool_calls") or []:
            function = call["function"]
            named = {"name": function["name"], "arguments": function.get("arguments") or "{}"}
            yield {"type": "function_call", "call_id": call["id"], **named}
    else:
        parts = content if isinstance(content, str) else [_part(part) for part in content or []]
        yield {"role": role, "content": parts}


def _said(content: Any, refusal: str | None) -> Message:
    """An assistant's text as the SDK writes it itself, which tool calls then join."""
    parts: list[Message] = [{"type": "refusal", "refusal": refusal}] if refusal else []
    if content:
        parts = [{"type": "output_text", "text": _text(content), "annotations": []}, *parts]
    said = {"id": "__fake_id__", "type": "message", "role": "assistant", "status": "completed"}
    return {**said, "content": parts}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part["text"] for part in content or [])


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if part.get("type") == "image_url" and isinstance(part["image_url"], str):
        return {**part, "image_url": {"url": part["image_url"]}}
    if part.get("type") == "file":
        return {"type": "input_file", **part["file"]}
    return part
