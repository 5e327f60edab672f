"""A request as a framework's HTTP client made it: whose it is, and what of it goes out."""

import json
import urllib.parse
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from osmosis_core.active import Scope, current_scope, get_rollout_context
from osmosis_core.context import RolloutContext
from osmosis_core.errors import PolicyNotBoundError
from osmosis_core.policy.assemble import Json
from osmosis_core.types import PolicyCall

BINDING_HEADER = "x-osmosis-binding"
TEE_HEADER = "x-osmosis-tee"
_CHAT = "/chat/completions"
_SCHEMES = ("http", "https", "http+unix")
_OF_THE_CONNECTION = "accept-encoding connection content-length host transfer-encoding"
_DROPPED = frozenset((*_OF_THE_CONNECTION.split(), "authorization", "user-agent"))
_PRINTABLE = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) != "%")
_contexts: weakref.WeakValueDictionary[int, RolloutContext] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as the framework's HTTP client made it."""

    method: str
    path: str
    """Below the base URL, with the query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    read_timeout_sec: float | None = None
    """Longest silence of the server, as the client above asks for it."""


@dataclass(frozen=True, slots=True)
class WireResponse:
    """What the framework's HTTP client is given."""

    status: int
    headers: dict[str, str]
    body: bytes
    call: PolicyCall | None = None
    deltas: AsyncGenerator[bytes] | None = None
    """The answer's bytes as they come, instead of `body`."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Which rollout and sample a request belongs to."""

    context: RolloutContext
    scope: Scope


def binding_header(context: RolloutContext, scope: Scope) -> str:
    """The value of `BINDING_HEADER` that names a rollout and a sample."""
    _contexts[id(context)] = context
    return f"{id(context)}/{scope.sample_id}/{int(scope.trainable)}/{scope.parent or ''}"


def bind(request: WireRequest) -> Binding:
    """The rollout and sample of a request: its binding header, else the active ones.

    Raises:
        PolicyNotBoundError: neither names a rollout.
    """
    header = request.headers.get(BINDING_HEADER)
    if header:
        number, sample_id, trainable, parent = header.split("/")
        context = _contexts.get(int(number))
        scope = Scope(sample_id, trainable == "1", parent or None)
    else:
        context, scope = get_rollout_context(), current_scope()
    if context is None:
        raise PolicyNotBoundError("the policy client")
    return Binding(context, scope)


def policy_url(context: RolloutContext, path: str) -> str | None:
    """Where a path below the base URL is; None when the context's URL cannot be used.

    Query parameters of the base URL stay; a user and password in it are not accepted.
    """
    try:
        base = urllib.parse.urlsplit(context.chat_completions_url)
        is_usable = base.scheme in _SCHEMES and base.hostname and base.port != 0
    except ValueError:
        return None
    if not is_usable or "@" in base.netloc:
        return None
    below, _, query = path.partition("?")
    both = "&".join(filter(None, (base.query, query)))
    return base._replace(path=base.path.rstrip("/") + below, query=both, fragment="").geturl()


def chat_body(request: WireRequest) -> Json | None:
    """The body of a chat completion request; None for anything else, which is passed on."""
    if request.method != "POST" or not request.path.partition("?")[0].endswith(_CHAT):
        return None
    try:
        body: Any = json.loads(request.body)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None  # pyright: ignore[reportUnknownVariableType]


def request_headers(request: WireRequest, binding: Binding) -> dict[str, str]:
    """The headers that go out: the framework's own, less what names its SDK, and the binding."""
    context = binding.context
    headers = {
        name: value
        for name, value in request.headers.items()
        if name not in _DROPPED and not name.startswith(("x-stainless-", "openai-", "x-osmosis-"))
    }
    headers["user-agent"] = "osmosis-core"
    if context.rollout_id:
        headers["x-rollout-id"] = urllib.parse.quote(context.rollout_id, safe=_PRINTABLE)
    headers["x-sample-id"] = binding.scope.sample_id
    if context.api_key:
        headers["authorization"] = f"Bearer {context.api_key}"
    return headers
