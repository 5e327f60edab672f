"""A rollout server written from protocol.md alone, that does what ours would never do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from osmosis_core import ExecutionRequest
from osmosis_core.testing import ScriptedPolicy
from osmosis_server.controller import ControllerClient, ControllerLimits

PROMPT = [{"role": "user", "content": "6 * 7?"}]
FAST = ControllerLimits(
    submit_timeout_sec=2.0, unreachable_sec=2.0, lost_answer_sec=2.2, grace_sec=10, max_in_flight=8
)

type Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TinyServer:
    """Answers `POST /rollout` and everything else as the test's functions say.

    With `behind` it passes requests on to that URL.
    `await server.agent(body)` does what an agent does: one policy call; `call_back` is a callback.
    """

    def __init__(self, session: aiohttp.ClientSession, behind: str = "") -> None:
        self.url = ""
        self.behind, self.loses = behind, ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.on: dict[str, Handle] = {}
        self._session = session
        self._tasks: set[asyncio.Task[Any]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        raw = await request.read()
        if request.path == "/rollout":
            self.bodies.append(json.loads(raw))
            self.headers.append({k.lower(): v for k, v in request.headers.items()})
        name = request.path.rpartition("/")[2]
        if self.behind:
            return await self._forward(request, raw)
        handle = self.on.get(name)
        return await handle(request) if handle else web.json_response({"detail": "?"}, status=404)

    async def _forward(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """Pass a request on; the next submission loses what `loses` says."""
        lost = self.loses if request.path == "/rollout" else ""
        self.loses = self.loses if not lost else ""
        if lost == "request" and request.transport:
            request.transport.close()
            return web.Response()
        url, headers = f"{self.behind}{request.rel_url}", request.headers
        async with self._session.request(request.method, url, data=raw, headers=headers) as got:
            if lost and request.transport:
                request.transport.close()
            return web.Response(
                body=await got.read(),
                status=got.status,
                headers={"content-type": "application/json"},
            )

    def later(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def post(self, url: str, key: str, body: Any, **headers: str) -> tuple[int, Any]:
        given = {"authorization": f"Bearer {key}", **headers}
        async with self._session.post(url, json=body, headers=given) as response:
            return response.status, await response.json()

    async def agent(self, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        key = body.get("llm_api_key") or body["controller_api_key"]
        asked = {"model": "osmosis-rollout", "messages": body["initial_messages"]}
        return await self.post(
            f"{body['chat_completions_url']}/chat/completions", key, asked, **headers
        )

    def lease(self, token: str = "theirs", **more: Any) -> web.Response:
        """The 202 of the polling protocol to the latest submission."""
        rollout_id = self.bodies[-1]["rollout_id"]
        given = {"rollout_id": rollout_id, "status": "queued", "polling_lease_token": token}
        waits = {"result_wait_timeout_sec": 1.0, "polling_lease_timeout_sec": 12.0}
        return web.json_response({**given, **waits, **more}, status=202)

    def result(self, **said: Any) -> web.Response:
        """The answer to a poll."""
        body = {"rollout_id": self.bodies[-1]["rollout_id"], "status": "success", **said}
        return web.json_response(body)

    @staticmethod
    def sample(reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
        messages = [*PROMPT, {"role": "assistant", "content": "42"}]
        nothing = {"label": "42", "remove_sample": False, "metrics": {}, "extra_fields": {}}
        return {"messages": messages, "reward": reward, **nothing, **more}

    async def call_back(self, body: dict[str, Any], kind: str, **said: Any) -> tuple[int, Any]:
        url, key = body[f"{kind}_callback_url"], body["controller_api_key"]
        said = {"rollout_id": body["rollout_id"], "status": "success", **said}
        return await self.post(url, key, said)


@pytest.fixture
def asked():
    """Make a request."""

    def make(rollout_id: str = "r-1", **fields: Any) -> ExecutionRequest:
        given = {"label": "42", "agent_timeout_sec": 10.0, "grader_timeout_sec": 10.0, **fields}
        return ExecutionRequest(rollout_id, PROMPT, **given)

    return make


@pytest.fixture
async def tiny():
    """Start tiny servers; answers a function that makes one."""
    runners: list[web.AppRunner] = []
    async with aiohttp.ClientSession() as session:

        async def start(behind: str = "") -> TinyServer:
            server = TinyServer(session, behind)
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", server.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return server

        yield start
        for runner in runners:
            await runner.cleanup()


@pytest.fixture
async def server(tiny) -> TinyServer:
    return await tiny()


@pytest.fixture
def policy():
    with ScriptedPolicy("42") as started:
        yield started


@pytest.fixture
def controller(policy):
    """Open a client of servers whose agents are answered 42."""

    @asynccontextmanager
    async def opened(*servers: TinyServer, **options: Any):
        urls = [server.url for server in servers]
        given = {"limits": FAST, **options}
        async with asyncio.timeout(30), ControllerClient(urls, policy.endpoint, **given) as client:
            yield client

    return opened
