"""One rollout under way at a server, and how its result is put together."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.requests import Request

from osmosis_core import (
    BackendError,
    ExecutionRequest,
    ExecutionResult,
    RolloutContext,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.execution import Cutoff
from osmosis_gateway import InFlight, Refusal
from osmosis_gateway.admission import check_key, key_of
from osmosis_server.controller.results import with_calls
from osmosis_server.controller.servers import Json, Server

type Record = Callable[[ExecutionRequest, ExecutionResult], Awaitable[None]]
"""Told of each result before it is acknowledged to its server, and before it is returned."""

_REMEMBERED = 10_000
"""Ended rollouts whose callbacks are acknowledged when they come again."""


@dataclass(slots=True)
class Acknowledged:
    """A callback that was taken, and the answer that its repetitions get."""

    digest: bytes
    body: Json


@dataclass(eq=False, slots=True, weakref_slot=True)
class Rollout:
    """One rollout from its request to its result; it belongs to the client's event loop."""

    request: ExecutionRequest
    context: RolloutContext
    """Its policy, and the record of its calls."""
    record: Record | None = None
    submission: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells it from an earlier rollout with its id, which a server may still run."""
    in_flight: InFlight = field(default_factory=InFlight)
    cutoff: Cutoff = field(default_factory=Cutoff)
    server: Server | None = None
    """Where it is, or may be."""
    status: RolloutStatus = RolloutStatus.QUEUED
    is_accepted: bool = False
    """True once the server said so."""
    is_over: bool = False
    """True once the server said how it ended."""
    is_heard: bool = False
    """True once a policy call or a callback of it came."""
    workflow: ExecutionResult | None = None
    """How the workflow ended, where the server says so before the end."""
    result: ExecutionResult | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the workflow or the rollout has ended."""
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict[str, Acknowledged])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_left_behind(self) -> bool:
        """True when its server has it and would go on with it; a mere maybe is not cancelled."""
        return (self.is_accepted or self.is_heard) and not self.is_over

    async def settle(self, result: ExecutionResult) -> ExecutionResult:
        """Make this the rollout's result unless it has one; the first one is recorded and stays.

        What the record raises is raised here, and then there is no result yet.
        """
        async with self.lock:
            if self.result is None:
                result = await with_calls(result, self.context)
                if self.record is not None:
                    await self.record(self.request, result)
                self.result = result
                self.changed.set()
            return self.result


def result_of(rollout: Rollout) -> ExecutionResult:
    """The result of a rollout that has ended."""
    assert rollout.result is not None
    return rollout.result


class Keys:
    """Bearer keys that hold for one submission of one rollout; all follow from a random secret.

    The key of the callbacks opens the policy too, because servers of osmosis-ai 0.2.x and 0.3.0
    know no other; the key of the policy takes no callbacks.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def callbacks(self, rollout_id: str, submission: str) -> str:
        """The key of a rollout's callbacks."""
        return self._key("callbacks", rollout_id, submission)

    def policy(self, rollout_id: str, submission: str) -> str:
        """The key of a rollout's policy calls."""
        return self._key("policy", rollout_id, submission)

    def check_callbacks(self, request: Request, rollout_id: str) -> str:
        """Which submission a callback belongs to; raises Refusal with 401 when its key is none."""
        submission = key_of(request).rpartition("-")[2]
        check_key(request, self.callbacks(rollout_id, submission))
        return submission

    def check_policy(self, request: Request, rollout_id: str) -> str:
        """Which submission a policy call belongs to; raises Refusal as `check_callbacks`."""
        submission = key_of(request).rpartition("-")[2]
        try:
            check_key(request, self.policy(rollout_id, submission))
        except Refusal:
            return self.check_callbacks(request, rollout_id)
        return submission

    def _key(self, purpose: str, rollout_id: str, submission: str) -> str:
        text = f"{purpose}:{submission}:{rollout_id}".encode("utf-8", "replace")
        return f"sk-osmosis-{hmac.digest(self._secret, text, 'sha256').hex()}-{submission}"


class Registry:
    """The rollouts of a controller: those under way, and what was acknowledged of ended ones."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._rollouts: dict[str, Rollout] = {}
        self._ended: OrderedDict[str, tuple[str, dict[str, Acknowledged]]] = OrderedDict()

    def __iter__(self) -> Iterator[Rollout]:
        return iter(list(self._rollouts.values()))

    def open(self, rollout: Rollout) -> None:
        """Take calls of a rollout from here on; raises BackendError when its id is taken."""
        rollout_id = rollout.request.id
        if rollout_id in self._rollouts:
            raise BackendError(
                f"rollout {rollout_id!r} is under way; give each rollout its own id",
                category=RolloutErrorCategory.VALIDATION_ERROR,
            )
        self._ended.pop(rollout_id, None)
        self._rollouts[rollout_id] = rollout

    def close(self, rollout: Rollout) -> None:
        """Forget an ended rollout, but for the answers to its callbacks, and those not for ever."""
        del self._rollouts[rollout.request.id]
        self._ended[rollout.request.id] = (rollout.submission, rollout.acknowledged)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def get(self, rollout_id: str, submission: str | None = None) -> Rollout | None:
        """The rollout if it is under way, and is this submission where one is given."""
        rollout = self._rollouts.get(rollout_id)
        is_it = rollout is not None and submission in (None, rollout.submission)
        return rollout if is_it else None

    def knows(self, rollout_id: str) -> bool:
        """True while a rollout is under way and for a while after."""
        return rollout_id in self._rollouts or rollout_id in self._ended

    def acknowledged(self, rollout_id: str, submission: str) -> dict[str, Acknowledged]:
        """What was acknowledged of a submission, by kind."""
        rollout = self.get(rollout_id, submission)
        known, taken = self._ended.get(rollout_id, ("", {}))
        return rollout.acknowledged if rollout else taken if known == submission else {}

    def id_in_header(self, named: str) -> str:
        """A header holds an id as it is, or percent-encoded."""
        return named if named in self._rollouts else unquote(named)


def digest(body: Json) -> bytes:
    """What tells two callbacks apart."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8", "replace")).digest()
