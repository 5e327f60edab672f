"""Who may call, and whose call it is: the one question that an app asks before it reads a body."""

from __future__ import annotations

import asyncio
import contextvars
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from osmosis_core import ConfigError, RolloutContext

if TYPE_CHECKING:
    from starlette.requests import Request


class Refusal(Exception):
    """A request that is answered with an error in its dialect instead of reaching the policy."""

    def __init__(self, status: int, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(slots=True)
class InFlight:
    """The calls under way of one rollout; used on the event loop that answers them."""

    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    has_ended: bool = False

    async def end(self) -> None:
        """Cancel them, wait until they are recorded, and answer later ones with 410."""
        self.has_ended = True
        for task in tuple(self.tasks):
            task.cancel()
        while self.tasks:
            await asyncio.wait(tuple(self.tasks))
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call a request is, and where it goes."""

    rollout: RolloutContext
    """Its policy, deadline and record."""
    sample_id: str = "main"
    trainable: bool = True
    keeps_model: bool = False
    """True asks for the model that the caller names; else the rollout's model is asked for."""
    context: contextvars.Context | None = None
    """Where the call is made; tells which tool call started the agent behind it."""
    on_answered: Callable[[RolloutContext], None] | None = None
    """Called when a call has ended, well or not."""
    in_flight: InFlight = field(default_factory=InFlight)


type Admit = Callable[[Request], Caller]
"""Says whose call a request is by its URL and headers, or raises Refusal."""


def key_of(request: Request) -> str:
    """The key that a request carries, as OpenAI's or as Anthropic's clients send it."""
    bearer = request.headers.get("authorization", "")
    scheme, _, token = bearer.partition(" ")
    return request.headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")


def check_key(request: Request, api_key: str) -> None:
    """Compare the request's key in constant time; raises Refusal with 401 when it is another."""
    given = key_of(request).encode("utf-8", "replace")
    if not hmac.compare_digest(given, api_key.encode()):
        raise Refusal(401, "wrong API key; use the gateway's, not the provider's")


def by_headers(find: Callable[[str, str], Caller | None], api_key: str) -> Admit:
    """Admit whoever has the key, by the routing headers `x-rollout-id` and `x-sample-id`.

    `find(rollout_id, sample_id)` is asked on the event loop; the ids are `""` and `"main"` when
    the headers are missing (protocol.md 1.9). None answers 404.

    Raises:
        ConfigError: the key is empty, so that everybody would have it.
    """
    if not api_key:
        raise ConfigError("the gateway's API key is empty; give a long random one")

    def admit(request: Request) -> Caller:
        check_key(request, api_key)
        rollout_id = request.headers.get("x-rollout-id", "")
        caller = find(rollout_id, request.headers.get("x-sample-id") or "main")
        if caller is None:
            raise Refusal(404, f"no rollout {rollout_id!r} here; x-rollout-id names one")
        return caller

    return admit
