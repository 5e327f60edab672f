"""A server on loopback, a controller that knows only the wire protocols, a callback receiver."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
import uvicorn
from aiohttp import web

from osmosis_core import (
    AgentWorkflow,
    Grader,
    LocalBackend,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_server import ServerSettings, create_rollout_server

LEASE = "X-Osmosis-Rollout-Lease"
WAIT_SEC = 20.0


class Said(SampleSource):
    def __init__(self, **fields):
        self._fields = fields

    async def get_sample(self, sample_id):
        said = [{"role": "assistant", "content": f"by {sample_id}"}]
        return RolloutSample(id=sample_id, messages=said, **self._fields)


class Told(AgentWorkflow):
    """Does what the last message of its prompt says."""

    async def run(self, ctx):
        order, _, detail = ctx.prompt[-1]["content"].partition(" ")
        if order == "sleep":
            await asyncio.sleep(60)
        if order == "fail":
            raise ValueError(detail)
        if order == "crash":
            raise RuntimeError(detail)
        if order == "samples":
            for name in detail.split(","):
                source = Said(trainable=not name.startswith("helper"))
                get_rollout_context().register_sample_source(name, source)
            return None
        return [{"role": "assistant", "content": f"did {order}"}]


class Marks(Grader):
    """Gives the label as reward to each sample; `bad` and `odd` labels are trouble."""

    async def grade(self, ctx):
        if ctx.label == "bad":
            raise TypeError("no number")
        for sample_id, sample in ctx.samples.items():
            sample.metrics["odd"] = float("nan") if ctx.label == "odd" else 1.0
            if ctx.label == "removed":
                sample.remove_sample = True
            elif sample.trainable:
                ctx.set_sample_reward(sample_id, 0.5)


class Broken(LocalBackend):
    """A backend that does not keep its promises."""

    async def execute(self, request, on_workflow_complete, on_grader_complete=None):
        raise RuntimeError("the backend broke")


@dataclass
class Answer:
    status: int
    headers: dict
    body: object


@dataclass
class Controller:
    """Speaks every mode of the protocol with one server."""

    origin: str
    http: aiohttp.ClientSession
    api_key: str | None = None
    llm_url: str = "http://127.0.0.1:9/v1"

    async def ask(self, method, path, value=None, *, raw=None, **headers):
        headers = {name.replace("_", "-"): text for name, text in headers.items()}
        if self.api_key is not None:
            headers.setdefault("Authorization", f"Bearer {self.api_key}")
        if value is not None:
            raw = json.dumps(value)
        if raw is not None:
            headers.setdefault("Content-Type", "application/json")
        async with self.http.request(method, self.origin + path, data=raw, headers=headers) as got:
            text = await got.text()
            is_json = got.headers.get("content-type", "").startswith("application/json")
            return Answer(got.status, dict(got.headers), json.loads(text) if is_json else text)

    def body(self, order="speak", rollout_id="r-1", **fields):
        asked = [{"role": "user", "content": order}]
        common = {"initial_messages": asked, "chat_completions_url": self.llm_url, "label": "1"}
        return {"rollout_id": rollout_id, **common, **fields}

    async def submit(self, body, **headers):
        return await self.ask("POST", "/rollout", body, **headers)

    async def lease(self, order="speak", rollout_id="r-1", **fields):
        """Submit in the polling mode; the lease token."""
        answer = await self.submit(self.body(order, rollout_id, **fields))
        assert answer.status == 202, answer
        return answer.body["polling_lease_token"]

    async def poll(self, token, rollout_id="r-1"):
        return await self.ask("GET", f"/rollout/{rollout_id}/result", **{LEASE: token})

    async def result(self, token, rollout_id="r-1"):
        """Poll until the end; the last body."""
        async with asyncio.timeout(WAIT_SEC):
            while True:
                answer = await self.poll(token, rollout_id)
                assert answer.status == 200, answer
                if answer.body["status"] in ("success", "failure", "cancelled"):
                    return answer.body

    async def status(self, rollout_id="r-1"):
        return (await self.ask("GET", f"/rollout/{rollout_id}/status")).body

    async def until(self, status, rollout_id="r-1"):
        seen = await self.status(rollout_id)
        for _ in range(2000):
            if seen["status"] == status:
                return
            await asyncio.sleep(0.01)
            seen = await self.status(rollout_id)
        raise AssertionError(f"not {status}: {seen}")

    async def cancel(self, **selector):
        return await self.ask("POST", "/rollout/cancel", selector)


@dataclass
class Receiver:
    """Takes callbacks; answers `script` first, then 200."""

    origin: str = ""
    script: list = field(default_factory=list)
    got: list = field(default_factory=list)
    """Path, headers and body of each callback, in order."""

    async def take(self, request):
        self.got.append((request.path, dict(request.headers), await request.json()))
        status = self.script.pop(0) if self.script else 200
        headers = {"Location": f"{self.origin}/elsewhere"} if status == 307 else {}
        return web.json_response({"ok": True}, status=status, headers=headers)

    def urls(self, *, graded=True):
        urls = {"completion_callback_url": f"{self.origin}/completion"}
        return urls | ({"grader_callback_url": f"{self.origin}/grader"} if graded else {})

    async def wait(self, path):
        """The body of the first callback at `path`."""
        async with asyncio.timeout(WAIT_SEC):
            while True:
                for at, _, body in self.got:
                    if at == path:
                        return body
                await asyncio.sleep(0.005)

    @property
    def paths(self):
        return [path for path, _, _ in self.got]


@asynccontextmanager
async def serving(app):
    """The origin of an ASGI app on a real socket, with its lifespan."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        while not server.started:
            assert not task.done(), "the server did not start"
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def connect():
    """A controller of a server that runs: `async with connect(origin, api_key)`."""

    @asynccontextmanager
    async def connect(origin, api_key=None):
        async with aiohttp.ClientSession() as http:
            yield Controller(origin, http, api_key)

    return connect


@pytest.fixture
async def serve(tmp_path, connect):
    """Start a server: `async with serve(backend=..., api_key=..., setting=...) as controller`."""

    @asynccontextmanager
    async def start(backend=None, api_key=None, lifespan=None, change=None, **settings):
        backend = backend or LocalBackend(workflow=Told, grader=Marks, artifacts_root=tmp_path)
        settings = {"journal": ":memory:", "drain_grace_sec": 0.0, **settings}
        app = create_rollout_server(
            backend=backend,
            api_key=api_key,
            lifespan=lifespan,
            configure_logging=False,
            settings=ServerSettings(**settings),
        )
        if change is not None:
            change(app)
        async with serving(app) as origin, connect(origin, api_key) as controller:
            yield controller

    return start


@pytest.fixture
def broken(tmp_path):
    return Broken(workflow=Told, grader=Marks, artifacts_root=tmp_path)


@pytest.fixture
async def receiver():
    taking = Receiver()
    app = web.Application()
    app.router.add_post("/{name}", taking.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    taking.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield taking
    await runner.cleanup()
