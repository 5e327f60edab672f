"""The gateway in front of any upstream: one policy for every caller, each call on record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from starlette.applications import Starlette

from osmosis_core import ConfigError, RolloutContext, RolloutSample
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_gateway.admission import Caller, by_headers
from osmosis_gateway.app import create_app

_log = logging.getLogger(__name__)


class Recorder:
    """Appends a line of JSON per finished policy call, as in `samples.jsonl`, to a file.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--record {str(path)!r}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def __call__(self, rollout: RolloutContext) -> None:
        """Write a rollout's calls down; a file that takes no more is said, and stops nothing."""
        sample = RolloutSample(id="calls", calls=list(rollout.calls))
        records = sample.model_dump(mode="json")["calls"]
        try:
            self._file.writelines(json.dumps(record) + "\n" for record in records)
            self._file.flush()
        except OSError as error:
            _log.error("--record %r: %s; the call was answered", self._file.name, error.strerror)


def standalone_app(
    upstream: PolicyEndpoint,
    api_key: str,
    on_answered: Callable[[RolloutContext], None] | None = None,
) -> Starlette:
    """An app in front of `upstream`; rollout and sample are named by routing headers, if at all.

    Without a model in `upstream` the model that the caller names is asked for. `on_answered` is
    given a context with the one call that has ended.
    """

    def find(rollout_id: str, sample_id: str) -> Caller:
        rollout = RolloutContext(upstream.base_url, upstream.api_key, rollout_id)
        rollout.rollout_id, rollout.api_key = rollout_id, upstream.api_key  # not the environment's
        rollout.model = upstream.model
        return Caller(rollout, sample_id, keeps_model=True, on_answered=on_answered)

    return create_app(by_headers(find, api_key))
