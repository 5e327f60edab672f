"""ATIF v1.7 documents: one per sample, with what the controller reports about its policy calls."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from osmosis_core import ExecutionRequest, ExecutionResult, PolicyCall, RolloutSample
from osmosis_server.trajectory.steps import Step, generated, steps_of

type Document = dict[str, Any]

_SINGLE = "trajectory.json"
_MAX_STEM = 200
_AGENT = "osmosis-rollout-sdk"
_TOTALS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")

type _Finite = Annotated[float, Field(allow_inf_nan=False)]
type _Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)


class CallMetrics(_Strict):
    """What a controller reports about one policy call."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    cost_usd: _Finite | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[_Finite] | None = None
    model_name: str | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(_Strict):
    """What a controller reports about all calls of a sample."""

    total_prompt_tokens: _Count | None = None
    total_completion_tokens: _Count | None = None
    total_cached_tokens: _Count | None = None
    total_cost_usd: _Finite | None = None
    total_steps: _Count | None = None
    extra: dict[str, Any] | None = None


class SampleReport(_Strict):
    """What a controller reports about one sample."""

    model_name: str | None = None
    llm_call_metrics: list[CallMetrics] = Field(default_factory=list[CallMetrics])
    final_metrics: FinalMetrics | None = None


class Report(_Strict):
    """`trajectory` in the acknowledgment of a callback."""

    model_name: str | None = None
    samples: dict[str, SampleReport] = Field(default_factory=dict[str, SampleReport])


def read_report(trajectory: object) -> Report | None:
    """The report that a controller acknowledged a callback with; None when it is malformed."""
    try:
        return Report.model_validate(trajectory)
    except ValidationError:
        return None


def documents(request: ExecutionRequest, result: ExecutionResult) -> dict[str, Document]:
    """The documents of a rollout by file name; samples without a message have none."""
    samples = result.samples
    found: dict[str, Document] = {}
    for sample in samples.values():
        steps = steps_of(sample)
        if steps:
            is_single = len(samples) == 1
            name = _SINGLE if is_single else file_name(sample.id)
            document = _document(request, sample, steps)
            document["trajectory_id"] = request.id if is_single else f"{request.id}:{sample.id}"
            found[name] = document
    return found


def file_name(sample_id: str) -> str:
    """The file of one sample of several."""
    stem = re.sub(r"[^A-Za-z0-9._~%-]", "_", sample_id)
    if stem != sample_id or len(stem) > _MAX_STEM:
        digest = hashlib.sha256(sample_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        stem = f"{stem[: _MAX_STEM - 17]}-{digest}"
    return f"trajectory-{stem}.json"


def _document(request: ExecutionRequest, sample: RolloutSample, steps: list[Step]) -> Document:
    about = {
        "rollout_id": request.id,
        "label": sample.label if sample.label is not None else request.label,
        "reward": sample.reward,
        "sample_metrics": sample.metrics,
        "sample_extra_fields": sample.extra_fields,
        "request_metadata": request.metadata,
        "request_extra_fields": request.extra_fields,
    }
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": request.id,
        "agent": _agent(sample.calls),
        "steps": steps,
        "final_metrics": _totals(steps),
        "extra": {"osmosis": {k: v for k, v in about.items() if v not in (None, {})}},
    }


def _agent(calls: list[PolicyCall]) -> dict[str, Any]:
    agent: dict[str, Any] = {
        "name": _AGENT,
        "version": _version(),
    }
    model = next((call.model for call in reversed(calls) if call.model), None)
    tools = next((call.tools for call in calls if call.tools), None)
    return (
        agent
        | ({"model_name": model} if model else {})
        | ({"tool_definitions": tools} if tools else {})
    )


@functools.cache
def _version() -> str:
    return importlib.metadata.version("osmosis-server")


def _totals(steps: list[Step]) -> dict[str, Any]:
    totals: dict[str, Any] = {"total_steps": len(steps)}
    measured: list[Mapping[str, Any]] = [step["metrics"] for step in steps if "metrics" in step]
    for name in _TOTALS:
        values = [metrics[name] for metrics in measured if name in metrics]
        if values:
            totals[f"total_{name}"] = sum(values)
    return totals


def apply_report(documents: Mapping[str, Document], report: Report) -> None:
    """Put a controller's figures into the documents that they are about.

    Calls are matched in order, and only when there are as many as answers of the policy; what
    cannot be placed is kept in `extra.osmosis`.
    """
    is_alone = len(documents) == len(report.samples) == 1
    unmatched: dict[str, Any] = {}
    for key, sample in report.samples.items():
        name = next(iter(documents)) if is_alone else file_name(key)
        if name in documents:
            _apply(documents[name], sample, sample.model_name or report.model_name)
        else:
            unmatched[key] = _dump(sample)
    if unmatched and documents:
        first = next(iter(documents.values()))
        first["extra"]["osmosis"]["unmatched_sample_reports"] = unmatched


def _apply(document: Document, report: SampleReport, model: str | None) -> None:
    if model:
        document["agent"]["model_name"] = model
    answers, calls = generated(document["steps"]), report.llm_call_metrics
    if calls and len(calls) != len(answers):
        about = document["extra"]["osmosis"]
        about["unmatched_llm_call_metrics"] = [_dump(call) for call in calls]
    else:
        for step, call in zip(answers, calls, strict=False):
            found = _dump(call)
            if "model_name" in found:
                step["model_name"] = found.pop("model_name")
            step["metrics"] = {**step.get("metrics", {}), **found}
    totals = _dump(report.final_metrics) if report.final_metrics else {}
    document["final_metrics"] = {**_totals(document["steps"]), **totals}


def _dump(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(exclude_none=True)
