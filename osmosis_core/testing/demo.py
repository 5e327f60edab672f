"""The embedded `demo` policy: solves simple arithmetic with a calculator tool, no key, no model."""

from __future__ import annotations

import itertools

from aiohttp import web

from osmosis_core.policy.assemble import Json
from osmosis_core.testing.server import PolicyServer, completion, send
from osmosis_core.testing.solver import solve


class DemoPolicy(PolicyServer):
    """A small deterministic policy on loopback; see `osmosis_core.testing.solver`."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = itertools.count(1)

    async def respond(self, request: web.Request, body: Json) -> web.StreamResponse:
        """Answer with the solver's next message."""
        message = solve(body["messages"], body.get("tools") or [])
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
        answer = completion(body, message, finish_reason, f"demo-{next(self._ids)}")
        return await send(request, body, answer)
