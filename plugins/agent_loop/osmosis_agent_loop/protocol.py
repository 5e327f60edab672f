"""The first-generation protocol over the server's service (protocol.md 1.1 and 1.2)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field
from starlette.responses import Response

from osmosis_agent_loop.agent_loop import offered_tools, packed_tools, tool_dicts
from osmosis_agent_loop.config import AgentLoopConfig
from osmosis_agent_loop.errors import AgentLoopError
from osmosis_agent_loop.schemas import RolloutRequest, RolloutStatus
from osmosis_agent_loop.settings import RolloutSettings, get_settings
from osmosis_agent_loop.workflow import ASKED
from osmosis_core import ConfigError, ExecutionRequest, ExecutionResult, RolloutSample
from osmosis_core import RolloutStatus as Status
from osmosis_server import Delivery, Protocol, Submission
from osmosis_server.http import Unprocessable, answer, problem, read_object, route, validated
from osmosis_server.protocols.submitting import Key
from osmosis_server.protocols.wire import encode
from osmosis_server.security import UrlPolicy
from osmosis_server.submissions import Duplicate

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from osmosis_core.execution import Program
    from osmosis_server import RolloutService

INIT, HEALTH, PLATFORM_HEALTH = "/v1/rollout/init", "/health", "/platform/health"
_TRAVELS = ("server_url", "tool_server_url", "completion_params", "max_turns", "max_tokens_total")


class _InitBody(RolloutRequest):
    api_key: Key | None = Field(default=None, repr=False)


@dataclass(slots=True)
class _Known:
    """An init that was answered or is being answered."""

    rollout_id: str
    digest: str
    answered: asyncio.Future[bytes]


class AgentLoopProtocol(Protocol):
    """`/v1/rollout/init` in, model calls and one completion out.

    It serves nothing where the server's backend runs no agent loop.
    """

    name = "agent-loop"

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        program: Program | None = getattr(service.backend, "program", None)
        config = program.workflow_config if program else None
        self._config = config if isinstance(config, AgentLoopConfig) else None
        self._has_grader = program is not None and program.grader is not None
        self._urls = UrlPolicy(service.settings.allow_hosts)
        self._settings = (self._config and self._config.settings) or get_settings()
        self._quick = quick_tries_sec(self._settings)
        self._known: dict[str, _Known] = {}
        self._keys: dict[str, str] = {}
        """By rollout id, the key in `_known`."""
        self._ended: deque[tuple[float, str]] = deque()
        """When rollouts ended (time.monotonic()), and their keys."""

    @property
    def open_paths(self) -> Collection[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Health needs no key, and the other paths take one without its scheme too."""
        return (INIT, HEALTH, PLATFORM_HEALTH) if self._config else ()

    def routes(self) -> Sequence[BaseRoute]:
        """The three documented routes."""
        if self._config is None:
            return ()
        return (
            route(INIT, self._init, "POST"),
            route(HEALTH, self._health, "GET"),
            route(PLATFORM_HEALTH, self._platform_health, "GET"),
        )

    async def _init(self, request: Request) -> Response:
        if not _has_key(request):
            return _unauthorized()
        body, _ = await read_object(request, self._service.settings.max_body_bytes)
        asked = validated(_InitBody, body)
        submission = self._submission(asked)
        try:
            known = await self._first(asked, submission)
        except AgentLoopError as error:
            return problem(500, str(error))
        return Response(known, 202, media_type="application/json")

    def _submission(self, asked: RolloutRequest) -> Submission:
        """The request as a submission; keys are in it, and not in what travels to the loop."""
        base = asked.server_url.rstrip("/")
        travels = asked.model_dump(include={*_TRAVELS})
        metadata = {**asked.metadata, ASKED: travels}
        label = asked.metadata.get("ground_truth")
        try:
            self._urls.check(base)
            request = ExecutionRequest(
                id=asked.rollout_id,
                prompt=asked.messages,
                label=label if isinstance(label, str) else None,
                metadata=metadata,
                agent_timeout_sec=self._settings.server.rollout_timeout_seconds,
                grade=self._has_grader,
            )
        except (ConfigError, ValueError) as error:
            where = "server_url" if isinstance(error, ConfigError) else "rollout_id"
            said = {"type": "value_error", "loc": ["body", where], "msg": str(error)}
            raise Unprocessable([said]) from error
        return Submission(
            request=request,
            protocol=self.name,
            chat_completions_url=f"{base}/v1",
            llm_api_key=asked.api_key,
            reply_to={"completed": f"{base}/v1/rollout/completed"},
            reply_key=asked.api_key,
            fingerprint=hashlib.sha256(asked.model_dump_json().encode()).hexdigest(),
        )

    async def _first(self, asked: RolloutRequest, submission: Submission) -> bytes:
        """The answer to the first init with this key; others wait for it and get the same."""
        self._forget()
        key = asked.idempotency_key or asked.rollout_id
        known = self._known.get(key)
        if known is not None:
            if known.digest != submission.fingerprint:
                text = f"another init had the key {key!r}, for rollout {known.rollout_id!r}"
                raise Duplicate(f"{text}; give each rollout its own", is_same=False)
            return await asyncio.shield(known.answered)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._known[key] = _Known(asked.rollout_id, submission.fingerprint, future)
        task = asyncio.create_task(self._admit(asked, submission, key))
        task.add_done_callback(lambda done: _pass_on(done, future))
        return await asyncio.shield(future)

    async def _admit(self, asked: RolloutRequest, submission: Submission, key: str) -> bytes:
        """Make the answer, then take the rollout in; what fails leaves nothing behind."""
        try:
            tools = await self._tools(asked)
            body = {"rollout_id": asked.rollout_id, "tools": tool_dicts(tools)}
            self._keys.setdefault(asked.rollout_id, key)
            try:
                await self._service.admit(_with_tools(submission, tools))
            except Duplicate as duplicate:
                if not duplicate.is_same:
                    raise
                self._end(asked.rollout_id)
        except BaseException:
            self._known.pop(key, None)
            if self._keys.get(asked.rollout_id) == key:
                del self._keys[asked.rollout_id]
            raise
        return json.dumps(body).encode()

    async def _tools(self, asked: RolloutRequest) -> list[Any]:
        assert self._config is not None
        loop, limit_sec = self._config.agent_loop, self._settings.server.request_timeout_seconds
        try:
            async with asyncio.timeout(limit_sec):
                return await offered_tools(loop, asked)
        except TimeoutError as error:
            text = f"get_tools() of agent loop {loop.name!r} did not return within {limit_sec:g} s"
            raise AgentLoopError(text) from error

    def _forget(self) -> None:
        """Let go of inits whose rollouts ended longer ago than they are remembered."""
        before = time.monotonic() - self._settings.server.record_ttl_seconds
        while self._ended and self._ended[0][0] < before:
            _, key = self._ended.popleft()
            self._known.pop(key, None)

    def _end(self, rollout_id: str) -> None:
        key = self._keys.pop(rollout_id, None)
        if key is not None:
            self._ended.append((time.monotonic(), key))

    async def _health(self, request: Request) -> Response:
        assert self._config is not None
        stats = self._service.stats()
        return answer(
            {
                "status": "healthy",
                "agent_loop": self._config.agent_loop.name,
                "active_rollouts": stats.queued + stats.running,
                "completed_rollouts": sum(stats.finished.values()),
            }
        )

    async def _platform_health(self, request: Request) -> Response:
        if request.app.state.api_key is None:
            return problem(404, "Not found")
        return await self._health(request) if _has_key(request) else _unauthorized()

    def rollout_done(self, submission: Submission, result: ExecutionResult) -> Sequence[Delivery]:
        """The one completion: COMPLETED after success, ERROR after everything else."""
        self._end(submission.request.id)
        body = encode(completion_body(submission.request.id, result))
        url = submission.reply_to["completed"]
        return (Delivery("completed", url, body, self._quick),)


def _with_tools(submission: Submission, tools: list[Any]) -> Submission:
    """The submission with what the loop's tools are: `get_tools` is called once per rollout."""
    metadata = dict(submission.request.metadata or {})
    metadata[ASKED] = {**metadata[ASKED], "tools": packed_tools(tools)}
    return replace(submission, request=replace(submission.request, metadata=metadata))


def quick_tries_sec(settings: RolloutSettings) -> tuple[float, ...]:
    """Pauses between the first tries of a completion."""
    client = settings.client
    delays = (client.retry_base_delay * 2**n for n in range(client.complete_rollout_retries))
    return tuple(min(delay, client.retry_max_delay) for delay in delays)


def completion_body(rollout_id: str, result: ExecutionResult) -> dict[str, Any]:
    """Body of `/v1/rollout/completed`; members that are None are left out."""
    sample = _loops_sample(result)
    said: Mapping[str, Any] = sample.extra_fields["agent_loop"] if sample else {}
    has_succeeded = result.status is Status.SUCCESS and sample is not None
    extra = {"warnings": _warnings(result), "queued_sec": result.extra_fields.get("queued_sec")}
    body = {
        "rollout_id": rollout_id,
        "status": RolloutStatus.COMPLETED if has_succeeded else RolloutStatus.ERROR,
        "final_messages": sample.messages if sample else [],
        "finish_reason": said.get("finish_reason") if has_succeeded else "error",
        "error_message": None if has_succeeded else result.err_message or "cancelled",
        "reward": sample.reward if has_succeeded and sample else None,
        "metrics": sample.metrics if sample and sample.metrics else None,
        "extra_fields": {name: value for name, value in extra.items() if value},
    }
    return {name: value for name, value in body.items() if value is not None}


def _loops_sample(result: ExecutionResult) -> RolloutSample | None:
    """The sample of what the loop returned; None when it returned nothing."""
    return next((s for s in result.samples.values() if "agent_loop" in s.extra_fields), None)


def _warnings(result: ExecutionResult) -> list[str]:
    found = (sample.extra_fields.get("warnings", ()) for sample in result.samples.values())
    return [text for texts in found for text in texts]


def _pass_on(done: asyncio.Task[bytes], future: asyncio.Future[bytes]) -> None:
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
        future.exception()  # whoever waited may be gone
    else:
        future.set_result(done.result())


def _has_key(request: Request) -> bool:
    """True when the server has no key, or the request brings it, with the scheme or without."""
    key: str | None = request.app.state.api_key
    if key is None:
        return True
    given = request.headers.get("authorization", "").strip()
    scheme, _, rest = given.partition(" ")
    token = rest.strip() if scheme.lower() == "bearer" else given
    return hmac.compare_digest(token.encode(), key.encode())


def _unauthorized() -> Response:
    return problem(401, "Invalid or missing API key", {"WWW-Authenticate": "Bearer"})
