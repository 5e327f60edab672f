"""A training cluster of the first generation: answers model calls, keeps completions."""

import asyncio
import threading
import time

import httpx
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from osmosis_agent_loop.testing import ServedApp


def tool_call(name, arguments="{}"):
    """An answer that calls a tool."""
    function = {"name": name, "arguments": arguments}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Trainer:
    """Follows a script, whose last answer repeats: texts, messages, statuses, `hang`."""

    def __init__(self, *script, refuse=()):
        self.script, self.refuse = list(script or ("ok",)), list(refuse)
        self.asked, self.completed = [], []
        """Bodies and headers of model calls, and of completions."""
        self._changed = threading.Condition()
        self._over = threading.Event()
        chat = Route("/v1/chat/completions", self._chat, methods=["POST"])
        complete = Route("/v1/rollout/completed", self._complete, methods=["POST"])
        self._served = ServedApp(Starlette(routes=[chat, complete]))

    def __enter__(self):
        self.url = self._served.__enter__().url
        return self

    def __exit__(self, *exc_info):
        self._over.set()
        self._served.__exit__(*exc_info)

    async def _chat(self, request):
        self._note(self.asked, (await request.json(), dict(request.headers)))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if answer == "hang":
            await asyncio.to_thread(self._over.wait, 60)
        if isinstance(answer, int):
            return JSONResponse({"detail": "scripted"}, answer)
        message = answer
        if isinstance(answer, str):
            message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "default"}
        return JSONResponse({**body, "choices": [choice], "usage": usage})

    async def _complete(self, request):
        self._note(self.completed, (await request.json(), dict(request.headers)))
        return JSONResponse({}, self.refuse.pop(0) if self.refuse else 200)

    def _note(self, notes, note):
        with self._changed:
            notes.append(note)
            self._changed.notify_all()

    def wait_asked(self, count=1):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 20)

    def wait(self, count=1):
        """The bodies of so many completions."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.completed) >= count, 20)
        assert came, f"{len(self.completed)} of {count} completions came"
        return [body for body, _ in self.completed]


class Cluster:
    """A trainer and a server of a loop, both on loopback."""

    def __init__(self, app, trainer):
        self.trainer, self._served = trainer, ServedApp(app)

    def __enter__(self):
        self.trainer.__enter__()
        self.url = self._served.__enter__().url
        return self

    def stop(self):
        """End the server, as SIGTERM does."""
        self._served.__exit__()

    def __exit__(self, *exc_info):
        self.stop()
        self.trainer.__exit__()

    def get(self, path, **headers):
        return httpx.get(self.url + path, headers=headers)

    def init(self, rollout_id="r-1", *, headers=None, **fields):
        """Ask for a rollout."""
        body = {
            "rollout_id": rollout_id,
            "server_url": self.trainer.url,
            "messages": [{"role": "user", "content": "What is 6 * 7?"}],
            "completion_params": {"temperature": 0.5},
            **fields,
        }
        return httpx.post(f"{self.url}/v1/rollout/init", json=body, headers=headers, timeout=30)

    def run(self, *arguments, **fields):
        """Ask for a rollout and wait for its completion."""
        assert self.init(*arguments, **fields).status_code == 202
        return self.trainer.wait()[0]

    def wait_idle(self):
        until = time.monotonic() + 20
        while self.get("/health").json()["active_rollouts"]:
            assert time.monotonic() < until
            time.sleep(0.01)
