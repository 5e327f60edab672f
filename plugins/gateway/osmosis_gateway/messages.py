"""Anthropic messages, as chat completions and back."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from osmosis_gateway.admission import Refusal
from osmosis_gateway.parts import Answer, Json, Part, StreamedAnswer, WholeAnswer, new_id

_TRANSLATED = ("messages", "output_config", "output_format", "stop_sequences", "system", "tools")
_UNSAID = ("cache_control", "container", "context_management", "diagnostics", "inference_geo")
_MORE = ("metadata", "service_tier", "speed", "thinking", "tool_choice")
_DROPPED = frozenset((*_TRANSLATED, *_UNSAID, *_MORE))
"""Fields with a translation of their own, or without any; others go to the policy as they are."""

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_RAW = "_raw"
"""Key of the tool input that stands for arguments which are not a JSON object."""


def to_chat(body: Json) -> Json:
    """A messages request as a chat completion request.

    Tool results come before the rest of their message, and their images after them, because chat
    completions want it so. Thinking is `reasoning_content`. `thinking` budgets, cache marks and
    `is_error` have no counterpart and are left out.

    Raises:
        Refusal: something that no chat completion can carry.
    """
    if body.get("mcp_servers"):
        raise Refusal(400, "mcp_servers: the gateway runs no tools; connect them in the agent")
    chat = {k: v for k, v in body.items() if k not in _DROPPED and v is not None}
    chat["messages"] = [
        *_system(body.get("system")),
        *(said for message in body["messages"] for said in _message(message)),
    ]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat.update(_tool_choice(body.get("tool_choice") or {}))
    wanted = body.get("output_format") or (body.get("output_config") or {}).get("format")
    if wanted:
        schema = {"name": "answer", "schema": wanted["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _system(system: Any) -> list[Json]:
    text = system if isinstance(system, str) else "\n\n".join(b["text"] for b in system or [])
    return [{"role": "system", "content": text}] if text else []


def _message(message: Json) -> Iterator[Json]:
    role, content = message["role"], message["content"]
    if role not in ("user", "assistant", "system"):
        raise Refusal(400, f"a message has role {role!r}; there are user and assistant")
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif role == "assistant":
        yield _assistant(content)
    else:
        yield from _user(role, content)


def _assistant(blocks: list[Json]) -> Json:
    message: Json = {"role": "assistant", "content": None}
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [_tool_call(block) for block in blocks if block["type"] == "tool_use"]
    for kind in {block["type"] for block in blocks}:
        if kind not in ("text", "thinking", "redacted_thinking", "tool_use"):
            raise Refusal(400, f"an assistant message has a {kind!r} block, which is not supported")
    if texts or not calls:
        message["content"] = "".join(texts)
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _tool_call(block: Json) -> Json:
    given = block["input"]
    is_raw = isinstance(given, dict) and given.keys() == {_RAW} and isinstance(given[_RAW], str)
    arguments = given[_RAW] if is_raw else json.dumps(given, ensure_ascii=False)
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _user(role: str, blocks: list[Json]) -> Iterator[Json]:
    rest: list[Json] = []
    for block in blocks:
        if block["type"] != "tool_result":
            rest.append(_part(block))
            continue
        content = block.get("content") or ""
        parts = [] if isinstance(content, str) else [_part(inner) for inner in content]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        rest += [part for part in parts if part["type"] != "text"]
        text = content if isinstance(content, str) else "\n".join(texts)
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    if rest and all(part["type"] == "text" for part in rest) and len(rest) == 1:
        yield {"role": role, "content": rest[0]["text"]}
    elif rest or not blocks:
        yield {"role": role, "content": rest or ""}


def _part(block: Json) -> Json:
    kind, source = block["type"], block.get("source") or {}
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "image" and source.get("type") in ("base64", "url"):
        return {"type": "image_url", "image_url": {"url": _url(source)}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": source["data"]}
    if kind == "document" and source.get("type") == "base64":
        name = block.get("title") or "document"
        return {"type": "file", "file": {"filename": name, "file_data": _url(source)}}
    from_where = f" from {source['type']!r}" if "type" in source else ""
    raise Refusal(400, f"a user message has a {kind!r} block{from_where}, which is not supported")


def _url(source: Json) -> str:
    if source["type"] == "url":
        return source["url"]
    return f"data:{source['media_type']};base64,{source['data']}"


def _tool(tool: Json) -> Json:
    if tool.get("type", "custom") != "custom" or "input_schema" not in tool:
        name = tool.get("type") or tool.get("name")
        raise Refusal(400, f"tool {name!r} runs at Anthropic; the policy takes custom tools only")
    function: Json = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Json) -> Json:
    kind, chat = choice.get("type"), {}
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif kind is not None:
        chat["tool_choice"] = {"any": "required"}.get(kind, kind)
    if "disable_parallel_tool_use" in choice:
        chat["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return chat


def from_chat(completion: Json, body: Json) -> Json:
    """A chat completion as a message."""
    answer = WholeAnswer(completion)
    return {**_head(answer), "content": [_block(p) for p in answer.parts], **_end(answer)}


def _head(answer: Answer) -> Json:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(answer),
    }


def _end(answer: Answer) -> Json:
    stop, matched = _STOPS.get(answer.finish_reason, "end_turn"), answer.choice.get("stop_reason")
    if stop == "end_turn" and isinstance(matched, str):  # vLLM says which one
        return {"stop_reason": "stop_sequence", "stop_sequence": matched, "usage": _usage(answer)}
    return {"stop_reason": stop, "stop_sequence": None, "usage": _usage(answer)}


def _usage(answer: Answer) -> Json:
    cached = answer.cached_tokens
    return {
        "input_tokens": (answer.usage.get("prompt_tokens") or 0) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": answer.usage.get("completion_tokens") or 0,
    }


def _block(part: Part) -> Json:
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if part.kind == "tool":
        given = _input(part.text)
        return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": given}
    return {"type": "text", "text": part.text}


def _input(arguments: str) -> Json:
    try:
        value: Any = json.loads(arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {_RAW: arguments}


def error(status: int, message: str) -> Json:
    """Anthropic's error object."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class Stream:
    """Chunks in, message events out. A tool's input is told when it is complete, as JSON."""

    def __init__(self, body: Json) -> None:
        self._answer = StreamedAnswer()
        self._has_begun = False
        self._index = 0

    def feed(self, chunk: Json) -> Iterator[str]:
        """The events for a chunk."""
        events = list(self._answer.feed(chunk))
        if not self._has_begun:
            self._has_begun = True
            yield _event({"type": "message_start", "message": _head(self._answer)})
        for event in events:
            yield from self._told(*event)

    def close(self) -> Iterator[str]:
        """The last events."""
        for event in self._answer.close():
            yield from self._told(*event)
        end = _end(self._answer)
        usage = end.pop("usage")
        yield _event({"type": "message_delta", "delta": end, "usage": usage})
        yield _event({"type": "message_stop"})

    def fail(self, status: int, message: str) -> Iterator[str]:
        """The events of an answer that broke off."""
        yield _event(error(status, message))

    def _told(self, what: str, part: Part, text: str) -> Iterator[str]:
        if what == "open":
            yield self._block("content_block_start", content_block=_block(_opening(part)))
        elif what == "grow" and part.kind != "tool":
            name = "thinking" if part.kind == "reasoning" else "text"
            yield self._block("content_block_delta", delta={"type": f"{name}_delta", name: text})
        elif what == "close":
            if part.kind == "tool":
                delta = {"type": "input_json_delta", "partial_json": json.dumps(_input(part.text))}
                yield self._block("content_block_delta", delta=delta)
            yield self._block("content_block_stop")
            self._index += 1

    def _block(self, kind: str, **more: Json) -> str:
        return _event({"type": kind, "index": self._index, **more})


def _opening(part: Part) -> Part:
    return Part(part.kind, "", part.call_id, part.name)


def _event(value: Json) -> str:
    return f"event: {value['type']}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"
