"""Drives a rollout server over raw sockets; prints one JSON object.

    python server_load.py cycles|submit PORT CLIENTS SECONDS_OR_COUNT [POLICY_URL]

`cycles`: each client submits a rollout and reads its result, again and again, for some seconds.
`submit`: so many rollouts are submitted and left alone.
"""

import asyncio
import itertools
import json
import statistics
import sys
import time
import uuid

import uvloop

WARM_SEC = 2.0
HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Connection(asyncio.Protocol):
    """One request at a time over a connection that is kept."""

    def __init__(self):
        self.received = b""
        self.answer = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) >= int(length or 0):
            self.received = b""
            self.answer.set_result((int(head[9:12]), body))

    def connection_lost(self, error):
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError(error))

    async def request(self, method, path, headers=b"", body=b""):
        self.answer = asyncio.get_running_loop().create_future()
        line = b"%s %s HTTP/1.1\r\n" % (method, path)
        length = b"Content-Length: %d\r\n" % len(body)
        self.transport.write(line + HEAD + headers + length + b"\r\n" + body)
        return await self.answer


class Load:
    def __init__(self, port, policy_url="http://127.0.0.1:9/v1"):
        self.port = port
        run = uuid.uuid4().hex[:8]
        self.ids = (f"{run}-{number}" for number in itertools.count())
        self.rest = {
            "initial_messages": [{"role": "user", "content": "What is 6 * 7?"}],
            "label": "42",
            "metadata": {"row": 17, "split": "train"},
            "chat_completions_url": policy_url,
            "llm_api_key": "key-of-the-policy",
        }
        self.admitted = []
        self.finished = []

    async def connect(self):
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
        return connection

    async def submit(self, connection):
        rollout_id = next(self.ids)
        body = json.dumps({"rollout_id": rollout_id, **self.rest}).encode()
        began = time.perf_counter()
        status, answer = await connection.request(b"POST", b"/rollout", b"", body)
        ended = time.perf_counter()
        assert status == 202, (status, answer)
        self.admitted.append((ended, ended - began))
        return rollout_id.encode(), json.loads(answer)["polling_lease_token"].encode()

    async def cycle(self, connection):
        rollout_id, token = await self.submit(connection)
        lease = b"X-Osmosis-Rollout-Lease: %s\r\n" % token
        path = b"/rollout/%s/result" % rollout_id
        while True:
            status, answer = await connection.request(b"GET", path, lease)
            assert status == 200, (status, answer)
            told = json.loads(answer)
            if told["status"] in ("success", "failure", "cancelled"):
                assert told["sample"]["reward"] == 1.0, answer
                self.finished.append(time.perf_counter())
                return


async def cycles(load, clients, seconds):
    connections = [await load.connect() for _ in range(clients)]
    end = time.perf_counter() + WARM_SEC + seconds
    started = end - seconds

    async def client(connection):
        while time.perf_counter() < end:
            await load.cycle(connection)

    clock = asyncio.get_running_loop().call_later(WARM_SEC, lambda: cpu.append(time.process_time()))
    cpu = []
    await asyncio.gather(*map(client, connections))
    clock.cancel()
    took = time.perf_counter() - started
    waits = sorted(wait for when, wait in load.admitted if when >= started)
    return {
        "per_sec": sum(when >= started for when in load.finished) / took,
        "load_share": (time.process_time() - cpu[0]) / took,
        "p50_ms": 1000 * statistics.median(waits),
        "p99_ms": 1000 * waits[int(0.99 * len(waits))],
    }


async def submit(load, clients, count):
    connections = [await load.connect() for _ in range(clients)]
    left = iter(range(int(count)))

    async def client(connection):
        for _ in left:
            await load.submit(connection)

    began = time.perf_counter()
    await asyncio.gather(*map(client, connections))
    return {"per_sec": count / (time.perf_counter() - began)}


if __name__ == "__main__":
    what, port, clients, amount, *policy = sys.argv[1:]
    loading = {"cycles": cycles, "submit": submit}[what]
    print(json.dumps(uvloop.run(loading(Load(int(port), *policy), int(clients), float(amount)))))
