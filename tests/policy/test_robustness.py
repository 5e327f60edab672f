"""Streams cut anywhere say what the openai SDK says, and a policy in chaos loses nothing."""

import asyncio
import collections
import json
import random

import httpx
import pytest
from aiohttp import web
from openai._streaming import SSEDecoder
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend, RetryPolicy
from osmosis_core.policy import BASE_URL, async_client
from osmosis_core.policy.assemble import Assembler, EventReader, MalformedAnswer
from osmosis_core.testing.server import PolicyServer, chunks, completion, error_response, send

TEXTS = ("", "a", "data: x\n\n", "é", "日本語", "🦢", '{"k": [1]}', "\u2028", "\\", " word " * 9)


class Stream:
    """A generated stream: interleaved deltas of several choices, in one of the allowed shapes."""

    def __init__(self, rng, *, huge=False):
        self.rng = rng
        self.newline = rng.choice([b"\n", b"\r\n"])
        deltas = [self._choice(index, huge) for index in range(rng.choice([1, 1, 1, 2, 3]))]
        opened = [queue.popleft() for queue in deltas]
        while any(deltas):
            opened.append(rng.choice([queue for queue in deltas if queue]).popleft())
        head = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
        events = [{**head, "choices": [choice]} for choice in opened]
        if rng.random() < 0.5:
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            events.append({**head, "choices": [], "usage": usage})
        self.body = b"".join(map(self._event, events))
        self.body += self._event(None) if rng.random() < 0.8 else b""

    def _choice(self, index, huge):
        rng = self.rng
        text = ["x" * 300_000] if huge else rng.choices(TEXTS, k=rng.randrange(5))
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{rng.choice(["content", "reasoning_content"]): piece} for piece in text]
        calls = range(rng.choice([0, 0, 1, 2, 3]))
        for number in calls:
            function = {"name": f"tool_{number}", "arguments": ""}
            call = {"index": number, "id": f"i{number}", "type": "function", "function": function}
            deltas.append({"tool_calls": [call]})
        for number in rng.choices(calls, k=len(calls) * 2) if calls else []:
            piece = {"index": number, "function": {"arguments": rng.choice(TEXTS)}}
            deltas.append({"tool_calls": [piece]})
        found = [{"index": index, "delta": delta, "finish_reason": None} for delta in deltas]
        if rng.random() < 0.3:
            for choice in found[1:]:  # the SDK doubles those of a later choice's first chunk
                entry = {"token": "t", "bytes": [116], "logprob": -0.5, "top_logprobs": []}
                choice["logprobs"] = {"content": [entry], "refusal": None}
        reason = rng.choice(["stop", "length", "tool_calls"])
        found.append({"index": index, "delta": {}, "finish_reason": reason})
        return collections.deque(found)

    def _event(self, event):
        rng = self.rng
        text = "[DONE]"
        if event is not None:
            is_long = rng.random() < 0.1
            text = json.dumps(event, ensure_ascii=rng.random() < 0.5, indent=1 if is_long else None)
        space = rng.choice([b" ", b" ", b""])
        lines = [b"data:" + space + line.encode() for line in text.split("\n")]
        noise = rng.choice([(), (), (), (b": keepalive 1/2",), (b"event: x",), (b"id: 7", b":")])
        return self.newline.join([*noise, *lines, b"", b""])

    def cuts(self, count):
        """The body as pieces: cut once at every offset, byte by byte, and at random places."""
        yield [self.body]
        if len(self.body) < 10_000:
            yield [self.body[i : i + 1] for i in range(len(self.body))]
            offsets = range(1, len(self.body))
            step = max(1, len(offsets) // count)
            yield from ([self.body[:at], self.body[at:]] for at in offsets[::step])
        for _ in range(3):
            places = sorted(self.rng.choices(range(len(self.body)), k=self.rng.randrange(9)))
            ends = [*places, len(self.body)]
            yield [self.body[a:b] for a, b in zip([0, *places], ends, strict=True)]


def ours(pieces):
    reader, assembler = EventReader(), Assembler()
    for piece in pieces:
        for data in reader.feed(piece):
            assembler.add(data)
    for data in reader.close():
        assembler.add(data)
    return assembler.completion()


def sdks(body):
    state = ChatCompletionStreamState()
    for event in SSEDecoder().iter_bytes(iter([body])):
        if event.data.startswith("[DONE]"):
            break
        state.handle_chunk(ChatCompletionChunk.model_validate_json(event.data))
    return state.current_completion_snapshot.model_dump()  # the final one refuses "length"


def told(answer):
    """What both assemblies must agree on."""
    return {
        "id": answer["id"],
        "model": answer["model"],
        "usage": (answer.get("usage") or {}).get("total_tokens"),
        "choices": [
            {
                "index": choice["index"],
                "finish_reason": choice["finish_reason"],
                "content": choice["message"]["content"],
                "reasoning": choice["message"].get("reasoning_content"),
                "tool_calls": [
                    (call["id"], call["function"]["name"], call["function"]["arguments"])
                    for call in choice["message"].get("tool_calls") or []
                ],
                "logprobs": [
                    (entry["token"], entry["logprob"])
                    for entry in (choice.get("logprobs") or {}).get("content") or []
                ],
            }
            for choice in answer["choices"]
        ],
    }


def compare(total, seed, per_stream):
    rng = random.Random(seed)
    done = streams = 0
    while done < total:
        streams += 1
        stream = Stream(rng, huge=streams % 200 == 0)
        expected = told(sdks(stream.body))
        for pieces in stream.cuts(per_stream):
            assert told(ours(pieces)) == expected, pieces
            done += 1
    return streams


def test_streams_assemble_as_the_sdk_assembles_them():
    assert compare(2_000, seed=1, per_stream=40) > 20


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_200_000_streams_cut_at_every_byte_assemble_as_the_sdk_assembles_them():
    assert compare(100_000, seed=2, per_stream=1_000_000) > 20
    assert compare(100_000, seed=3, per_stream=30) > 1_000


@pytest.mark.parametrize("seed", range(8))
def test_stream_that_ends_early_is_malformed_or_whole(seed):
    stream = Stream(random.Random(seed))
    whole = told(ours([stream.body]))["choices"]
    for end in range(len(stream.body)):
        try:
            answer = ours([stream.body[:end]])
        except MalformedAnswer:
            continue
        assert told({"id": "", "model": "", **answer})["choices"] == whole


class ChaoticPolicy(PolicyServer):
    """Fails one request in ten, in every way; remembers what it answered in full."""

    def __init__(self, seed):
        super().__init__()
        self.answered = collections.defaultdict(list)
        self.faults = collections.Counter()
        self._rng = random.Random(seed)
        self._number = 0

    async def respond(self, request, body):
        self._number += 1
        turn = (request.headers["x-rollout-id"], len(body["messages"]))
        text = f"answer {self._number} of {turn}: " + "word " * self._rng.randrange(30)
        answer = completion(body, {"role": "assistant", "content": text}, "stop", str(self._number))
        fault = None
        if self._rng.random() < 0.1:
            faults = ("429", "500", "503", "cut", "reset", "trickle", "content type")
            fault = self._rng.choice(faults)
        self.faults[fault] += 1
        if fault in ("429", "500", "503"):
            return error_response(int(fault), "busy", {"Retry-After": "0.01"})
        if fault == "reset":
            request.transport.abort()
            return web.Response()
        if fault == "content type":
            if self._rng.random() < 0.5:
                return web.Response(text=json.dumps(answer), content_type="text/event-stream")
            return web.Response(text="data: {}\n\n", content_type="application/json")
        if fault == "cut":
            return await self._cut(request, body, answer)
        self.answered[turn].append(text)
        return await send(request, body, answer, delay_sec=0.005 if fault == "trickle" else 0.0)

    async def _cut(self, request, body, answer):
        events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks(answer, True)]
        whole = b"".join(events[:-2]) if body.get("stream") else json.dumps(answer).encode()[:-1]
        kind = "text/event-stream" if body.get("stream") else "application/json"
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        await response.write(whole[: self._rng.randrange(len(whole))])
        if self._rng.random() < 0.5:
            request.transport.abort()
        return response


class Converses(AgentWorkflow):
    async def run(self, ctx):
        messages, rng = list(ctx.prompt), random.Random(ctx.prompt[0]["content"])
        for _ in range(rng.choice([2, 3])):
            body = {"model": "m", "messages": messages, "stream": rng.random() < 0.5}
            answer = await async_client(httpx).post(f"{BASE_URL}/chat/completions", json=body)
            answer.raise_for_status()
            messages = [*messages, {"role": "assistant", "content": "noted"}, *ctx.prompt]


async def roll_out(count, seed):
    results = {}
    retry = RetryPolicy(max_attempts=6, base_delay_sec=0.001, max_delay_sec=0.01)
    backend = LocalBackend(workflow=Converses, max_concurrent=64)

    async def one(name):
        async def reported(result):
            assert name not in results
            results[name] = result

        prompt = [{"role": "user", "content": name}]
        await backend.execute(ExecutionRequest(id=name, prompt=prompt), reported)

    with ChaoticPolicy(seed) as policy, policy.rollout(retry=retry):
        await asyncio.gather(*(one(f"r{number}") for number in range(count)))
    return policy, results


async def check_chaos(count, seed):
    policy, results = await roll_out(count, seed)
    assert len(results) == count, "every rollout ends"
    seen = set()
    for name, result in results.items():
        assert result.status == "success", result.err_message
        (sample,) = result.samples.values()
        turns = random.Random(name).choice([2, 3])
        assert [call.received for call in sample.calls] == [True] * turns
        for position, call in enumerate(sample.calls):
            turn = (name, 1 + 2 * position)
            assert call.answer["content"] in policy.answered[turn]
            assert call.response_id not in seen, "recorded twice"
            seen.add(call.response_id)
    assert len(policy.faults) == 8 or count < 500
    calls = [call for r in results.values() for s in r.samples.values() for call in s.calls]
    repeats = sum(policy.faults.values()) - sum(len(call.attempts) for call in calls)
    assert 0 <= repeats <= policy.faults["reset"], "only resets of kept connections cost no try"


async def test_chaos_loses_repeats_and_shortens_nothing():
    await check_chaos(40, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_2_000_rollouts_through_chaos_lose_repeat_and_shorten_nothing():
    await check_chaos(2_000, seed=2)
