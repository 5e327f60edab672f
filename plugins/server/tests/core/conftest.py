from __future__ import annotations

import asyncio
import importlib.util
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from osmosis_core import (
    AgentWorkflow,
    ExecutionBackend,
    ExecutionRequest,
    Grader,
    LocalBackend,
)
from osmosis_server.journal import Journal
from osmosis_server.service import RolloutService
from osmosis_server.settings import ServerSettings
from osmosis_server.submissions import RolloutView, Submission

_spec = importlib.util.spec_from_file_location("served", Path(__file__).with_name("served.py"))
served = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(served)

type Serve = Callable[..., AbstractAsyncContextManager[RolloutService]]


class Controller:
    """A real receiver of callbacks; `answers` says what a path is answered, try by try."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: defaultdict[str, list[Any]] = defaultdict(list)
        self.taken = asyncio.Condition()
        self.url = ""
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> Controller:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/{tail:.*}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        script = self.answers[request.path]
        answer = script.pop(0) if script else 200
        self.got.append({"path": request.path, "answer": answer, **body})
        self.headers.append(dict(request.headers))
        async with self.taken:
            self.taken.notify_all()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return web.json_response({"ok": True})
        if isinstance(answer, dict):
            return web.json_response(**answer)
        return web.json_response({"ok": True}, status=answer)

    async def until(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(30), self.taken:
            await self.taken.wait_for(lambda: len(self.got) >= count)
        return self.got


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    controller = await Controller().start()
    yield controller
    await controller.stop()


class Echo(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "4"}]


class Equal(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


class Gate:
    """A workflow that a test lets go: `held` says which rollouts are inside."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.opened = asyncio.Event()
        gate = self

        class Held(AgentWorkflow):
            async def run(self, ctx):
                gate.held.append(ctx.prompt[0]["content"])
                await gate.opened.wait()
                return [{"role": "assistant", "content": "4"}]

        self.workflow = Held


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def local(tmp_path) -> Callable[..., LocalBackend]:
    def build(workflow: type[AgentWorkflow[Any]] = Echo, **options: Any) -> LocalBackend:
        options = {"grader": Equal, "artifacts_root": tmp_path / "artifacts", **options}
        return LocalBackend(workflow=workflow, **options)

    return build


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "server" / "journal.db"


@pytest.fixture
def serve(path) -> Serve:
    @asynccontextmanager
    async def serve(
        backend: ExecutionBackend,
        *,
        observer: Any = None,
        at: Any = path,
        protocols: Any = None,
        **settings: Any,
    ) -> AsyncIterator[RolloutService]:
        limits = {"drain_grace_sec": 0, "delivery_timeout_sec": 2.0, **settings}
        spoken = (served.Polled(), served.CalledBack()) if protocols is None else protocols
        service = RolloutService(
            backend,
            Journal.open(at),
            ServerSettings(**limits),
            {protocol.name: protocol for protocol in spoken},
            observer=observer,
        )
        await service.start()
        try:
            yield service
        finally:
            await service.close()

    return serve


def polled(rollout_id: str = "r1", *, token: str = "t", **request: Any) -> Submission:
    prompt = [{"role": "user", "content": rollout_id}]
    request = {"prompt": prompt, "label": "4", **request}
    return Submission(
        ExecutionRequest(rollout_id, **request),
        "polled",
        "http://127.0.0.1:9/v1",
        llm_api_key="sk-policy-secret",
        lease_token=token,
        fingerprint=json.dumps(request),
    )


def called_back(url: str, rollout_id: str = "r1", *, graded: bool = True, **request: Any):
    prompt = [{"role": "user", "content": rollout_id}]
    request = {"prompt": prompt, "label": "4", **request}
    reply_to = {"completion": f"{url}/{rollout_id}/completion"}
    if graded:
        reply_to["grader"] = f"{url}/{rollout_id}/grader"
    return Submission(
        ExecutionRequest(rollout_id, **request),
        "called-back",
        "http://127.0.0.1:9/v1",
        reply_to=reply_to,
        reply_key="reply-secret",
        fingerprint=json.dumps(request),
    )


@pytest.fixture(name="polled")
def _polled():
    return polled


@pytest.fixture(name="called_back")
def _called_back():
    return called_back


async def ended(service: RolloutService, rollout_id: str = "r1", token: str = "t") -> RolloutView:
    async with asyncio.timeout(30):
        view = await service.wait(rollout_id, token, 5)
        while not view.status.is_terminal:
            view = await service.wait(rollout_id, token, 5)
    return view


@pytest.fixture(name="ended")
def _ended():
    return ended


@pytest.fixture(name="until")
def _until():
    async def until(claim: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not claim():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    return until
