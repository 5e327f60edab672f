"""What an assistant says as a row of parts, whole or as it comes; dialects are written from it."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

type Json = dict[str, Any]
type Kind = Literal["reasoning", "text", "refusal", "tool"]


@dataclass(slots=True, eq=False)
class Part:
    """A piece of an answer; `text` of a tool call is its arguments, as generated."""

    kind: Kind
    text: str = ""
    call_id: str = ""
    name: str = ""


type Event = tuple[Literal["open", "grow", "close"], Part, str]
"""What happened to a part, and by which text it grew."""

_FIELDS: tuple[tuple[str, Kind], ...] = (
    ("reasoning_content", "reasoning"),
    ("reasoning", "reasoning"),
    ("content", "text"),
    ("refusal", "refusal"),
)


class Answer:
    """A policy's answer: its parts, and how it ended."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.model = ""
        self.choice: Json = {}
        self.usage: Json = {}

    @property
    def finish_reason(self) -> str:
        """As the policy says, but `tool_calls` whenever it calls tools and was not cut."""
        said: str = self.choice.get("finish_reason") or "stop"
        has_tools = any(part.kind == "tool" for part in self.parts)
        return "tool_calls" if has_tools and said in ("stop", "function_call") else said

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from a cache."""
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def _note(self, answer: Json) -> None:
        self.model = answer.get("model") or self.model
        self.usage = answer.get("usage") or self.usage


class WholeAnswer(Answer):
    """An answer read from one chat completion."""

    def __init__(self, completion: Json) -> None:
        super().__init__()
        self._note(completion)
        self.choice = completion["choices"][0]
        message: Json = self.choice["message"]
        for name, kind in _FIELDS:
            text = _text(message.get(name))
            if text and not any(part.kind == kind for part in self.parts):
                self.parts.append(Part(kind, text))
        for call in message.get("tool_calls") or []:
            function: Json = call.get("function") or {}
            arguments, name = function.get("arguments") or "", function.get("name") or ""
            self.parts.append(Part("tool", arguments, call.get("id") or new_id("call"), name))


class StreamedAnswer(Answer):
    """An answer read from chat completion chunks; its parts open and close one after the other.

    A part that begins while another is open waits until that one is complete, so parallel tool
    calls may come interleaved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[tuple[Part, list[str]]] = deque()
        self._tools: dict[int, tuple[Part, list[str]]] = {}

    def feed(self, chunk: Json) -> Iterator[Event]:
        """What a chunk brings."""
        self._note(chunk)
        for choice in chunk.get("choices") or []:
            if not choice.get("index"):
                self.choice.update({k: v for k, v in choice.items() if v is not None})
                self._take(choice.get("delta") or {})
        yield from self._advance(at_end=False)

    def close(self) -> Iterator[Event]:
        """What was still waiting when the stream ended.

        Raises:
            ValueError: a tool call went on after it was complete.
        """
        yield from self._advance(at_end=True)
        if any("".join(waiting).strip() for _, waiting in self._tools.values()):
            raise ValueError("the policy went on with a tool call that was complete")

    def _take(self, delta: Json) -> None:
        taken: set[Kind] = set()
        for name, kind in _FIELDS:
            text = _text(delta.get(name))
            if text and kind not in taken:
                taken.add(kind)
                self._last(kind)[1].append(text)
        for call in delta.get("tool_calls") or []:
            part, waiting = self._tool(call)
            function: Json = call.get("function") or {}
            part.call_id = part.call_id or call.get("id") or ""
            part.name += function.get("name") or ""
            waiting.append(function.get("arguments") or "")

    def _last(self, kind: Kind) -> tuple[Part, list[str]]:
        if not self._queue or self._queue[-1][0].kind != kind:
            self._queue.append((Part(kind), []))
        return self._queue[-1]

    def _tool(self, delta: Json) -> tuple[Part, list[str]]:
        index = delta.get("index")
        if index is None:
            last = len(self._tools) - 1
            is_new = last < 0 or delta.get("id") not in (None, "", self._tools[last][0].call_id)
            index = last + is_new
        if index not in self._tools:
            self._tools[index] = Part("tool"), []
            self._queue.append(self._tools[index])
        return self._tools[index]

    def _advance(self, *, at_end: bool) -> Iterator[Event]:
        while self._queue:
            part, waiting = self._queue[0]
            text, is_last = "".join(waiting), len(self._queue) == 1
            if part not in self.parts:
                if is_last and not text and not at_end:
                    return  # a tool's name may go on
                part.call_id = part.call_id or new_id("call")
                self.parts.append(part)
                yield "open", part, ""
            if text:
                waiting.clear()
                part.text += text
                yield "grow", part, text
            if not at_end and (is_last or not _is_complete(part)):
                return
            self._queue.popleft()
            yield "close", part, ""


def new_id(prefix: str) -> str:
    """A fresh id such as `call_4f...`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def _is_complete(part: Part) -> bool:
    if part.kind != "tool":
        return True
    try:
        json.loads(part.text)
    except ValueError:
        return False
    return True


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content if isinstance(content, str) else ""
