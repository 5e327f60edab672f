"""HTTP clients of httpx or httpx2 whose transport is ours: shared, loop-safe, bound when called."""

import functools
import importlib
from collections.abc import AsyncGenerator, Callable
from types import ModuleType
from typing import Any

from osmosis_core.active import Scope, begin_tool, get_rollout_context
from osmosis_core.context import RolloutContext
from osmosis_core.errors import ConfigError
from osmosis_core.policy import binding
from osmosis_core.policy.binding import WireRequest, WireResponse
from osmosis_core.policy.transport import exchange, exchange_blocking
from osmosis_core.sample_ids import sample_key

BASE_URL = "http://policy.osmosis.invalid/v1"
"""Placeholder base URL; the transport swaps in the active rollout's."""

_READ_SEC = 600.0
"""Longest silence of the policy that clients wait for, unless their user says otherwise."""
MODEL = "osmosis-rollout"
"""Model name on the wire, unless the rollout context names another."""


def async_client(lib: ModuleType | None = None) -> Any:
    """The process's shared `lib.AsyncClient` for policy calls; `lib` is httpx (default) or httpx2.

    Closing it does nothing; it belongs to the process. Whatever host and key the SDK above it
    names, a request goes to the active rollout's policy; outside a rollout it raises
    PolicyNotBoundError. Chat completions are recorded, anything else is passed on. A read timeout
    of the SDK holds for each try, and no redirect is followed.

    Raises:
        ConfigError: `lib` is None and httpx is not installed.
    """
    return _async_client(lib or _httpx())


def client(lib: ModuleType | None = None) -> Any:
    """The process's shared synchronous `lib.Client`; see `async_client`.

    A call blocks its thread while the exchange runs on a background event loop, so inside
    `async def` code use the asynchronous one.
    """
    return _client(lib or _httpx())


def bound_headers(
    context: RolloutContext,
    sample_id: str,
    *,
    trainable: bool = True,
    tee: bool = False,
    parent: str | None = None,
) -> dict[str, str]:
    """Request headers that bind a call to a rollout and sample whatever the context variables say.

    For adapters whose framework calls the model from a thread or generator that does not inherit
    them. `tee=True` asks for real deltas, for a consumer that shows them. `parent` is the sample of
    the agent that handed over to this one and does not wait for it. The headers never leave the
    process.
    """
    scope = Scope(sample_key(sample_id), trainable, parent and sample_key(parent))
    headers = {binding.BINDING_HEADER: binding.binding_header(context, scope)}
    return {**headers, binding.TEE_HEADER: "1"} if tee else headers


def in_tool_of(sample_id: str) -> Callable[[], None]:
    """Say that what runs from here on in this context is a tool of this sample's agent.

    For adapters whose framework runs tools in tasks that inherit nothing from the model call: call
    it where a tool begins. Agents started there get `started_by`. What it returns ends the tool,
    in whatever context it is called.
    """
    context = get_rollout_context()
    return begin_tool(context and context.latest_tool_call(sample_key(sample_id)))


def _httpx() -> ModuleType:
    try:
        return importlib.import_module("httpx")
    except ImportError as error:
        raise ConfigError("httpx is not installed; install it or pass httpx2") from error


@functools.cache
def _async_client(lib: Any) -> Any:
    class Transport(lib.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            answer = await exchange(_wire_request(request))
            return _response(lib, request, answer, _stream(lib, answer.deltas))

    class SharedAsyncClient(lib.AsyncClient):
        async def aclose(self) -> None: ...
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *exc_info: object) -> None: ...
        def __deepcopy__(self, memo: object) -> Any:
            return self

    return SharedAsyncClient(transport=Transport(), timeout=_READ_SEC, trust_env=False)


@functools.cache
def _client(lib: Any) -> Any:
    class Transport(lib.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            request.read()
            return _response(lib, request, exchange_blocking(_wire_request(request)))

    class SharedClient(lib.Client):
        def close(self) -> None: ...
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc_info: object) -> None: ...
        def __deepcopy__(self, memo: object) -> Any:
            return self

    return SharedClient(transport=Transport(), timeout=_READ_SEC, trust_env=False)


def _wire_request(request: Any) -> WireRequest:
    timeouts: dict[str, float | None] = request.extensions.get("timeout") or {}
    path = request.url.path.removeprefix("/v1")
    query = request.url.query.decode("ascii")
    return WireRequest(
        request.method,
        f"{path}?{query}" if query else path,
        {name.lower(): value for name, value in request.headers.items()},
        request.content,
        timeouts.get("read"),
    )


def _stream(lib: Any, deltas: AsyncGenerator[bytes] | None) -> Any:
    if deltas is None:
        return None

    class Deltas(lib.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            async for chunk in deltas:
                yield chunk

        async def aclose(self) -> None:
            await deltas.aclose()

    return Deltas()


def _response(lib: Any, request: Any, answer: WireResponse, stream: Any = None) -> Any:
    return lib.Response(
        answer.status,
        headers=answer.headers,
        request=request,
        **({"content": answer.body} if stream is None else {"stream": stream}),
        extensions={"osmosis_call": answer.call} if answer.call is not None else {},
    )
