"""OpenAI chat messages among the SDK's items, which knows no tool calls in them."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterator, Sequence
from typing import Any

from osmosis_core import Message

_SAID = {"id": "__fake_id__", "type": "message", "role": "assistant", "status": "completed"}
"""An assistant's text as the SDK writes it itself, which tool calls then join."""


def native_items(items: Sequence[Any]) -> list[Any]:
    """The items, with chat messages as the SDK's own; the input is never changed.

    Raises:
        ValueError: a chat message lacks what its role needs; the text names it by its position.
    """
    native: list[Any] = []
    for position, item in enumerate(items):
        is_chat = isinstance(item, dict) and "role" in item and "type" not in item
        try:
            native += _converted(item) if is_chat else [item]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"prompt message {position} is malformed: {error!r}") from error
    return native


def _converted(message: Message) -> Iterator[Message]:
    content: Any = message.get("content")
    match message["role"]:
        case "tool":
            output = {"call_id": message["tool_call_id"], "output": _text(content)}
            yield {"type": "function_call_output", **output}
        case "assistant":
            if text := _text(content) or message.get("refusal"):
                parts = [{"type": "output_text", "text": text, "annotations": []}]
                yield {**_SAID, "content": parts}
            for call in message.get("tool_calls") or []:
                yield {"type": "function_call", "call_id": call["id"], **call["function"]}
        case role:
            yield {"role": role, "content": _parts(content)}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content or [])


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "input_file", **p["file"]} if p.get("type") == "file" else p for p in content]
