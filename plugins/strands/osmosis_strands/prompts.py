"""OpenAI chat messages as Strands messages: roles, tool calls and results, images, blocks."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import base64
import copy
import json
import mimetypes
from collections.abc import Callable, Sequence
from typing import Any

from osmosis_core import Message

type Block = dict[str, Any]

_BLOCK_KEYS = frozenset(
    [
        "text",
        "image",
        "document",
        "video",
        "toolUse",
        "toolResult",
        "reasoningContent",
        "cachePoint",
        "guardContent",
        "citationsContent",
    ]
)


def strands_prompt(messages: Sequence[Any]) -> tuple[list[Message], list[Block]]:
    """Convert a prompt; returns Strands messages and the blocks of its system messages.

    Takes chat messages with string or part content, and Strands messages as they are, mixed if
    need be; the input is never changed. Tool messages that follow each other become one user
    message, as Strands itself records them.

    Raises:
        ValueError: a message has no role that Strands knows, or a part that it cannot carry;
            the text names the message by its position.
    """
    converted: list[Message] = []
    system: list[Block] = []
    for position, message in enumerate(messages):
        where = f"prompt message {position}"
        role = message.get("role") if isinstance(message, dict) else None
        convert = _ROLES.get(role) if isinstance(role, str) else None
        if convert is None:
            known = ", ".join(_ROLES)
            raise ValueError(f"{where} has role {role!r}; Strands takes {known}")
        try:
            target, blocks = convert(message, where)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{where} is malformed: {type(error).__name__} {error}") from error
        if target == "system":
            system += blocks
        elif role in ("tool", "function") and _holds_tool_results(converted):
            converted[-1]["content"] += blocks
        else:
            converted.append({"role": target, "content": blocks})
    return converted, system


def _holds_tool_results(messages: list[Message]) -> bool:
    return bool(messages) and all("toolResult" in block for block in messages[-1]["content"])


def _system(message: Message, where: str) -> tuple[str, list[Block]]:
    blocks = _content(message.get("content"), where)
    if any("text" not in block and "cachePoint" not in block for block in blocks):
        raise ValueError(f"{where} is a system message with more than text; Strands takes text")
    return "system", blocks


def _user(message: Message, where: str) -> tuple[str, list[Block]]:
    return "user", _content(message.get("content"), where)


def _assistant(message: Message, where: str) -> tuple[str, list[Block]]:
    blocks: list[Block] = []
    reasoning = message.get("reasoning_content")
    if reasoning:
        blocks.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
    blocks += _content(message.get("content"), where)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        tool_use = {
            "toolUseId": call["id"],
            "name": function["name"],
            "input": _arguments(function.get("arguments")),
        }
        blocks.append({"toolUse": tool_use})
    return "assistant", blocks


def _arguments(text: Any) -> Any:
    if not isinstance(text, str):
        return text or {}
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {"_raw": text}


def _tool(message: Message, where: str) -> tuple[str, list[Block]]:
    call_id = message.get("tool_call_id") or message.get("name")
    if not call_id:
        raise ValueError(f"{where} is a tool result without tool_call_id")
    content = _content(message.get("content"), where) or [{"text": ""}]
    result = {"toolUseId": call_id, "status": "success", "content": content}
    return "user", [{"toolResult": result}]


_ROLES: dict[str, Callable[[Message, str], tuple[str, list[Block]]]] = {
    "system": _system,
    "developer": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
    "function": _tool,
}


def _content(content: Any, where: str) -> list[Block]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"text": content}]
    if not isinstance(content, list):
        raise ValueError(  # noqa: TRY004 - a wrong prompt is a wrong value
            f"{where} has {type(content).__name__} content; give text or a list of parts"
        )
    return [_part(part, where) for part in content]


def _part(part: Any, where: str) -> Block:
    if isinstance(part, str):
        return {"text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind is None and isinstance(part, dict) and _BLOCK_KEYS & part.keys():
        return copy.deepcopy(part)
    if kind in ("text", "input_text", "output_text", "refusal"):
        return {"text": part.get("text") or part.get("refusal") or ""}
    if kind in ("image_url", "input_image"):
        url = part["image_url"]
        return {"image": _image(url if isinstance(url, dict) else {"url": url}, where)}
    if kind == "file" and "file_data" in part.get("file", {}):
        return {"document": _document(part["file"], where)}
    raise ValueError(f"{where} has a part of type {kind!r}; Strands takes text, images and files")


def _image(image_url: Block, where: str) -> Block:
    """Strands' form for tools and graders, and the prompt's own for the wire."""
    url: str = image_url["url"]
    source: Block = {"image_url": dict(image_url)}
    if url.startswith("data:"):
        subtype, source["bytes"] = _data_url(url, where)
    else:
        subtype = (mimetypes.guess_type(url)[0] or "image/png").partition("/")[2]
    return {"format": {"jpg": "jpeg"}.get(subtype, subtype), "source": source}


def _document(file: Block, where: str) -> Block:
    subtype, data = _data_url(file["file_data"], where)
    name = str(file.get("filename") or "document")
    return {"name": name, "format": subtype, "source": {"bytes": data}}


def _data_url(url: str, where: str) -> tuple[str, bytes]:
    """The media subtype and the bytes of a base64 data URL (RFC 2397)."""
    head, _, data = url.removeprefix("data:").partition(",")
    media, *options = head.split(";")
    if "base64" not in options or "/" not in media:
        raise ValueError(f"{where} has a data URL that is not base64 with a media type")
    try:
        return media.partition("/")[2], base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ValueError(f"{where} has a data URL that is not base64: {error}") from error
