"""The histories of agent frameworks as chat messages.

Read are chat messages, content blocks (Strands, Anthropic, LangChain), LangChain's message dicts
and the items of the Responses API (OpenAI Agents).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_core import Message

_LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_TEXT_TYPES = (None, "text", "input_text", "output_text", "summary_text", "reasoning_text")


def as_chat(messages: Iterable[Any]) -> list[Message]:
    """The messages as chat messages with `role`, text in `content`, and where there are any
    `tool_calls`, `tool_call_id`, `reasoning_content` and `usage`; unknown ones keep their role."""
    reader = _Reader()
    for message in messages:
        reader.read(message if isinstance(message, dict) else {"content": message})  # pyright: ignore[reportUnknownArgumentType]
    return reader.chat


def text_of(content: Any) -> str:
    """Content as text: parts that are all text joined by newlines, anything else as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        parts: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
        texts = [_part_text(part) for part in parts]
        if all(text is not None for text in texts):
            return "\n".join(text for text in texts if text is not None)
    return json.dumps(content, ensure_ascii=False, default=str)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    known: dict[str, Any] = part  # pyright: ignore[reportUnknownVariableType]
    text = known.get("text")
    return text if known.get("type") in _TEXT_TYPES and isinstance(text, str) else None


class _Reader:
    def __init__(self) -> None:
        self.chat: list[Message] = []
        self._turn: Message | None = None
        """The answer that the items of the Responses API at hand are parts of."""

    def read(self, message: Message) -> None:
        kind = str(message.get("type"))
        if "role" in message or kind in _LANGCHAIN_ROLES:
            self._read_message(message, kind)
        elif kind == "reasoning":
            texts = message.get("content") or message.get("summary")
            self._new_turn()["reasoning_content"] = text_of(texts)
        elif kind.endswith("_output"):
            self._close({"role": "tool", "tool_call_id": message.get("call_id"),
                         "content": text_of(message.get("output"))})  # fmt: skip
        elif kind.endswith("_call"):
            turn = self._turn if self._turn is not None else self._new_turn()
            turn.setdefault("tool_calls", []).append(_item_call(message, kind))
        else:
            self._close({"role": message.get("role", kind), "content": text_of(message)})

    def _read_message(self, message: Message, kind: str) -> None:
        role = message.get("role") or _LANGCHAIN_ROLES[kind]
        if kind == "message" and role == "assistant":
            self._new_turn()["content"] = text_of(message.get("content"))
            return
        self._turn = None
        self.chat += _from_message({**message, "role": role})

    def _new_turn(self) -> Message:
        """An answer without words or tool calls yet."""
        if self._turn is None or self._turn.keys() & {"content", "tool_calls"}:
            self._turn = {"role": "assistant"}
            self.chat.append(self._turn)
        return self._turn

    def _close(self, message: Message) -> None:
        self._turn = None
        self.chat.append(message)


def _item_call(item: Message, kind: str) -> Message:
    """A function call of the Responses API, or one of a tool that the API ran itself."""
    arguments = item.get("arguments", item.get("input"))
    if arguments is None:
        hidden = ("id", "call_id", "type", "status", "name")
        arguments = {name: value for name, value in item.items() if name not in hidden}
    return {
        "id": item.get("call_id") or item.get("id"),
        "function": {
            "name": item.get("name") or kind.removesuffix("_call"),
            "arguments": arguments,
        },
    }


def _from_message(message: Message) -> list[Message]:
    """A message and, before it, the results of tools that came in its content."""
    content, parts = message.get("content"), _Parts()
    if isinstance(content, list):
        for block in content:  # pyright: ignore[reportUnknownVariableType]
            parts.read(block)
        content = parts.others
    calls = [*(message.get("tool_calls") or ()), *(message.get("invalid_tool_calls") or ())]
    calls = calls or parts.calls  # LangChain has them in both places
    if parts.results and not (parts.others or calls or parts.thoughts):
        return parts.results
    chat: Message = {"role": message["role"], "content": text_of(content)}
    optional = {
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
        "reasoning_content": _reasoning(message) or "\n".join(parts.thoughts),
        "usage": _usage(message),
    }
    return [*parts.results, {**chat, **{name: value for name, value in optional.items() if value}}]


def _reasoning(message: Message) -> str:
    more = _object(message.get("additional_kwargs"))
    found = (m.get(name) for m in (message, more) for name in ("reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str) and text), "")


def _usage(message: Message) -> Mapping[str, Any]:
    response = _object(message.get("response_metadata"))
    found = message.get("usage") or message.get("usage_metadata") or response.get("token_usage")
    return _object(found)


class _Parts:
    """The blocks of a message's content, sorted."""

    def __init__(self) -> None:
        self.calls: list[Message] = []
        self.results: list[Message] = []
        self.thoughts: list[str] = []
        self.others: list[Any] = []

    def read(self, block: Any) -> None:
        part = _object(block)
        use, result = _object(part.get("toolUse")), _object(part.get("toolResult"))
        kind = part.get("type")
        if use:
            self._call(use.get("toolUseId"), use)
        elif result:
            self._result(result.get("toolUseId"), result)
        elif kind == "tool_use":
            self._call(part.get("id"), part)
        elif kind == "tool_result":
            self._result(part.get("tool_use_id"), part)
        elif thought := _thought(part):
            self.thoughts.append(thought)
        else:
            self.others.append(block)

    def _call(self, call_id: Any, use: Mapping[str, Any]) -> None:
        function = {"name": use.get("name"), "arguments": use.get("input")}
        self.calls.append({"id": call_id, "function": function})

    def _result(self, call_id: Any, result: Mapping[str, Any]) -> None:
        content = text_of(result.get("content"))
        self.results.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _thought(part: Mapping[str, Any]) -> str:
    strands = _object(_object(part.get("reasoningContent")).get("reasoningText"))
    name = {"thinking": "thinking", "reasoning": "reasoning"}.get(str(part.get("type")), "")
    return str(strands.get("text") or part.get(name) or "")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
