"""The single-sample callback protocol (osmosis-ai 0.3.0, protocol.md 1.5 and 1.6)."""

from __future__ import annotations

from typing import Any

from osmosis_server.controller.callbacks import Callbacks
from osmosis_server.controller.rollouts import Rollout
from osmosis_server.controller.servers import Json


class SingleSample(Callbacks):
    """Rollouts are told apart by URL; callbacks and policy calls have a key each."""

    name = "single-sample"
    accepts = 202

    def body(self, rollout: Rollout) -> Json:
        """Fields of protocol.md 1.5."""
        rollout_id = rollout.request.id
        return {
            **self.common(rollout),
            "chat_completions_url": self.wire.listener.base_url(rollout_id),
            "llm_api_key": self.wire.keys.policy(rollout_id, rollout.submission),
        }

    def samples(self, body: Json) -> dict[str, Any]:
        """The one sample; it has no name on this wire."""
        sample = body.get("sample")
        return {} if sample is None else {"main": sample}
