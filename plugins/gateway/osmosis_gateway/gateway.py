"""The gateway of one rollout: URLs and a key for whatever cannot take a client."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import quote

from starlette.requests import Request

from osmosis_core import NoActiveRolloutError, RolloutContext, get_rollout_context
from osmosis_core.policy import agent_scope, current_scope
from osmosis_gateway.admission import Caller, InFlight, Refusal, check_key
from osmosis_gateway.app import create_app
from osmosis_gateway.serving import ServerThread, listen

_REMEMBERED = 10_000
_LOOPBACK = "127.0.0.1,localhost,::1"
_CLOSE_SEC = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one sample's agent finds the policy; it answers until the gateway closes."""

    openai_url: str
    """Base URL for OpenAI's clients (`base_url`, `api_base`), ending in `/v1`."""
    anthropic_url: str
    """Base URL for Anthropic's clients."""
    api_key: str = field(repr=False)
    rollout_id: str = ""

    def env(self) -> dict[str, str]:
        """Environment variables that lead a subprocess here: `{**os.environ, **endpoint.env()}`.

        OpenAI's and Anthropic's clients and Claude Code read their URL and key from them, a
        `RolloutContext()` of osmosis too. Proxies are told to leave loopback alone, and tracing
        to a vendor that starts with a key in the environment stays off.
        """
        bypass = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
        no_proxy = f"{bypass},{_LOOPBACK}" if bypass else _LOOPBACK
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_BASE": self.openai_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "OSMOSIS_CHAT_COMPLETIONS_URL": self.openai_url,
            "OSMOSIS_API_KEY": self.api_key,
            "OSMOSIS_ROLLOUT_ID": self.rollout_id,
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }


@dataclass(frozen=True, slots=True)
class _Door:
    """What a path leads to; without a caller once its rollout has ended."""

    api_key: str = field(repr=False)
    caller: Caller | None


class _Hub:
    """One server per address and process, and the rollouts behind it."""

    def __init__(self, host: str, port: int, allow_remote: bool) -> None:
        listener = listen(host, port, allow_remote=allow_remote)
        self._doors: dict[str, _Door] = {}
        self._lock = threading.Lock()
        self.server = ServerThread(create_app(self._admit, prefix="/{rollout}/@{sample}"), listener)

    def open(self, name: str, api_key: str, caller: Caller) -> None:
        with self._lock:
            self._doors[name] = _Door(api_key, caller)

    def close(self, names: list[str]) -> None:
        """Shut the doors, and remember for a while that they were there."""
        with self._lock:
            for name in names:
                self._doors[name] = _Door(self._doors.pop(name).api_key, None)
            closed = [name for name, door in self._doors.items() if door.caller is None]
            for name in closed[: len(closed) - _REMEMBERED]:
                del self._doors[name]

    def _admit(self, request: Request) -> Caller:
        door = self._doors.get(request.path_params["rollout"])
        if door is None:
            raise Refusal(404, "no such rollout here; use the URL that its gateway gave")
        check_key(request, door.api_key)
        if door.caller is None:
            raise Refusal(410, "the rollout has ended")
        return replace(door.caller, sample_id=request.path_params["sample"])


@functools.cache
def _hub(host: str, port: int, allow_remote: bool) -> _Hub:
    return _Hub(host, port, allow_remote)


_opening = threading.Lock()
os.register_at_fork(after_in_child=_hub.cache_clear)


class Gateway:
    """A loopback endpoint in front of the active rollout's policy.

    `async with Gateway() as gateway:` (or `with`) inside `AgentWorkflow.run`. Its calls are those
    of the rollout: recorded under their sample, retried by the transport only. Opening one is
    cheap, the server is shared by all rollouts of the process and runs in a thread of its own.
    Closing it cancels what is in flight and answers 410 from then on.

    Raises:
        NoActiveRolloutError: there is no active rollout, and none was given.
        ConfigError: `host` is not loopback without `allow_remote=True`, or cannot be listened on.
    """

    def __init__(
        self,
        rollout: RolloutContext | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_remote: bool = False,
    ) -> None:
        active = rollout or get_rollout_context()
        if active is None:
            raise NoActiveRolloutError(type(self).__name__)
        self._rollout = active
        with _opening:
            self._hub = _hub(host, port, allow_remote)
        self._key = f"sk-osmosis-{secrets.token_urlsafe(32)}"
        self._in_flight = InFlight()
        self._names: list[str] = []
        self._main: Endpoint | None = None

    def endpoint(self, sample_id: str | None = None, *, trainable: bool = True) -> Endpoint:
        """Where the agent of a sample finds the policy; by default that of the active scope.

        Asked for where a tool runs, it also tells which tool call started the agent behind it
        (`PolicyCall.started_by`). `trainable=False` marks a helper agent.

        Raises:
            RuntimeError: the gateway is closed.
        """
        if self._in_flight.has_ended:
            raise RuntimeError("the gateway is closed; open another with `async with Gateway()`")
        outer = current_scope()
        with agent_scope(sample_id or outer.sample_id, trainable=trainable and outer.trainable):
            scope, context = current_scope(), contextvars.copy_context()
        name = f"{self._rollout.rollout_id or 'rollout'}~{secrets.token_hex(6)}"
        caller = Caller(
            self._rollout,
            scope.sample_id,
            scope.trainable,
            context=context,
            in_flight=self._in_flight,
        )
        self._hub.open(name, self._key, caller)
        self._names.append(name)
        url = f"{self._hub.server.origin}/{quote(name, safe='')}/@{quote(scope.sample_id)}"
        return Endpoint(f"{url}/v1", url, self._key, self._rollout.rollout_id)

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI's clients, of the sample in whose scope the gateway was opened."""
        return self._own().openai_url

    @property
    def anthropic_url(self) -> str:
        """Base URL for Anthropic's clients, of the same sample."""
        return self._own().anthropic_url

    @property
    def api_key(self) -> str:
        """The key that this rollout's endpoints ask for."""
        return self._key

    def env(self, sample_id: str | None = None, *, trainable: bool = True) -> dict[str, str]:
        """`endpoint(...).env()`, for a subprocess."""
        is_own = sample_id is None and trainable
        return (self._own() if is_own else self.endpoint(sample_id, trainable=trainable)).env()

    def _own(self) -> Endpoint:
        if self._main is None:
            raise RuntimeError("the gateway is not open; use `async with Gateway() as gateway:`")
        return self._main

    def __enter__(self) -> Self:
        self._main = self.endpoint()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._shut().result(_CLOSE_SEC)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.wrap_future(self._shut())

    def _shut(self) -> Future[None]:
        self._hub.close(self._names)
        self._main, self._names = None, []
        return asyncio.run_coroutine_threadsafe(self._in_flight.end(), self._hub.server.loop)
