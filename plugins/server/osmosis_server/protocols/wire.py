"""Samples as controllers get them: the documented fields, always encodable, no reward in vain."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from osmosis_core import RolloutSample

_log = logging.getLogger(__name__)
_DROPPED: Any = object()
_MAX_DEPTH = 100


def wire_sample(sample: RolloutSample, *, has_succeeded: bool) -> dict[str, Any]:
    """The fields of protocol.md 1.6.

    The reward is null unless the rollout succeeded and the sample is for training; a sample that
    was declared not trainable is marked as removed.
    """
    is_removed = sample.remove_sample or not sample.trainable
    return {
        "messages": sample.messages,
        "label": sample.label,
        "reward": sample.reward if has_succeeded and not is_removed else None,
        "remove_sample": is_removed,
        "metrics": json_safe(sample.metrics, "metrics"),
        "extra_fields": json_safe(sample.extra_fields, "extra_fields"),
    }


def encode(body: Mapping[str, Any]) -> bytes:
    """The body as JSON, without what no JSON can say."""
    try:
        return to_json(body, inf_nan_mode="null", bytes_mode="base64")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return to_json(json_safe(body, "body"))


def json_safe(value: Any, name: str) -> Any:
    """The value with numbers of NumPy's kind converted and all dropped that no JSON can say.

    Keys become strings, tuples and sets lists; in a list null stands for what was dropped. One
    warning names what is gone.
    """
    cleaning = _Cleaning()
    safe = cleaning.clean(value, name)
    if cleaning.dropped:
        gone = ", ".join(cleaning.dropped[:5]).encode("unicode_escape").decode()
        _log.warning("dropped from a sample, no JSON can say it: %s", gone)
    return safe


class _Cleaning:
    def __init__(self) -> None:
        self.dropped: list[str] = []
        self._around: set[int] = set()

    def clean(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value).encode("utf-8", "replace").decode()
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else self._drop(path)
        if id(value) in self._around or len(self._around) > _MAX_DEPTH:
            return self._drop(path)
        self._around.add(id(value))
        try:
            return self._clean_object(value, path)
        finally:
            self._around.discard(id(value))

    def _clean_object(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value).items()
            named = ((self.clean(str(key), path), item) for key, item in pairs)
            safe = {key: self.clean(item, f"{path}.{key}"[:100]) for key, item in named}
            return {key: item for key, item in safe.items() if item is not _DROPPED}
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.clean(item, f"{path}[]") for item in cast("list[Any]", value)]
            return [None if item is _DROPPED else item for item in items]
        return self._convert(value, path)

    def _convert(self, value: Any, path: str) -> Any:
        to_list = getattr(value, "tolist", None)  # NumPy's numbers and arrays, and their like
        try:
            plain = (
                to_list() if callable(to_list) else to_jsonable_python(value, bytes_mode="base64")
            )
        except Exception:  # boundary: a foreign object converts itself
            return self._drop(path)
        return self.clean(plain, path)

    def _drop(self, path: str) -> Any:
        self.dropped.append(path)
        return _DROPPED
