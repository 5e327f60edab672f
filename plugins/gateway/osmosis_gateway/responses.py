"""OpenAI responses, as chat completions and back; nothing is stored between calls."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from osmosis_gateway.admission import Refusal
from osmosis_gateway.chat import error as error
from osmosis_gateway.parts import Answer, Json, Part, StreamedAnswer, WholeAnswer, new_id

_STATEFUL = ("background", "conversation", "previous_response_id", "prompt")
_TRANSLATED = ("input", "instructions", "max_output_tokens", "reasoning", "text", "tools")
_UNSAID = ("client_metadata", "include", "max_tool_calls", "metadata", "prompt_cache_key")
_HINTS = ("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier")
_MORE = ("store", "stream_options", "tool_choice", "top_logprobs", "truncation")
_DROPPED = frozenset((*_STATEFUL, *_TRANSLATED, *_UNSAID, *_HINTS, *_MORE))
"""Fields with a translation of their own, or without any; others go to the policy as they are."""

_ECHOED = ("instructions", "metadata", "reasoning", "temperature", "text", "top_p")
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


def to_chat(body: Json) -> Json:
    """A responses request as a chat completion request.

    Items of one turn (reasoning, text, function calls) become one assistant message. Log-probs are
    not told.

    Raises:
        Refusal: it refers to something stored, or to what no chat completion can carry.
    """
    for name in _STATEFUL:
        if body.get(name):
            raise Refusal(400, f"{name}: the gateway stores nothing; send the whole input")
    chat = {k: v for k, v in body.items() if k not in _DROPPED and v is not None}
    chat["messages"] = _messages(body)
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat.update(_tool_choice(body.get("tool_choice")))
    effort = (body.get("reasoning") or {}).get("effort")
    if effort:
        chat["reasoning_effort"] = effort
    chat.update(_response_format((body.get("text") or {}).get("format") or {}))
    return chat


def _messages(body: Json) -> list[Json]:
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    turn: Json | None = None
    for item in given:
        kind = item.get("type") or "message"
        is_assistant = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if not is_assistant:
            messages.append(_other(kind, item))
            turn = None
        elif turn is None or not _joins(turn, kind, item):
            messages.append(turn := {"role": "assistant", "content": None})
        if turn is not None:
            _add(turn, kind, item)
    for message in messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
    return messages


def _joins(turn: Json, kind: str, item: Json) -> bool:
    """True when an item goes on with the turn; a second text or thought begins another one."""
    if kind == "reasoning":
        return turn.keys() <= {"role", "content", "reasoning_content"} and turn["content"] is None
    return kind == "function_call" or turn["content"] is None


def _add(turn: Json, kind: str, item: Json) -> None:
    if kind == "reasoning":
        thought = "".join(p["text"] for p in item.get("content") or item.get("summary") or [])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
    elif kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    else:
        turn["content"] = _text(item["content"])


def _other(kind: str, item: Json) -> Json:
    if kind == "function_call_output":
        content = _text(item["output"])
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    if kind != "message":
        raise Refusal(400, f"an input item has type {kind!r}, which is not supported")
    role, content = item["role"], item["content"]
    if role not in ("user", "system", "developer"):
        raise Refusal(400, f"an input message has role {role!r}; there are user and assistant")
    if role != "user":
        return {"role": "system", "content": _text(content)}
    return {
        "role": role,
        "content": content if isinstance(content, str) else [_part(p) for p in content],
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    for part in parts:
        if part["type"] != "text":
            raise Refusal(400, f"only a user message can have a part of type {part['type']!r}")
    return "".join(part["text"] for part in parts)


def _part(part: Json) -> Json:
    kind = part["type"]
    if kind in ("input_text", "output_text", "text", "refusal"):
        return {"type": "text", "text": part["refusal" if kind == "refusal" else "text"]}
    if kind == "input_image" and part.get("image_url"):
        url = {"url": part["image_url"]}
        return {"type": "image_url", "image_url": url | _given(part, "detail")}
    if kind == "input_file" and part.get("file_data"):
        return {"type": "file", "file": _given(part, "filename", "file_data")}
    raise Refusal(400, f"an input message has a part of type {kind!r}, which is not supported")


def _given(value: Json, *names: str) -> Json:
    return {name: value[name] for name in names if value.get(name) is not None}


def _tool(tool: Json) -> Json:
    if tool["type"] != "function":
        raise Refusal(400, f"tool {tool['type']!r} runs at OpenAI; the policy takes functions only")
    return {
        "type": "function",
        "function": _given(tool, "name", "description", "parameters", "strict"),
    }


def _tool_choice(choice: Any) -> Json:
    if not isinstance(choice, dict):
        return {} if choice is None else {"tool_choice": choice}
    if choice["type"] != "function":
        raise Refusal(400, f"tool_choice {choice['type']!r} is not supported; name a function")
    return {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}


def _response_format(wanted: Json) -> Json:
    if wanted.get("type") == "json_schema":
        schema = _given(wanted, "name", "description", "schema", "strict")
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": wanted} if wanted.get("type") == "json_object" else {}


def from_chat(completion: Json, body: Json) -> Json:
    """A chat completion as a response."""
    answer = WholeAnswer(completion)
    return _response(answer, body, [_item(part, new_id("item")) for part in answer.parts])


def _response(answer: Answer, body: Json, output: list[Json]) -> Json:
    cut = _CUT.get(answer.finish_reason)
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "error": None,
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        **{name: body.get(name) for name in _ECHOED},
        "usage": _usage(answer),
    }


def _usage(answer: Answer) -> Json:
    used, details = answer.usage, answer.usage.get("completion_tokens_details") or {}
    taken, said = used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
        "total_tokens": taken + said,
    }


def _item(part: Part, item_id: str, status: str = "completed") -> Json:
    if part.kind == "tool":
        call = {"call_id": part.call_id, "name": part.name, "arguments": part.text}
        return {"type": "function_call", "id": item_id, "status": status, **call}
    content = [_content(part)] if status == "completed" else []
    if part.kind == "reasoning":
        item = {"type": "reasoning", "summary": [], "content": content}
    else:
        item = {"type": "message", "role": "assistant", "content": content}
    return {**item, "id": item_id, "status": status}


def _content(part: Part) -> Json:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    if part.kind == "refusal":
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


_NAMES = {"reasoning": "reasoning_text", "refusal": "refusal", "text": "output_text"}


class Stream:
    """Chunks in, response events out."""

    def __init__(self, body: Json) -> None:
        self._body = body
        self._answer = StreamedAnswer()
        self._first: Json = {}
        self._output: list[Json] = []
        self._sequence = 0

    def feed(self, chunk: Json) -> Iterator[str]:
        """The events for a chunk."""
        events = list(self._answer.feed(chunk))
        if not self._first:
            begun = {"status": "in_progress", "usage": None}
            self._first = _response(self._answer, self._body, []) | begun
            yield self._event("created", response=self._first)
            yield self._event("in_progress", response=self._first)
        for event in events:
            yield from self._told(*event)

    def close(self) -> Iterator[str]:
        """The last events."""
        for event in self._answer.close():
            yield from self._told(*event)
        response = _response(self._answer, self._body, self._output)
        response |= {name: self._first[name] for name in ("id", "created_at")}
        yield self._event(response["status"], response=response)

    def fail(self, status: int, message: str) -> Iterator[str]:
        """The events of an answer that broke off."""
        failure = {"code": "server_error", "message": message}
        first = self._first or _response(self._answer, self._body, [])
        response = {**first, "status": "failed", "error": failure, "output": self._output}
        yield self._event("failed", response=response)

    def _told(self, what: str, part: Part, text: str) -> Iterator[str]:
        if what == "open":
            self._output.append(_item(part, new_id("item"), "in_progress"))
            yield self._item_event("output_item.added")
            if part.kind != "tool":
                content = _content(Part(part.kind))
                yield self._at("content_part.added", content_index=0, part=content)
        elif what == "grow":
            more = {"logprobs": []} if part.kind == "text" else {}
            yield self._grown(part, "delta", delta=text, **more)
        else:
            yield from self._closed(part)

    def _closed(self, part: Part) -> Iterator[str]:
        self._output[-1] = item = _item(part, self._output[-1]["id"])
        if part.kind == "tool":
            yield self._grown(part, "done", name=part.name, arguments=part.text)
        else:
            more = {"logprobs": []} if part.kind == "text" else {}
            value = {"refusal" if part.kind == "refusal" else "text": part.text}
            yield self._grown(part, "done", **value, **more)
            yield self._at("content_part.done", content_index=0, part=item["content"][0])
        yield self._item_event("output_item.done")

    def _grown(self, part: Part, what: str, **more: Any) -> str:
        if part.kind != "tool":
            return self._at(f"{_NAMES[part.kind]}.{what}", content_index=0, **more)
        return self._at(f"function_call_arguments.{what}", **more)

    def _item_event(self, name: str) -> str:
        return self._event(name, output_index=len(self._output) - 1, item=self._output[-1])

    def _at(self, name: str, /, **more: Any) -> str:
        item_id, index = self._output[-1]["id"], len(self._output) - 1
        return self._event(name, item_id=item_id, output_index=index, **more)

    def _event(self, name: str, /, **more: Any) -> str:
        event = {"type": f"response.{name}", "sequence_number": self._sequence, **more}
        self._sequence += 1
        return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n"
