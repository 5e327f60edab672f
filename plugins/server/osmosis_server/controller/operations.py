"""What a controller asks of servers beside rollouts: health, cancels, pauses."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import aiohttp

from osmosis_core import BackendError, RolloutErrorCategory
from osmosis_server.controller.servers import Json, Lost, Server, Unsent

if TYPE_CHECKING:
    from osmosis_server.controller.modes import Wire

_HEALTH_SEC = 10.0
_CANCEL_SEC = 4.0
_SWITCH_SEC = 30.0


async def health_of(session: aiohttp.ClientSession, server: Server) -> Json:
    """What a server says of itself, or that it does not."""
    try:
        answer = await server.ask(session, "GET", "/health", timeout_sec=_HEALTH_SEC)
    except (Unsent, Lost) as error:
        return {"status": "unreachable", "error": f"not reached: {error}"}
    if answer.status != 200:
        hint = "; check the API key" if answer.status in (401, 403) else ""
        return {"status": "refused", "error": f"/health answered {answer.status}{hint}"}
    return answer.object


def is_well(health: Json) -> bool:
    """True when a server answered and takes rollouts."""
    return health.get("status") not in ("unreachable", "refused")


def takes_repetitions(health: Json) -> bool:
    """True for servers of osmosis-server: they can be paused, and run no submission twice."""
    return "paused" in (health.get("lifecycle") or {})


async def cancel_at(session: aiohttp.ClientSession, server: Server, rollout_id: str) -> None:
    """Ask a server to cancel a rollout; those of osmosis-ai 0.2.x cannot."""
    body = json.dumps({"ids": [rollout_id]}).encode()
    with suppress(Unsent, Lost):
        await server.ask(session, "POST", "/rollout/cancel", timeout_sec=_CANCEL_SEC, body=body)


async def switch(wire: Wire, what: Literal["pause", "resume"]) -> None:
    """Pause or resume every server; raises BackendError that names those that did not."""
    servers = wire.pool.servers
    answers = await asyncio.gather(*[_switched(wire, server, what) for server in servers])
    missed = [answer for answer in answers if answer]
    if missed:
        raise BackendError(
            f"{what} did not reach {len(missed)} of {len(servers)} servers: {'; '.join(missed)}",
            category=RolloutErrorCategory.HTTP_ERROR,
        )


async def _switched(wire: Wire, server: Server, what: str) -> str:
    """Why a server did not; empty when it did."""
    try:
        answer = await server.ask(
            wire.session, "POST", f"/rollout/{what}", timeout_sec=_SWITCH_SEC, body=b"{}"
        )
    except (Unsent, Lost) as error:
        return f"{server.url}: {error}"
    if answer.status in (404, 405):
        return f"{server.url} cannot {what}; only servers of osmosis-server can"
    return "" if answer.status < 300 else f"{server.url} answered {answer.status}: {answer.detail}"
