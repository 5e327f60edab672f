"""A policy that costs next to nothing: every answer is rendered once. Prints its port.

The first segment of the path says how it answers: `/200-stream/v1` streams 200 tokens, one write
each; `/24-plain/v1` never streams; `/200-paced/v1` sends a token every 20 ms; `/24-held/v1` answers
plainly after a second; `/200-ids/v1` streams token ids and log-probs as well. `/24-soon/v1` answers
plainly after 20 ms, and `/24-soon-stream/v1` begins to stream then. Offered a tool, the policy
calls it in the first four turns.
"""

import asyncio
import functools
import json
import resource

from aiohttp import web

TURNS = 5
PACE_SEC = 0.02
WAIT_SEC = {"held": 1.0, "soon": 0.02, "soon-stream": 0.02}
HEAD = {"id": "stub", "created": 0, "model": "stub"}
ADD = {"type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}


def chunk(delta, finish_reason=None, **extra):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **extra}
    value = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage(tokens):
    return {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}


@functools.cache
def stream(tokens, call_id, has_ids):
    def extra(number):
        if not has_ids:
            return {}
        entry = {"token": " word", "bytes": [32, 119], "logprob": -0.125, "top_logprobs": []}
        return {"token_ids": [number], "logprobs": {"content": [entry]}}

    texts = [{"content": f" word{number % 97}"} for number in range(tokens)]
    if call_id:
        texts[-1] = {"tool_calls": [{**ADD, "id": call_id, "index": 0}]}
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk(delta, **extra(number)) for number, delta in enumerate(texts)]
    events.append(chunk({}, "tool_calls" if call_id else "stop"))
    counted = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": usage(tokens)}
    end = b"data: " + json.dumps(counted).encode() + b"\n\ndata: [DONE]\n\n"
    return [*events, end]


@functools.cache
def plain(tokens, call_id):
    message = {"role": "assistant", "content": " word" * tokens}
    message |= {"tool_calls": [{**ADD, "id": call_id}]} if call_id else {}
    finish_reason = "tool_calls" if call_id else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    answer = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage(tokens)}
    return json.dumps(answer).encode()


async def answer(request):
    tokens, _, kind = request.match_info["kind"].partition("-")
    body = await request.read()
    if kind in WAIT_SEC:
        await asyncio.sleep(WAIT_SEC[kind])
    asked = json.loads(body) if kind not in ("plain", "held") else {}
    given = sum(message["role"] in ("tool", "user") for message in asked.get("messages", ()))
    call_id = f"c{given}" if asked.get("tools") and given < TURNS else None
    if kind in ("plain", "held", "soon"):
        return web.Response(body=plain(int(tokens), call_id), content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in stream(int(tokens), call_id, kind == "ids"):
        await response.write(event)
        await asyncio.sleep(PACE_SEC if kind == "paced" else 0)
    await response.write_eof()
    return response


async def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{kind}/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=600)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
