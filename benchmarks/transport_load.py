"""One load of the transport, in whichever interpreter runs it. Prints one JSON object.

`transport_load.py LOAD ROOT [NUMBER]`; `ROOT` is the stub's. The side (ours, the bare SDK, the
peer) is part of the load's name.
"""

import asyncio
import dataclasses
import gc
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MODE="PRODUCTION")
ROLLOUTS, TURNS, TOKENS = 64, 5, 200
ANSWERS, LONG = 24, 1000
HI = [{"role": "user", "content": "What is 6 * 7?"}]
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
root = sys.argv[2]
number = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def url(kind):
    return f"{root}/{kind}/v1"


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def taken(work, warm):
    """CPU and wall seconds of `work()`, after `warm()` has imported and connected everything."""
    await warm()
    gc.collect()
    began, wall = cpu(), time.perf_counter()
    await work()
    return {"cpu": cpu() - began, "wall": time.perf_counter() - wall}


# Strands rollouts through a LocalBackend, ours and the peer's


def rollouts():
    from strands import tool

    try:
        from osmosis_core import AgentWorkflow, AgentWorkflowConfig, ExecutionRequest, LocalBackend
        from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent
    except ImportError:
        from osmosis_ai.rollout import (
            AgentWorkflow,
            AgentWorkflowConfig,
            ExecutionRequest,
            LocalBackend,
        )
        from osmosis_ai.rollout.integrations.agents.strands import (
            OsmosisRolloutModel,
            OsmosisStrandsAgent,
        )

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    os.environ["OSMOSIS_CHAT_COMPLETIONS_URL"] = url(f"{TOKENS}-stream")
    os.environ["OSMOSIS_API_KEY"] = "key"

    class Adds(AgentWorkflow):
        async def run(self, ctx):
            agent = OsmosisStrandsAgent(
                model=OsmosisRolloutModel(),
                messages=ctx.prompt,
                tools=[add],
                callback_handler=None,
            )
            await agent.invoke_async()
            calls = sum(m["role"] == "assistant" for m in agent.messages)
            assert calls == TURNS, (calls, agent.messages)

    backend = LocalBackend(workflow=Adds, workflow_config=AgentWorkflowConfig(name="bench"))

    async def done(result):
        assert str(result.status).lower().endswith("success"), result

    async def one(name):
        await backend.execute(ExecutionRequest(id=name, prompt=HI), done)

    async def work():
        await asyncio.gather(*(one(f"r{i}") for i in range(ROLLOUTS)))

    return work, lambda: one("warm")


def strands_calls(kind, streams, count):
    """Calls of the model alone, as an agent makes them."""
    try:
        from osmosis_core import RolloutContext
        from osmosis_strands import OsmosisRolloutModel

        model = OsmosisRolloutModel(stream=streams)
    except ImportError:
        from osmosis_ai.rollout.context import RolloutContext
        from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel

        model = OsmosisRolloutModel(stream=streams)
    messages = [{"role": "user", "content": [{"text": "What is 6 * 7?"}]}]
    bound = model.for_sample("s", RolloutContext(url(kind), "key", "r"))

    async def work(calls=count):
        for _ in range(calls):
            async for _ in bound.stream(messages):
                pass

    return work, lambda: work(2)


# The openai SDK, bare and over our transport


def sdk(side, kind):
    import openai

    if side == "bare":
        return openai.AsyncOpenAI(base_url=url(kind), api_key="key", max_retries=0)
    from osmosis_core import RolloutContext
    from osmosis_core.policy import BASE_URL, async_client

    RolloutContext(url(kind), "key", "r").__enter__()
    lib = importlib.import_module("httpx2")
    client = async_client(lib)
    return openai.AsyncOpenAI(base_url=BASE_URL, http_client=client, api_key="-", max_retries=0)


def fresh_rollout(side, kind):
    """Records belong to a rollout; give them up as a backend does."""
    if side == "ours":
        from osmosis_core import RolloutContext

        RolloutContext(url(kind), "key", "r").__enter__()


async def said(client, streams, messages=HI, **options):
    create = client.chat.completions.create
    answer = await create(model="m", messages=messages, stream=streams, **options)
    if not streams:
        return [answer.choices[0].message]
    return [chunk.choices[0].delta async for chunk in answer if chunk.choices]


def sdk_calls(side, kind, streams, count, at_once=1):
    client = sdk(side, kind)

    async def caller(calls):
        for _ in range(calls):
            fresh_rollout(side, kind)
            await said(client, streams)

    async def work():
        await asyncio.gather(*(caller(count // at_once) for _ in range(at_once)))

    return work, lambda: caller(2)


def sdk_loops():
    client = sdk("bare", f"{TOKENS}-stream")

    async def rollout():
        messages = list(HI)
        for _ in range(TURNS):
            deltas = await said(client, True, messages, tools=[TOOL])
            text = "".join(delta.content or "" for delta in deltas)
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": "3"})

    async def work():
        await asyncio.gather(*(rollout() for _ in range(ROLLOUTS)))

    return work, rollout


# Calls in flight: ours under the SDK, ours alone, and the candidates for the inner client


async def in_flight(library):
    """CPU per call with `number` calls waiting all the time, connections already open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    kind = f"{ANSWERS}-held"
    body = json.dumps({"model": "m", "messages": HI}).encode()
    headers = {"content-type": "application/json"}
    target = f"{url(kind)}/chat/completions"
    if library in ("ours", "bare"):
        client = sdk(library, kind)

        async def call():
            fresh_rollout(library, kind)
            await client.with_options(timeout=600).chat.completions.create(model="m", messages=HI)

    elif library == "transport":
        from osmosis_core.policy.transport import WireRequest, exchange

        sdk("ours", kind)
        request = WireRequest("POST", "/chat/completions", headers, body)

        async def call():
            fresh_rollout("ours", kind)
            assert (await exchange(request)).status == 200

    elif library == "aiohttp":
        import aiohttp

        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

        async def call():
            async with session.post(target, data=body, headers=headers) as response:
                await response.read()

    else:
        lib = importlib.import_module(library)
        limits = lib.Limits(max_connections=None, max_keepalive_connections=None)
        shared = lib.AsyncClient(limits=limits, timeout=600)

        async def call():
            (await shared.post(target, content=body, headers=headers)).raise_for_status()

    rounds = 2 if number < 1000 else 1

    async def caller(calls):
        for _ in range(calls):
            await call()

    async def together(calls):
        await asyncio.gather(*(caller(calls) for _ in range(number)))

    used = await taken(lambda: together(rounds), lambda: together(1))
    if library == "aiohttp":
        await session.close()
    return {"ms": 1000 * used["cpu"] / (number * rounds)}


# Memory of what is recorded


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def conversations(count, kind):
    """Rollouts of five calls each, with the growing history of a conversation."""
    from osmosis_core import RolloutContext
    from osmosis_core.policy.transport import WireRequest, exchange

    kept = []

    async def rollout():
        with RolloutContext(url(kind), "key", "r") as context:
            messages = list(HI)
            for _ in range(TURNS):
                options = {"stream": True} if kind.endswith("ids") else {}
                body = json.dumps({"model": "m", "messages": messages, **options}).encode()
                await exchange(WireRequest("POST", "/chat/completions", {}, body))
                assert context.calls[-1].received, context.calls[-1].error
                messages += [context.calls[-1].answer, *HI]
        return context

    for _ in range(count // (8 * TURNS)):
        kept += await asyncio.gather(*(rollout() for _ in range(8)))
        yield kept


async def record_size():
    async for kept in conversations(400, f"{TOKENS}-ids"):
        kept.clear()
    gc.collect()
    before, kept = resident(), []
    async for so_far in conversations(number, f"{TOKENS}-ids"):
        kept = so_far
    gc.collect()
    held = resident() - before
    calls = [call for context in kept for call in context.calls]
    plain = [as_json(call) for call in calls]
    return {"bytes": held / len(calls), "json": sum(map(len, plain)) / len(calls)}


def as_json(call):
    if hasattr(call, "to_json"):
        call = call.to_json()
    elif dataclasses.is_dataclass(call):
        call = dataclasses.asdict(call)
    return call if isinstance(call, str) else json.dumps(call, separators=(",", ":"), default=list)


async def flatness():
    seen, at = [], max(number // 10, 8 * TURNS)
    done = 0
    async for kept in conversations(number, f"{ANSWERS}-plain"):
        done += sum(len(context.calls) for context in kept)
        kept.clear()
        if done >= at * (len(seen) + 1):
            gc.collect()
            seen.append(resident())
    return {"first": seen[0], "last": seen[-1], "calls": done}


def timed(maker):
    async def run():
        return await taken(*maker())

    return run


LOADS = {
    "rollouts": timed(rollouts),
    "rollouts-bare": timed(sdk_loops),
    "strands-stream": timed(lambda: strands_calls(f"{LONG}-stream", True, 20)),
    "strands-plain": timed(lambda: strands_calls(f"{ANSWERS}-plain", False, 300)),
    "memory": record_size,
    "flat": flatness,
}
for side in ("ours", "bare"):
    LOADS |= {
        f"stream-{side}": timed(lambda s=side: sdk_calls(s, f"{LONG}-stream", True, 40)),
        f"paced-{side}": timed(lambda s=side: sdk_calls(s, f"{TOKENS}-paced", True, 64, 64)),
        f"plain-{side}": timed(lambda s=side: sdk_calls(s, f"{ANSWERS}-plain", False, 1000)),
        f"many-{side}": timed(lambda s=side: sdk_calls(s, f"{LONG}-stream", True, 64, 64)),
    }
for library in ("ours", "bare", "transport", "aiohttp", "httpx", "httpx2"):
    LOADS[f"flight-{library}"] = lambda library=library: in_flight(library)

if __name__ == "__main__":
    print(json.dumps(asyncio.run(LOADS[sys.argv[1]]())))
