"""What an endpoint is asked beyond the framework's request, and what it has refused before."""

import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from osmosis_core.context import RolloutContext
from osmosis_core.policy.assemble import Json
from osmosis_core.records import REASONING

_USAGE = {"include_usage": True}
_TOKEN_IDS = ("prompt_token_ids", "token_ids", "response_token_ids")
_ENGINE_FIELDS = ("weight_versions", "meta_info", "sglext", "metadata")


_refusals: dict[str, set[str]] = {}


def refused_by(url: str) -> set[str]:
    """What a URL's server has refused of our additions; shared by all rollouts of the process."""
    parts = urllib.parse.urlsplit(url)
    return _refusals.setdefault(f"{parts.scheme}://{parts.netloc}", set())


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes out, and what of it was our idea."""

    body: Json
    added: frozenset[str]
    """Names that the framework's request did not have."""


def ask(request: Json, context: RolloutContext, refused: set[str]) -> Asked:
    """The request with the rollout's model, our streaming, and the fields to capture."""
    body = dict(request)
    body["model"] = context.model or "osmosis-rollout"
    for name, value in context.wire.capture.items():
        if name not in refused:
            body.setdefault(name, value)
    if refused and (unknown := refused & _reasoning(body)):
        body["messages"] = [_without(message, unknown) for message in body["messages"]]
    body.pop("stream", None)
    body.pop("stream_options", None)
    if context.wire.stream and "stream" not in refused:
        body["stream"] = True
        if "stream_options" not in refused:
            body["stream_options"] = {**(request.get("stream_options") or {}), **_USAGE}
    return Asked(body, frozenset(body.keys() - request.keys()))


def learn(refused: set[str], asked: Asked, status: int | None, said: str | None) -> bool:
    """Note what a 400 or 422 refuses of our additions; True when asking again may help."""
    if status not in (400, 422) or said is None:
        return False
    ours = (asked.added | _reasoning(asked.body)) - refused - {"model", "stream"}
    named = {name for name in ours if _names(name, said)}
    is_streamed = bool(asked.body.get("stream"))
    if is_streamed and _names("stream", said) and "stream_options" not in named:
        named = {"stream"}
    refused |= named
    return bool(named)


def _names(field_name: str, said: str) -> bool:
    pattern = rf"(?<![A-Za-z0-9_]){re.escape(field_name)}(ing|ed)?(?![A-Za-z0-9_])"
    return re.search(pattern, said) is not None


def without_captured(completion: Json, asked: Asked) -> Json:
    """The completion for the framework: without the token fields that it did not ask for."""
    added = asked.added
    if not added - {"model", "stream", "stream_options"}:
        return completion
    dropped = {*_TOKEN_IDS, *_ENGINE_FIELDS, *(added & {"logprobs"})}
    choices: list[Any] = [_without(choice, dropped) for choice in completion["choices"]]
    return {**_without(completion, dropped), "choices": choices}


def _reasoning(body: Json) -> set[str]:
    """Names of the reasoning in a request's messages; what are no messages has none."""
    messages: Any = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):  # pyright: ignore[reportUnknownVariableType]
        return set()
    return {name for name in REASONING if any(name in message for message in messages)}  # pyright: ignore[reportUnknownVariableType]


def _without(value: Json, names: set[str]) -> Json:
    if names.isdisjoint(value):
        return value
    return {name: item for name, item in value.items() if name not in names}
