"""The one thing that a container without a network can talk to: a socket of its own rollout."""

import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from osmosis_core import RolloutContext
from osmosis_core.policy import WireRequest, agent_scope, exchange

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request of the container, its result included."""

_MAX_SAMPLE_ID = 256


class Relay:
    """Gives a container its rollout, takes its result, and passes its policy calls on.

    Key, model, retries and the record of each call stay on the host: the container says only which
    agent asks, and what. It can reach chat completions and nothing else.

    Args:
        socket: path of the Unix socket, in a directory that only this rollout mounts.
        context: whose policy is asked and whose record is kept.
        job: what the container is given.
    """

    def __init__(self, socket: Path, context: RolloutContext, job: bytes) -> None:
        self._socket, self._context, self._job = socket, context, job
        self.result: bytes | None = None
        """What the container says of its rollout; the first answer counts."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_get("/job", self._give_job)
        app.router.add_post("/result", self._take_result)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._socket)).start()
        self._socket.chmod(0o666)  # whoever the container's user is; the directory is ours alone
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _give_job(self, request: web.Request) -> web.Response:
        return web.Response(body=self._job, content_type="application/json")

    async def _take_result(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.result is not None:
            raise web.HTTPConflict(text="this rollout has its result")
        self.result = body
        return web.Response()

    async def _complete(self, request: web.Request) -> web.Response:
        sample_id = urllib.parse.unquote(request.headers.get("x-sample-id", "main"))
        if not 1 <= len(sample_id) <= _MAX_SAMPLE_ID:
            raise web.HTTPBadRequest(text=f"x-sample-id has {len(sample_id)} characters")
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        body = await request.read()
        with self._context, agent_scope(sample_id):
            answer = await exchange(WireRequest("POST", "/chat/completions", headers, body))
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
