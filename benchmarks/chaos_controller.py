"""The controller's side of the chaos run: submits, polls, is called back, and forgets nothing."""

import asyncio
import json
import random
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from osmosis_core.policy.assemble import event_stream
from osmosis_core.testing import Cut, Delay, Malformed, ScriptedPolicy, Status
from osmosis_core.testing.server import chunks, completion

LEASE = "X-Osmosis-Rollout-Lease"
OVER = ("success", "failure", "cancelled")
TRY_SEC = 5.0


@dataclass
class Rollout:
    """One rollout and all that its controller was ever told about it."""

    rollout_id: str
    protocol: str
    body: bytes
    told: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_accepted: bool = False
    token: str = ""

    def take(self, name: str, body: bytes) -> None:
        """Something final was said."""
        self.told[name].append(body)
        if name != "completion":
            self.over.set()

    @property
    def is_over(self) -> bool:
        """Whether its end was told."""
        return bool(self.told["result"] or self.told["grader"])

    def terminal(self) -> dict:
        """How it ended, as it was first told."""
        (body, *_) = self.told["result"] or self.told["grader"]
        return json.loads(body)


class Faults:
    """Decides, from a seed, what goes wrong next; nothing does any more once it is `kind`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_kind = False
        self.counts: Counter[str] = Counter()

    def next(self, **chances: float) -> str:
        """The name of a fault, each with its chance, or `none`."""
        roll = self.random.random()
        for name, chance in chances.items():
            roll -= chance
            if roll < 0 and not self.is_kind:
                self.counts[name] += 1
                return name
        return "none"


def unruly_policy(faults: Faults) -> ScriptedPolicy:
    """A policy that fails, stalls, breaks off and repeats itself."""

    def answer(request):
        match faults.next(
            policy_500=0.04, policy_503=0.05, policy_late=0.1, policy_cut=0.05, policy_doubled=0.05
        ):
            case "policy_500":
                return Status(500)
            case "policy_503":
                return Status(503, retry_after="0")
            case "policy_late":
                return Delay("it is 42", before_sec=faults.random.uniform(0.1, 1.0))
            case "policy_cut":
                return Cut(faults.random.randint(0, 2))
            case "policy_doubled":
                message = {"role": "assistant", "content": "it is 42"}
                said = chunks(completion(request.body, message, "stop", "twice"), False)
                text = event_stream(list(said)).decode()
                return Malformed(text + text)
        return "it is 42"

    return ScriptedPolicy(answer)


class Listener:
    """Takes callbacks; some are refused, some lost, some answered too late or not at all."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.rollouts: dict[str, Rollout] = {}
        self.unknown: list[str] = []

    async def __aenter__(self) -> "Listener":
        app = web.Application()
        app.router.add_post("/{rollout_id}/{name}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.origin = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        fault = self.faults.next(
            callback_500=0.15, callback_dropped=0.05, callback_unanswered=0.1, callback_late=0.05
        )
        if fault == "callback_500":
            return web.Response(status=500)
        if fault == "callback_dropped":
            request.transport.abort()
            return web.Response()
        rollout = self.rollouts.get(request.match_info["rollout_id"])
        if rollout is None:
            self.unknown.append(request.path)
            return web.Response(status=404)
        rollout.take(request.match_info["name"], body)
        if fault == "callback_unanswered":
            request.transport.abort()
        if fault == "callback_late":
            await asyncio.sleep(self.faults.random.uniform(0.2, 1.5))
        return web.json_response({"ok": True})


class Controller:
    """Drives rollouts on one server that comes and goes."""

    def __init__(
        self, server: str, callbacks: str, listener: Listener, policy: str, faults: Faults
    ) -> None:
        self.server, self.listener, self.policy = server, listener, policy
        self.protocols = ("polling", callbacks)
        self.faults = faults
        self.rollouts: list[Rollout] = []
        self.broken: list[str] = []
        """Answers that no protocol allows."""
        self.refusals: Counter[int] = Counter()

    async def __aenter__(self) -> "Controller":
        timeout = aiohttp.ClientTimeout(TRY_SEC)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    def new_rollout(self) -> Rollout:
        """The next rollout, of a protocol and with a script by chance."""
        dice = self.faults.random
        protocol = dice.choice(self.protocols)
        rollout_id = f"{protocol}-{len(self.rollouts)}-{uuid.uuid4().hex[:8]}"
        script = {
            "agents": ["solver", "critic"][
                : 1 + (protocol == "multi-sample" and dice.random() < 0.5)
            ],
            "calls": dice.randint(1, 2),
            "pause_sec": dice.choice((0, 0, 0.1, 0.5)),
            "fails": dice.random() < 0.05,
        }
        request = {
            "rollout_id": rollout_id,
            "initial_messages": [{"role": "user", "content": json.dumps(script)}],
            "label": "42",
            "metadata": {"rollout_id": rollout_id},
            "chat_completions_url": self.policy,
        }
        if protocol != "polling":
            base = f"{self.listener.origin}/{rollout_id}"
            request["completion_callback_url"] = f"{base}/completion"
            request["grader_callback_url"] = f"{base}/grader"
            request["controller_api_key"] = "key-of-the-controller"
        rollout = Rollout(rollout_id, protocol, json.dumps(request).encode())
        rollout.token = uuid.uuid4().hex
        self.rollouts.append(rollout)
        self.listener.rollouts[rollout_id] = rollout
        return rollout

    async def drive(self, rollout: Rollout) -> None:
        """Submit it until it is accepted, sometimes once more, and wait for its end."""
        await self._submit(rollout)
        if self.faults.random.random() < 0.1:
            await self._submit(rollout)
        while rollout.protocol == "polling" and not rollout.over.is_set():
            await self.poll(rollout)
        await rollout.over.wait()

    async def poll(self, rollout: Rollout) -> None:
        """Ask for its result until some answer comes."""
        path = f"/rollout/{rollout.rollout_id}/result"
        status, body = await self._request("GET", path, rollout)
        if status != 200:
            self.broken.append(f"poll of an accepted rollout: {status} {body[:200]!r}")
            rollout.over.set()
        elif json.loads(body)["status"] in OVER:
            rollout.take("result", body)

    async def _submit(self, rollout: Rollout) -> None:
        while True:
            status, body = await self._request("POST", "/rollout", rollout)
            if status in (200, 202):
                rollout.is_accepted = True
                return
            self.refusals[status] += 1
            if status not in (429, 503):
                self.broken.append(f"submission: {status} {body[:200]!r}")
            await asyncio.sleep(self.faults.random.uniform(0.05, 0.5))

    async def _request(self, method: str, path: str, rollout: Rollout) -> tuple[int, bytes]:
        """One answer, after as many tries as it takes."""
        headers = {LEASE: rollout.token, "Content-Type": "application/json"}
        data = rollout.body if method == "POST" else None
        while True:
            try:
                url = self.server + path
                async with self._session.request(method, url, data=data, headers=headers) as answer:
                    return answer.status, await answer.read()
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(self.faults.random.uniform(0.02, 0.3))
