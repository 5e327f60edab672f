"""The controller's one listener: callbacks of rollout servers, and policy calls of their agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from osmosis_gateway import Caller, Refusal, create_app
from osmosis_gateway.serving import ServerThread, listen
from osmosis_server.controller.receiver import KINDS, Receiver

if TYPE_CHECKING:
    from osmosis_server.controller.limits import Listen
    from osmosis_server.controller.rollouts import Registry, Rollout

_BELOW = "/v1/rollouts/"


class Listener:
    """Listens on a thread of its own, so that agents are answered while the caller's loop is busy.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, registry: Registry, receiver: Receiver, listen_at: Listen) -> None:
        self._registry, self._receiver = registry, receiver
        self._policy = create_app(self._admit)
        listener = listen(listen_at.host, listen_at.port, allow_remote=True)
        self._thread = ServerThread(self, listener)
        self.url = (listen_at.public_url or self._thread.origin).rstrip("/")

    def base_url(self, rollout_id: str = "") -> str:
        """The OpenAI base URL of a rollout, or the one where headers say whose call it is."""
        return f"{self.url}{_BELOW}{quote(rollout_id, safe='')}" if rollout_id else f"{self.url}/v1"

    def callback_url(self, rollout_id: str, kind: str) -> str:
        """Where a server calls back."""
        return f"{self.base_url(rollout_id)}/{kind}"

    async def end_calls(self, rollout: Rollout) -> None:
        """Cancel a rollout's policy calls, and wait until they are recorded."""
        ended = asyncio.run_coroutine_threadsafe(rollout.in_flight.end(), self._thread.loop)
        await asyncio.wrap_future(ended)

    async def stop(self) -> None:
        """Stop listening."""
        await asyncio.to_thread(self._thread.stop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one request: a callback, or a policy call in any dialect of the gateway."""
        path: str = scope.get("raw_path", b"").decode("ascii", "replace")
        name, _, rest = path.removeprefix(_BELOW).partition("/")
        if not path.startswith(_BELOW):
            await self._policy(scope, receive, send)
            return
        scope = {**scope, "path_params": {"rollout": unquote(name)}}
        if rest in KINDS and scope["method"] == "POST":
            answer = await self._receiver.answer(Request(scope, receive), rest)
            await answer(scope, receive, send)
        else:
            await self._policy({**scope, "path": f"/v1/{unquote(rest)}"}, receive, send)

    def _admit(self, request: Request) -> Caller:
        """Whose policy call it is, by URL (0.3.x) or by headers (0.2.x)."""
        named = request.headers.get("x-rollout-id", "")
        rollout_id: str = request.path_params.get("rollout") or self._registry.id_in_header(named)
        submission = self._registry.keys.check_policy(request, rollout_id)
        if named and rollout_id not in (named, unquote(named)):
            raise Refusal(422, "x-rollout-id names another rollout than the URL")
        rollout = self._registry.get(rollout_id, submission)
        if rollout is None:
            status = 410 if self._registry.knows(rollout_id) else 404
            raise Refusal(status, f"rollout {rollout_id!r} is not under way")
        rollout.is_heard = True
        return Caller(rollout.context, in_flight=rollout.in_flight)
