"""What an endpoint is asked beyond the framework's request, and what it has refused before."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from osmosis_core.context import RolloutContext
from osmosis_core.policy.assemble import Json

_USAGE = {"include_usage": True}
_REASONING = ("reasoning_content", "reasoning")
_TOKEN_FIELDS = (
    "prompt_token_ids",
    "token_ids",
    "response_token_ids",
    "weight_versions",
    "meta_info",
    "sglext",
    "metadata",
)


@dataclass(slots=True)
class Endpoint:
    """What is known of one server: learned once, from its refusals."""

    is_plain: bool = False
    """It refused to stream something that was asked for."""
    refused: set[str] = field(default_factory=set[str])
    """Fields of ours that it does not know."""


_endpoints: dict[str, Endpoint] = {}


def endpoint_of(url: str) -> Endpoint:
    """The knowledge about a URL's server; shared by all rollouts of the process."""
    parts = urllib.parse.urlsplit(url)
    return _endpoints.setdefault(f"{parts.scheme}://{parts.netloc}", Endpoint())


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes out, and what of it was our idea."""

    body: Json
    added: frozenset[str]
    """Names that the framework's request did not have."""

    @property
    def is_streamed(self) -> bool:
        """True when the answer is asked for as a stream."""
        return bool(self.body.get("stream"))


def ask(request: Json, context: RolloutContext, endpoint: Endpoint) -> Asked:
    """The request with the rollout's model, our streaming, and the fields to capture."""
    body = dict(request)
    body["model"] = context.model or "osmosis-rollout"
    for name, value in context.wire.capture.items():
        if name not in endpoint.refused:
            body.setdefault(name, value)
    if refused := endpoint.refused.intersection(_REASONING):
        body["messages"] = [_without(message, refused) for message in body["messages"]]
    body.pop("stream", None)
    body.pop("stream_options", None)
    if context.wire.stream and not endpoint.is_plain:
        body["stream"] = True
        if "stream_options" not in endpoint.refused:
            body["stream_options"] = {**(request.get("stream_options") or {}), **_USAGE}
    return Asked(body, frozenset(body.keys() - request.keys()))


def learn(endpoint: Endpoint, asked: Asked, status: int | None, said: str | None) -> bool:
    """Note what a 400 or 422 refuses of our additions; True when asking again may help."""
    if status not in (400, 422) or said is None:
        return False
    ours = (asked.added | set(_REASONING)) - endpoint.refused - {"model", "stream"}
    named = {name for name in ours if _names(name, said)}
    if asked.is_streamed and _names("stream", said) and "stream_options" not in named:
        endpoint.is_plain = True
        return True
    endpoint.refused |= named
    return bool(named)


def _names(field_name: str, said: str) -> bool:
    pattern = rf"(?<![A-Za-z0-9_]){re.escape(field_name)}(ing|ed)?(?![A-Za-z0-9_])"
    return re.search(pattern, said) is not None


def without_captured(completion: Json, asked: Asked) -> Json:
    """The completion for the framework: without the token fields that it did not ask for."""
    added = asked.added
    if not added - {"model", "stream", "stream_options"}:
        return completion
    dropped = {*_TOKEN_FIELDS, *(("logprobs",) if "logprobs" in added else ())}
    choices: list[Any] = [_without(choice, dropped) for choice in completion["choices"]]
    return {**_without(completion, dropped), "choices": choices}


def _without(value: Json, names: set[str]) -> Json:
    return {name: item for name, item in value.items() if name not in names}
