"""A trainer for tests: the endpoints that an agent loop calls, and what they were told."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from osmosis_agent_loop.messages import get_message_content, is_tool_message, is_user_message
from osmosis_agent_loop.schemas import CompletionsRequest, MessageDict

_CALCULATOR = re.compile(
    r"\b(add|calculat\w*|compute|divide|minus|multiply|plus|subtract|sum|times)\b", re.IGNORECASE
)
_START_SEC = 10.0

type ToolCallGenerator = Callable[[MessageDict], list[dict[str, Any]] | None]
"""Given the last message of a request: the tool calls that answer it, or None for text."""


class RolloutCompletionTracker:
    """The completions that came in; may be waited for in the app's event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        """Set once there is one."""
        self.responses: list[dict[str, Any]] = []

    def record(self, response: dict[str, Any]) -> None:
        """Take one in."""
        self.responses.append(response)
        self.event.set()

    def clear(self) -> None:
        """Forget them."""
        self.responses.clear()
        self.event.clear()

    async def wait(self, timeout: float = 5.0) -> bool:
        """True once there is one; False when none came within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.event.wait()
        except TimeoutError:
            return False
        return True


def fake_token_ids(text: str) -> list[int]:
    """One token per character."""
    return list(range(len(text)))


def fake_prompt_token_ids(messages: list[MessageDict]) -> list[int]:
    """Ten tokens per message."""
    return list(range(10 * len(messages)))


def create_mock_trainer_app(
    tracker: RolloutCompletionTracker | None = None,
    tool_call_generator: ToolCallGenerator | None = None,
) -> FastAPI:
    """A trainer that answers by rule: `OK.`, or a call of `add` where a user asks to calculate.

    Routes: `POST /v1/chat/completions`, `POST /v1/rollout/completed`,
    `GET /v1/rollout/completed/{id}` (the body that came, or `{}`), `GET /health`.
    """
    app = FastAPI()
    completed: dict[str, dict[str, Any]] = {}

    async def chat(request: CompletionsRequest) -> dict[str, Any]:
        return _completion(request, tool_call_generator or _calculator_calls)

    async def complete(response: dict[str, Any]) -> dict[str, str]:
        completed[str(response.get("rollout_id"))] = response
        if tracker is not None:
            tracker.record(response)
        return {"status": "ok"}

    async def find(rollout_id: str) -> dict[str, Any]:
        return completed.get(rollout_id, {})

    async def health() -> dict[str, str]:
        return {"status": "healthy", "service": "mock-trainer"}

    app.post("/v1/chat/completions")(chat)
    app.post("/v1/rollout/completed")(complete)
    app.get("/v1/rollout/completed/{rollout_id}")(find)
    app.get("/health")(health)
    return app


def _completion(request: CompletionsRequest, generate: ToolCallGenerator) -> dict[str, Any]:
    last = request.messages[-1] if request.messages else {}
    text = "The calculation is complete." if is_tool_message(last) else "OK."
    message: MessageDict = {"role": "assistant", "content": text}
    if calls := generate(last):
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    ids, prompt_ids = fake_token_ids(text), fake_prompt_token_ids(request.messages)
    return {
        "id": f"chatcmpl-{request.rollout_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "default",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt_ids) + len(ids),
        },
        "token_ids": ids,
        "logprobs": [0.0] * len(ids),
        "prompt_token_ids": prompt_ids,
    }


def _calculator_calls(last: MessageDict) -> list[dict[str, Any]] | None:
    if not is_user_message(last) or not _CALCULATOR.search(get_message_content(last)):
        return None
    function = {"name": "add", "arguments": '{"a": 5, "b": 3}'}
    return [{"id": "call_mock_add", "type": "function", "function": function}]


class ServedApp:
    """An ASGI app on a real loopback socket in a thread of its own; a `with` block.

    `with ServedApp(create_mock_trainer_app()) as trainer:` gives a trainer at `trainer.url`.
    """

    def __init__(self, app: Any) -> None:
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        self._socket = socket.socket()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread.start()
        deadline = time.monotonic() + _START_SEC
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise TimeoutError("the app did not start")
            time.sleep(0.005)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(_START_SEC)
        self._socket.close()
