"""The polling lease protocol (osmosis-ai 0.3.7 and later, protocol.md 1.8)."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from urllib.parse import quote
from weakref import WeakKeyDictionary

from osmosis_core import BackendError, ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_server.controller.modes import Mode, Wire
from osmosis_server.controller.results import read_result
from osmosis_server.controller.rollouts import Rollout
from osmosis_server.controller.servers import Answer, Json, Lost, Server, Unsent

_LEASE_HEADER = "X-Osmosis-Rollout-Lease"
_READ_MARGIN_SEC = 10.0
_RETRY_SEC = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
_UNAVAILABLE = (502, 503, 504)
_WAIT_SEC, _LEASE_SEC = 30.0, 120.0
_FASTEST_SEC = 0.05
"""A server that answers the same again in less is not asked at once."""


@dataclass(frozen=True, slots=True)
class _Lease:
    """What shows that a rollout is ours, and how long it holds."""

    token: str
    wait_sec: float = _WAIT_SEC
    timeout_sec: float = _LEASE_SEC
    renewed_at: float = 0.0

    @property
    def read_sec(self) -> float:
        return self.wait_sec + _READ_MARGIN_SEC


class Polling(Mode):
    """Submits with a lease token of its own choosing, so that a lost answer can be asked again.

    Servers of osmosis-ai choose another token and answer 409 to a repetition; then the rollout
    fails here and ends there with its lease.
    """

    name = "polling"
    accepts = 202

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._leases: WeakKeyDictionary[Rollout, _Lease] = WeakKeyDictionary()

    def body(self, rollout: Rollout) -> Json:
        """Fields of protocol.md 1.8."""
        request = rollout.request
        return {
            "rollout_id": request.id,
            "initial_messages": request.prompt,
            "label": request.label,
            "metadata": request.metadata,
            "chat_completions_url": self.wire.listener.base_url(request.id),
            "llm_api_key": self.wire.keys.policy(request.id, rollout.submission),
            "grade": request.grade,
            "agent_timeout_sec": request.agent_timeout_sec,
            "grader_timeout_sec": request.grader_timeout_sec,
            "extra_fields": request.extra_fields,
        }

    def headers(self, rollout: Rollout) -> dict[str, str]:
        """The lease token that we choose."""
        lease = self._leases.setdefault(rollout, _Lease(secrets.token_urlsafe(32)))
        return {_LEASE_HEADER: lease.token}

    def check_accepted(self, rollout: Rollout, answer: Answer) -> None:
        """Take the server's lease, whoever chose its token."""
        given = answer.object
        token = given.get("polling_lease_token")
        wait_sec = given.get("result_wait_timeout_sec", _WAIT_SEC)
        lease_sec = given.get("polling_lease_timeout_sec", _LEASE_SEC)
        are_numbers = isinstance(wait_sec, int | float) and isinstance(lease_sec, int | float)
        is_ours = given.get("rollout_id") == rollout.request.id
        if not (is_ours and isinstance(token, str) and are_numbers):
            raise BackendError(
                f"{_url(rollout)} accepted the rollout with another id or without a lease, so it "
                "does not speak the polling protocol"
            )
        self._leases[rollout] = _Lease(token, float(wait_sec), float(lease_sec), answer.sent_at)

    async def recover(self, rollout: Rollout, server: Server, reason: str) -> None:
        """Submit again, with the same id and token, to the same server."""
        body, until = self.encoded(rollout), time.monotonic() + self.wire.limits.lost_answer_sec
        for delay_sec in (*_RETRY_SEC, *[_RETRY_SEC[-1]] * 100):
            await asyncio.sleep(delay_sec)
            try:
                answer = await self.submit(rollout, server, body)
            except (Unsent, Lost) as error:
                reason = str(error)
            else:
                if answer.status == self.accepts:
                    rollout.is_accepted = True
                    self.check_accepted(rollout, answer)
                    return
                reason = f"{answer.status} {answer.detail}"
                if answer.status not in (429, *_UNAVAILABLE):
                    break
            if time.monotonic() >= until:
                break
        raise BackendError(
            f"{server.url} may have the rollout, but its answer was lost: {reason}; if it has it, "
            "it ends there with its lease",
            category=RolloutErrorCategory.HTTP_ERROR,
        )

    async def follow(self, rollout: Rollout) -> ExecutionResult:
        """Read until the status is final; each read renews the lease."""
        while True:
            asked_at = time.monotonic()
            answer = await self._read(rollout)
            result = _final(rollout, answer)
            if result is not None:
                return result
            status = RolloutStatus(answer.object["status"])
            if status is rollout.status and time.monotonic() - asked_at < _FASTEST_SEC:
                await asyncio.sleep(_FASTEST_SEC)
            rollout.status = status

    async def _read(self, rollout: Rollout) -> Answer:
        """One answer; what fails for a while is tried again while the lease surely holds."""
        tries = 0
        while True:
            lease = self._leases[rollout]
            try:
                answer = await self._get(rollout, lease)
                if answer.status == 200:
                    self._leases[rollout] = replace(lease, renewed_at=answer.sent_at)
                    return answer
                reason = f"{answer.status} {answer.detail}"
                is_final = answer.status not in _UNAVAILABLE
            except (Unsent, Lost) as error:
                reason, is_final = str(error), False
            delay_sec = _RETRY_SEC[min(tries, len(_RETRY_SEC) - 1)]
            tries += 1
            held_sec = lease.renewed_at + lease.timeout_sec - time.monotonic()
            if is_final or delay_sec + lease.read_sec > held_sec:
                raise BackendError(
                    f"{_url(rollout)} accepted the rollout, but its result cannot be read: "
                    f"{reason}",
                    category=RolloutErrorCategory.HTTP_ERROR,
                )
            await asyncio.sleep(delay_sec)

    async def _get(self, rollout: Rollout, lease: _Lease) -> Answer:
        assert rollout.server is not None
        return await rollout.server.ask(
            self.wire.session,
            "GET",
            f"/rollout/{quote(rollout.request.id, safe='')}/result",
            timeout_sec=lease.read_sec,
            headers={_LEASE_HEADER: lease.token},
        )


def _url(rollout: Rollout) -> str:
    return rollout.server.url if rollout.server else "the server"


def _final(rollout: Rollout, answer: Answer) -> ExecutionResult | None:
    """The result, or None while the rollout is under way."""
    body = answer.object
    try:
        if body.get("rollout_id") != rollout.request.id:
            raise ValueError("it is another rollout's")
        if not RolloutStatus(body.get("status")).is_terminal:
            return None
        sample = body.get("sample")
        return read_result(body, {} if sample is None else {"main": sample})
    except ValueError as error:
        raise BackendError(f"the answer of {_url(rollout)} is malformed: {error}") from error
