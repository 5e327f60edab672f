"""Small questions about chat messages, which the documentation calls `rollout.utils`."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from osmosis_agent_loop.schemas import MessageDict


def parse_tool_calls(message: MessageDict) -> list[dict[str, Any]]:
    """The tool calls of a message; none where it has no list of them."""
    calls = message.get("tool_calls")
    return cast("list[dict[str, Any]]", calls) if isinstance(calls, list) else []


def normalize_stop(stop: object) -> list[str] | None:
    """Stop sequences as a list: of one text, or of a list of texts; None for anything else."""
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list) and all(isinstance(text, str) for text in cast("list[Any]", stop)):
        return cast("list[str]", stop)
    return None


def get_message_content(message: MessageDict) -> str:
    """The text of a message, "" without one; of content in parts, their texts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return content if isinstance(content, str) else ""


def get_message_role(message: MessageDict) -> str:
    """The role of a message, `unknown` without one."""
    return message.get("role", "unknown")


def is_assistant_message(message: MessageDict) -> bool:
    """True when the policy said it."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: MessageDict) -> bool:
    """True for the result of a tool."""
    return get_message_role(message) == "tool"


def is_user_message(message: MessageDict) -> bool:
    """True for what the user said."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: list[MessageDict]) -> dict[str, int]:
    """How many messages each role has."""
    return dict(Counter(map(get_message_role, messages)))
