"""OpenAI chat completions: the policy's own dialect, passed on."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from osmosis_gateway.parts import Json

_CHUNK = ("id", "object", "created", "model", "usage", "service_tier", "system_fingerprint")
_CHOICE = ("index", "delta", "finish_reason")


def to_chat(body: Json) -> Json:
    """The request as it is."""
    return body


def from_chat(completion: Json, body: Json) -> Json:
    """The completion as it is; `model` and all else are the policy's."""
    return completion


def error(status: int, message: str) -> Json:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class Stream:
    """Chunks as they come, less what the caller did not ask for."""

    def __init__(self, body: Json) -> None:
        options: Json = body.get("stream_options") or {}
        self._has_usage = bool(options.get("include_usage"))
        self._choice = (*_CHOICE, "logprobs") if body.get("logprobs") else _CHOICE
        self._is_verbatim = bool(body.get("return_token_ids"))

    def feed(self, chunk: Json) -> Iterator[str]:
        """The events for a chunk."""
        if self._is_verbatim:
            yield _event(chunk)
            return
        choices: list[Json] = chunk.get("choices") or []
        if choices or self._has_usage:
            kept = {name: chunk[name] for name in _CHUNK if name in chunk}
            if not self._has_usage:
                kept.pop("usage", None)
            yield _event({**kept, "choices": [_only(c, self._choice) for c in choices]})

    def close(self) -> Iterator[str]:
        """The last events."""
        yield "data: [DONE]\n\n"

    def fail(self, status: int, message: str) -> Iterator[str]:
        """The events of an answer that broke off."""
        yield _event(error(status, message))


def _only(choice: Json, names: tuple[str, ...]) -> Json:
    return {name: choice[name] for name in names if name in choice}


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"
