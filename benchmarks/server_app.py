"""A server to be loaded, in whichever interpreter runs it: ours, the peer's, or a bare route.

    python server_app.py ours|peer|bare WORKFLOW PORT DIRECTORY

`GET /bench` tells its resident bytes, CPU seconds, tasks, and the longest time in milliseconds for
which its event loop was busy since it was last asked.
"""

import asyncio
import resource
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ANSWER = [{"role": "user", "content": "What is 6 * 7?"}, {"role": "assistant", "content": "42"}]
TICK_SEC = 0.002
released = asyncio.Event()
longest_sec = 0.0


async def watch():
    global longest_sec
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK_SEC)
        longest_sec = max(longest_sec, time.perf_counter() - began - TICK_SEC)


@asynccontextmanager
async def lifespan(app):
    watching = asyncio.create_task(watch())
    yield
    watching.cancel()


async def bench(request):
    global longest_sec
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    told = {
        "rss": pages * resource.getpagesize(),
        "cpu": time.process_time(),
        "tasks": len(asyncio.all_tasks()),
        "longest_block_ms": 1000 * longest_sec,
    }
    longest_sec = 0.0
    return JSONResponse(told)


async def release(request):
    released.set()
    return Response()


def backend(workflow):
    try:
        from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend
    except ImportError:
        from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend

    class NoOp(AgentWorkflow):
        async def run(self, ctx):
            return ANSWER

    class Waits(AgentWorkflow):
        async def run(self, ctx):
            await released.wait()
            return ANSWER

    class Second(AgentWorkflow):
        async def run(self, ctx):
            await asyncio.sleep(1)
            return ANSWER

    class Calls(AgentWorkflow):
        async def run(self, ctx):
            await policy_client().chat.completions.create(
                model="osmosis-rollout", messages=ctx.prompt
            )

    class Gives(Grader):
        async def grade(self, ctx):
            ctx.set_reward(1.0)

    kinds = {"noop": NoOp, "waits": Waits, "queue": Waits, "second": Second, "calls": Calls}
    config = AgentWorkflowConfig(name="bench")
    if workflow == "queue":
        config.concurrency.max_concurrent = 4
    return LocalBackend(workflow=kinds[workflow], workflow_config=config, grader=Gives)


shared_client = None


def policy_client():
    global shared_client
    if shared_client is None:
        import httpx2
        from openai import AsyncOpenAI

        from osmosis_core.policy import BASE_URL, async_client

        shared_client = AsyncOpenAI(
            base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0
        )
    return shared_client


def ours(workflow, directory):
    from osmosis_server import ServerSettings, create_rollout_server

    settings = ServerSettings(
        journal=directory / "journal.db",
        max_pending=200_000,
        polling_lease_timeout_sec=3600,
    )
    app = create_rollout_server(backend=backend(workflow), settings=settings, lifespan=lifespan)
    return app


def peer(workflow, directory):
    from osmosis_ai.rollout.server import create_rollout_server

    return create_rollout_server(
        backend=backend(workflow), lifespan=lifespan, polling_lease_timeout_sec=3600
    )


def bare(workflow, directory):
    from starlette.applications import Starlette

    accepted = {"rollout_id": "x" * 32, "status": "queued", "polling_lease_token": "x" * 43}
    sample = {"messages": ANSWER, "label": "42", "reward": 1.0, "remove_sample": False}
    result = {"rollout_id": "x" * 32, "status": "success", "sample": sample}

    async def submit(request):
        await request.json()
        return JSONResponse(accepted, 202)

    async def read(request):
        return JSONResponse(result)

    routes = [
        Route("/rollout", submit, methods=["POST"]),
        Route("/rollout/{rollout_id}/result", read),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main():
    kind, workflow, port, directory = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    app = {"ours": ours, "peer": peer, "bare": bare}[kind](workflow, Path(directory))
    app.router.routes += [Route("/bench", bench), Route("/release", release)]
    if kind == "ours":
        from osmosis_server.serving import listen, serve

        raise SystemExit(
            serve(
                app, listen("127.0.0.1", int(port), has_key=False, is_insecure=False), lambda: None
            )
        )
    uvicorn.run(app, port=int(port), access_log=False, log_level="error", backlog=2048)


if __name__ == "__main__":
    main()
