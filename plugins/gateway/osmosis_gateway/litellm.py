"""Any model that LiteLLM reaches, as a policy: quiet, offline but for the model's provider."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from osmosis_core import ConfigError
from osmosis_core.errors import one_line
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_gateway import chat
from osmosis_gateway.admission import Refusal, check_key
from osmosis_gateway.answering import error_response
from osmosis_gateway.parts import Json
from osmosis_gateway.serving import ServerThread, listen

_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",
}
"""Without these, importing litellm goes to the network and reads a `.env` into the environment."""

_CONTENT = ("audio", "messages", "modalities", "model", "prediction", "response_format", "user")
_TOOLS = ("function_call", "functions", "parallel_tool_calls", "tool_choice", "tools")
_LENGTH = ("max_completion_tokens", "max_tokens", "n", "reasoning_effort", "stop", "thinking")
_SAMPLING = ("frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repetition_penalty")
_SAMPLED = ("logprobs", "seed", "temperature", "top_k", "top_logprobs", "top_p", "verbosity")
_WIRE = ("metadata", "service_tier", "store", "stream", "stream_options", "web_search_options")
_INFERENCE = frozenset((*_CONTENT, *_TOOLS, *_LENGTH, *_SAMPLING, *_SAMPLED, *_WIRE))
"""What a caller may say; LiteLLM takes URLs, keys and credentials in the same body."""


def _import_quietly() -> Any:
    if "litellm" in sys.modules:
        return sys.modules["litellm"]
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "LiteLLM is not installed; pip install 'osmosis-gateway[litellm]'"
        ) from error
    litellm.suppress_debug_info = True
    return litellm


@asynccontextmanager
async def litellm_policy(model: str) -> AsyncGenerator[PolicyEndpoint]:
    """A policy that asks LiteLLM for `model`, such as `openai/gpt-5`; its keys are LiteLLM's.

    Raises:
        ConfigError: LiteLLM is not installed.
    """
    litellm = await asyncio.to_thread(_import_quietly)
    key = secrets.token_urlsafe(32)
    listener = listen("127.0.0.1", 0, allow_remote=False)
    server = ServerThread(_app(litellm, model, key), listener)
    try:
        yield PolicyEndpoint(f"{server.origin}/v1", key, model)
    finally:
        await asyncio.to_thread(server.stop)


def _app(litellm: Any, model: str, key: str) -> Starlette:
    async def complete(request: Request) -> Response:
        try:
            check_key(request, key)
            return await _complete(litellm, model, await request.json())
        except Refusal as refusal:
            return error_response(chat, refusal)

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


async def _complete(litellm: Any, model: str, body: Json) -> Response:
    control = sorted(body.keys() - _INFERENCE)
    if control:
        raise Refusal(400, f"LiteLLM is not told {', '.join(control)}; leave it out")
    try:
        answer = await litellm.acompletion(**{**body, "model": model}, max_retries=0, num_retries=0)
        if not body.get("stream"):
            return JSONResponse(answer.model_dump())
        return StreamingResponse(_events(answer), media_type="text/event-stream")
    except Exception as error:  # boundary: providers' errors are of any class
        raise _refusal(error) from error


async def _events(answer: Any) -> AsyncGenerator[str]:
    try:
        async for chunk in answer:
            yield f"data: {chunk.model_dump_json()}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:  # boundary: providers' errors are of any class
        for event in chat.Stream({}).fail(502, _refusal(error).message):
            yield event


def _refusal(error: Exception) -> Refusal:
    status = getattr(error, "status_code", None)
    headers = getattr(error, "litellm_response_headers", None) or {}
    status = status if isinstance(status, int) and 400 <= status < 600 else 502
    return Refusal(status, one_line(str(error))[:1000], headers.get("retry-after"))
