"""What servers report, as the kernel's results: with every policy call that was recorded here."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from osmosis_core import (
    ExecutionResult,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_core.errors import describe
from osmosis_core.policy import agent_scope, current_scope
from osmosis_server.controller.servers import Json

_MAIN = "main"
_NO_REASON = (
    "the server gave no reason; servers of osmosis-ai say nothing where no grader ran, for want of "
    "a grader, or of a label and metadata"
)
_SENT = ("messages", "label", "reward", "remove_sample", "metrics", "extra_fields")


def read_result(body: Json, samples: dict[str, Any]) -> ExecutionResult:
    """A terminal result in a protocol's words, with the samples found in it.

    Rewards stand only on samples that were graded well and kept (protocol.md 1.6).

    Raises:
        ValueError: the status is not terminal, or a sample is none.
    """
    status = RolloutStatus(body.get("status"))
    if not status.is_terminal:
        raise ValueError(f"status {status} is not terminal")
    reason = body.get("err_message")
    if reason is None and status is RolloutStatus.FAILURE:
        reason = _NO_REASON
    return ExecutionResult(
        status,
        {name: read_sample(given, name, status) for name, given in samples.items()},
        None if reason is None else str(reason),
        _category(body.get("err_category")),
    )


def _category(value: Any) -> RolloutErrorCategory | None:
    known = [category for category in RolloutErrorCategory if category.value == value]
    return known[0] if known else RolloutErrorCategory.INTERNAL_ERROR if value else None


def read_sample(given: Any, name: str, status: RolloutStatus) -> RolloutSample:
    """A sample as servers send it; raises ValueError when it is none."""
    if not isinstance(given, dict):
        raise ValueError(f"sample {name!r} is not an object")  # noqa: TRY004 - of the wire
    members: Json = {key: given[key] for key in _SENT if given.get(key) is not None}  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
    try:
        sample = RolloutSample.model_validate({**members, "id": _key(name)})
    except ValidationError as error:
        raise ValueError(f"sample {name!r}: {describe(error)}") from error
    if status is not RolloutStatus.SUCCESS or sample.remove_sample:
        sample.reward = None
    return sample


def _key(name: str) -> str:
    """The name as the kernel writes ids, so that samples and their calls meet."""
    with agent_scope(name):
        return current_scope().sample_id


async def with_calls(result: ExecutionResult, context: RolloutContext) -> ExecutionResult:
    """The result with every recorded policy call in its sample.

    Samples that only the wire knows are added; they are not trained on where the rollout was
    graded without them.
    """
    wire = await context.get_samples()
    samples: dict[str, RolloutSample] = {}
    for sample in result.samples.values():
        sample.id = _id_on_wire(sample, wire)
        seen = wire.pop(sample.id, None)
        samples[sample.id] = sample if seen is None else _joined(sample, seen)
    is_graded = bool(samples) and result.status is RolloutStatus.SUCCESS
    for sample in wire.values():
        sample.trainable = sample.trainable and not is_graded
    return ExecutionResult(
        result.status,
        {**samples, **wire},
        result.err_message,
        result.err_category,
        result.extra_fields,
    )


def _id_on_wire(sample: RolloutSample, wire: dict[str, RolloutSample]) -> str:
    """Protocols with one sample do not name it; then its calls do, or its agent's name."""
    if sample.id != _MAIN or sample.id in wire:
        return sample.id
    named = _key(str(sample.extra_fields.get("agent_name") or _MAIN))
    return named if named in wire else next(iter(wire)) if len(wire) == 1 else _MAIN


def _joined(sample: RolloutSample, seen: RolloutSample) -> RolloutSample:
    told = {"messages": sample.messages or seen.messages}
    return sample.model_copy(
        update={**told, "calls": seen.calls, "truncated": seen.truncated},
    )
