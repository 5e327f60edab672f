"""A rollout server that is about to be killed.

    python chaos_server.py PORT DIRECTORY multi-sample|single-sample fail|rerun

Each prompt is a script of its rollout. The grader writes every reward that it gives to
`DIRECTORY/audit`; `GET /chaos` tells how many tasks there are.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.routing import Route

from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend
from osmosis_core.policy import MODEL, WireRequest, agent_scope, exchange
from osmosis_server import ServerSettings, create_rollout_server
from osmosis_server.logs import configure_logs
from osmosis_server.serving import listen, serve

CONCURRENT = 24


class Scripted(AgentWorkflow):
    """Calls the policy and sleeps as its prompt says; one sample per agent."""

    async def run(self, ctx):
        script = json.loads(ctx.prompt[0]["content"])
        for agent in script["agents"]:
            with agent_scope(agent):
                for _ in range(script["calls"]):
                    await ask(ctx.prompt)
                    await asyncio.sleep(script["pause_sec"])
        if script["fails"]:
            raise ValueError("as its script says")


async def ask(messages):
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    headers = {"content-type": "application/json"}
    answer = await exchange(WireRequest("POST", "/chat/completions", headers, body))
    if answer.status != 200:
        raise RuntimeError(answer.body.decode())


class Audited(Grader):
    """Gives rewards that nobody could guess, and says so first."""

    async def grade(self, ctx):
        for sample_id in ctx.samples:
            reward = random.random()
            line = json.dumps([ctx.metadata["rollout_id"], sample_id, reward])
            os.write(AUDIT, f"{line}\n".encode())
            ctx.set_sample_reward(sample_id, reward)
            await asyncio.sleep(random.choice((0, 0.05)))


async def chaos(request):
    return JSONResponse({"tasks": len(asyncio.all_tasks())})


def main():
    global AUDIT
    port, directory, protocol, on_restart = sys.argv[1:]
    where = Path(directory)
    AUDIT = os.open(where / "audit", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    configure_logs("text")
    backend = LocalBackend(
        workflow=Scripted,
        workflow_config=AgentWorkflowConfig(name="chaos"),
        grader=Audited,
        max_concurrent=CONCURRENT,
        artifacts_root=where / "disk",
    )
    settings = ServerSettings(
        journal=where / "disk/journal.db",
        callback_protocol=protocol,
        on_restart=on_restart,
        delivery_timeout_sec=1,
        result_wait_timeout_sec=2,
        polling_lease_timeout_sec=30,
        drain_grace_sec=1,
    )
    app = create_rollout_server(backend=backend, settings=settings)
    app.router.routes.append(Route("/chaos", chaos))
    raise SystemExit(
        serve(app, listen("127.0.0.1", int(port), has_key=False, is_insecure=False), lambda: None)
    )


if __name__ == "__main__":
    main()
