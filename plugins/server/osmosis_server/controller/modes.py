"""What a protocol mode is to a controller, and how a rollout gets accepted in any of them."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import aiohttp

from osmosis_core import BackendError, ExecutionResult, RolloutErrorCategory
from osmosis_core.errors import describe
from osmosis_server.controller.limits import ControllerLimits
from osmosis_server.controller.rollouts import Keys, Rollout
from osmosis_server.controller.servers import Answer, Json, Lost, Pool, Server, Unsent

if TYPE_CHECKING:
    from osmosis_server.controller.listener import Listener

type ProtocolName = Literal["polling", "single-sample", "multi-sample"]

_BUSY = (429, 503)
_ABOUT_THE_REQUEST = (400, 409, 413, 422)
_MAYBE_ACCEPTED = (502, 504)
"""What a proxy answers when it got no answer itself."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What every mode works with."""

    session: aiohttp.ClientSession
    listener: Listener
    keys: Keys
    pool: Pool
    limits: ControllerLimits


class Mode(ABC):
    """One published protocol, from the controller's side."""

    name: ProtocolName
    accepts: int
    """The one status that means accepted."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @abstractmethod
    def body(self, rollout: Rollout) -> Json:
        """The submission, with the fields of this protocol only."""

    def headers(self, rollout: Rollout) -> dict[str, str]:
        """Headers of the submission."""
        return {}

    @abstractmethod
    def check_accepted(self, rollout: Rollout, answer: Answer) -> None:
        """Read the answer of a server that accepted; raises BackendError when it cannot go on."""

    @abstractmethod
    async def recover(self, rollout: Rollout, server: Server, reason: str) -> None:
        """Find out about a submission whose answer was lost; raises BackendError if it cannot."""

    @abstractmethod
    async def follow(self, rollout: Rollout) -> ExecutionResult:
        """Wait for the result of an accepted rollout; raises BackendError when there is none."""

    async def place(self, rollout: Rollout) -> None:
        """Get a rollout accepted by one server; then `rollout.server` is that one.

        It is offered to another server only when the last one is known not to have it.

        Raises:
            BackendError: a server refused it for good, or may have it and does not say so, or no
                server was reached.
        """
        body, began = self.encoded(rollout), time.monotonic()
        refused: dict[Server, BackendError] = {}
        while rollout.server is None:
            server = await self.wire.pool.take(refused)
            try:
                await self._offer(rollout, server, body, began)
            except _Refused as refusal:
                refused[server] = refusal
                if len(refused) == len(self.wire.pool.servers):
                    raise
            finally:
                if rollout.server is None:
                    server.load -= 1

    async def _offer(self, rollout: Rollout, server: Server, body: bytes, began: float) -> None:
        rollout.server = server  # from here on it may have it
        try:
            answer = await self.submit(rollout, server, body)
        except Unsent as error:
            rollout.server = None
            server.hold_failing()
            limit_sec = self.wire.limits.unreachable_sec
            self.wire.pool.check_reachable(began, limit_sec, f"{server.url}: {error}")
        except Lost as error:
            await self.recover(rollout, server, str(error))
        else:
            await self._answered(rollout, server, answer)

    async def _answered(self, rollout: Rollout, server: Server, answer: Answer) -> None:
        if answer.status < 300:
            rollout.is_accepted = True
        if answer.status == self.accepts:
            self.check_accepted(rollout, answer)
        elif answer.status in _BUSY:
            rollout.server = None
            server.hold(answer.retry_after_sec)
        elif answer.status in _MAYBE_ACCEPTED:
            await self.recover(rollout, server, f"a proxy answered {answer.status}")
        else:
            if answer.status >= 300:
                rollout.server = None
            raise self.refusal(server, answer)

    def encoded(self, rollout: Rollout) -> bytes:
        """The submission as JSON; raises BackendError when the request does not fit into it."""
        try:
            text = json.dumps(self.body(rollout), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BackendError(
                f"the request cannot be sent as JSON: {describe(error)}",
                category=RolloutErrorCategory.VALIDATION_ERROR,
            ) from error
        return text.encode("utf-8", "replace")

    async def submit(self, rollout: Rollout, server: Server, body: bytes) -> Answer:
        """Send the submission once; raises Unsent or Lost."""
        return await server.ask(
            self.wire.session,
            "POST",
            "/rollout",
            timeout_sec=self.wire.limits.submit_timeout_sec,
            body=body,
            headers=self.headers(rollout),
        )

    def refusal(self, server: Server, answer: Answer) -> BackendError:
        """What a refusal is to the rollout: final where it is about the request, else the server's.

        A server that refuses for reasons of its own gets nothing for a while.
        """
        text = f"{server.url} answered {answer.status} to the submission: {answer.detail}"
        if answer.status < 300:
            return BackendError(
                f"{text}; {self.name} servers answer {self.accepts}, so it speaks another protocol"
            )
        if answer.status in _ABOUT_THE_REQUEST:
            return BackendError(text, category=RolloutErrorCategory.VALIDATION_ERROR)
        server.hold_failing()
        hint = "; check the server's API key" if answer.status in (401, 403) else ""
        return _Refused(f"{text}{hint}", category=RolloutErrorCategory.HTTP_ERROR)


class _Refused(BackendError):
    """A server takes no rollout at all; another one may."""
