"""From a stream of chunks to one completion, and from a completion to the shortest stream."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from osmosis_core.errors import one_line

type Json = dict[str, Any]

DONE = "[DONE]"


class MalformedAnswer(Exception):
    """The policy's answer is not a chat completion; the text says what is wrong."""

    def __init__(self, problem: str, quoted: str = "") -> None:
        super().__init__(f"{problem}: {one_line(quoted, 120)!r}" if quoted else problem)
        self.problem, self.quoted = problem, quoted


class EventReader:
    """Server-sent events from bytes that may be cut anywhere (WHATWG event-stream format)."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that `chunk` completes; comments and other fields are skipped."""
        self._rest += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))

    def close(self) -> Iterator[str]:
        """The event that the stream's end completes, if any."""
        yield from self.feed(b"\n\n")

    def _line(self, line: bytes) -> Iterator[str]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            yield b"\n".join(self._data).decode("utf-8", "replace")
            self._data.clear()


class _Parts(list[str]):
    """A text that is still coming in; joined once, so a long answer costs linear time."""


class Assembler:
    """Chat completion chunks in, one chat completion out."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._choices: dict[int, Json] = {}
        self.done = False

    def add(self, data: str) -> None:
        """Take the data of one event.

        Raises:
            MalformedAnswer: it is not a chunk, or it reports an error.
        """
        if self.done or data.strip() == DONE:
            self.done = True
            return
        chunk = _object(data, "a chunk of the stream")
        if chunk.get("error"):
            raise MalformedAnswer("the stream reported an error", str(chunk["error"]))
        choices: Any = chunk.pop("choices", None) or []
        self._head.update({k: v for k, v in chunk.items() if v is not None or k not in self._head})
        try:
            for choice in choices:
                self._add_choice(choice)
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedAnswer("a chunk of the stream has an unknown shape", data) from error

    def _add_choice(self, delta: Json) -> None:
        index = int(delta.get("index") or 0)
        empty: Json = {"index": index, "message": {"role": "assistant", "content": None}}
        choice = self._choices.setdefault(index, empty)
        _merge_message(choice["message"], delta.get("delta") or {})
        for name, value in delta.items():
            if name in ("delta", "index", "message") or value is None:
                continue
            if name == "logprobs":
                _merge_logprobs(choice.setdefault("logprobs", {}), value)
            elif isinstance(value, list):
                _extend(choice, name, value)
            else:
                choice[name] = value

    def completion(self) -> Json:
        """The whole completion; raises MalformedAnswer when the stream was cut or empty."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        if not choices:
            raise MalformedAnswer("the stream ended without an answer")
        if any(not choice.get("finish_reason") for choice in choices):
            raise MalformedAnswer("the stream was cut: it ended without a finish reason")
        try:
            for choice in choices:
                choice["message"] = _joined(choice["message"])
        except TypeError as error:
            raise MalformedAnswer("the stream mixes text with other content") from error
        return _checked({**self._head, "object": "chat.completion", "choices": choices})


def _merge_message(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls":
            calls: dict[int, Json] = message.setdefault("tool_calls", {})
            for call in value:
                _merge_tool_call(calls.setdefault(_tool_call_index(calls, call), {}), call)
        elif name == "role":
            message["role"] = value
        elif isinstance(value, str):
            _append(message, name, value)
        elif isinstance(value, list):
            _extend(message, name, value)
        else:
            message[name] = value


def _tool_call_index(calls: dict[int, Json], delta: Json) -> int:
    """The delta's index; without one, a new id begins a call and anything else goes on with it."""
    if delta.get("index") is not None:
        return int(delta["index"])
    last = len(calls) - 1
    is_new = delta.get("id") and delta["id"] != calls.get(last, {}).get("id")
    return last + 1 if is_new else max(last, 0)


def _merge_tool_call(call: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "function" and value:
            function: Json = call.setdefault("function", {"name": "", "arguments": ""})
            for part in ("name", "arguments"):
                _append(function, part, value.get(part) or "")
        elif name != "index" and value:
            call[name] = value
    call.setdefault("type", "function")


def _append(target: Json, name: str, text: str) -> None:
    parts = target.get(name)
    if not isinstance(parts, _Parts):
        parts = target[name] = _Parts([parts] if parts else [])
    parts.append(text)


def _extend(target: Json, name: str, items: Any) -> None:
    target[name] = target.get(name) or []
    target[name].extend(items)


def _joined(value: Any) -> Any:
    """The message with its texts joined and its tool calls as a list, by index."""
    if isinstance(value, _Parts):
        return "".join(value)
    if not isinstance(value, dict):
        return value
    message: Json = {name: _joined(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[index] for index in sorted(calls)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return message


def _merge_logprobs(logprobs: Json, delta: Json) -> None:
    for name, value in delta.items():
        if isinstance(value, list):
            _extend(logprobs, name, value)
        else:
            logprobs.setdefault(name, value)


def parse_completion(body: bytes) -> Json:
    """A plain answer's completion.

    Raises:
        MalformedAnswer: it is not JSON, has no choice, or a choice has no finish reason.
    """
    completion = _object(body.decode("utf-8", "replace"), "the answer")
    if completion.get("error"):
        raise MalformedAnswer("the answer is an error", str(completion["error"]))
    if not completion.get("choices"):
        raise MalformedAnswer("the answer has no choices")
    return _checked(completion)


def _checked(completion: Json) -> Json:
    """The completion, if the parts that are read from it later have the API's shape."""
    choices: list[Json] = completion["choices"]
    try:
        for choice in choices:
            message: Json = choice["message"]
            logprobs: Json = choice.get("logprobs") or {}
            parts: list[Any] = [message, *(message.get("tool_calls") or [])]
            parts += logprobs.get("content") or []
            if not all(isinstance(part, dict) for part in parts):
                raise TypeError
            if not choice.get("finish_reason"):
                raise MalformedAnswer("a choice of the answer has no finish reason")
            choice["message"] = _mended(message)
    except (AttributeError, KeyError, TypeError) as error:
        raise MalformedAnswer("the answer's choices have an unknown shape", str(choices)) from error
    return completion


def _mended(value: Any) -> Any:
    """Characters that came in two halves are put together; a half alone, which is no text, goes."""
    if isinstance(value, dict):
        return {name: _mended(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_mended(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def short_stream(completion: Json, include_usage: bool) -> bytes:
    """The completion as a stream of few events: the whole delta, the finish reason, usage, done."""
    head = {k: v for k, v in completion.items() if k not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk"
    events: list[Json] = []
    for choice in completion["choices"]:
        index = choice.get("index") or 0
        delta = dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{**c, "index": i} for i, c in enumerate(delta["tool_calls"])]
        whole = {**choice, "index": index, "delta": delta, "finish_reason": None}
        del whole["message"]
        end: Json = {"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}
        events += [{**head, "choices": [whole]}, {**head, "choices": [end]}]
    if include_usage:
        events.append({**head, "choices": [], "usage": completion.get("usage")})
    return event_stream([*map(json.dumps, events), DONE])


def event_stream(events: Iterable[str]) -> bytes:
    """The bytes of a stream with these events."""
    return "".join(f"data: {event}\n\n" for event in events).encode()


def _object(text: str, what: str) -> Json:
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise MalformedAnswer(f"{what} is not JSON", text) from error
    if not isinstance(value, dict):
        raise MalformedAnswer(f"{what} is not a JSON object", text)
    return value  # pyright: ignore[reportUnknownVariableType]
