"""The one road to the policy: late-bound HTTP clients for adapters and for bare SDK calls.

A bare SDK needs one line: `AsyncOpenAI(base_url=BASE_URL, http_client=async_client(httpx),
api_key="-", max_retries=0)`. The client may be created anywhere and shared by every rollout; it
finds the active rollout when it is called.
"""

from osmosis_core.active import agent_scope, current_scope
from osmosis_core.errors import failed_call
from osmosis_core.policy.assemble import EventReader
from osmosis_core.policy.binding import WireRequest, WireResponse
from osmosis_core.policy.clients import (
    BASE_URL,
    MODEL,
    async_client,
    bound_headers,
    client,
    in_tool_of,
)
from osmosis_core.policy.transport import exchange

__all__ = [
    "BASE_URL",
    "MODEL",
    "EventReader",
    "WireRequest",
    "WireResponse",
    "agent_scope",
    "async_client",
    "bound_headers",
    "client",
    "current_scope",
    "exchange",
    "failed_call",
    "in_tool_of",
]
