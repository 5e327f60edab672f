"""The multi-sample callback protocol (osmosis-ai 0.2.x, protocol.md 1.3 and 1.4)."""

from __future__ import annotations

from typing import Any

from osmosis_server.controller.callbacks import Callbacks
from osmosis_server.controller.rollouts import Rollout
from osmosis_server.controller.servers import Json


class MultiSample(Callbacks):
    """Policy calls say whose they are in headers; one key serves them and the callbacks."""

    name = "multi-sample"
    accepts = 200

    def body(self, rollout: Rollout) -> Json:
        """Fields of protocol.md 1.3."""
        return {**self.common(rollout), "chat_completions_url": self.wire.listener.base_url()}

    def samples(self, body: Json) -> dict[str, Any]:
        """The samples by id."""
        samples: Any = body.get("samples") or {}
        if not isinstance(samples, dict):
            raise ValueError("samples is not an object")  # noqa: TRY004 - of the wire
        return samples  # pyright: ignore[reportUnknownVariableType]
