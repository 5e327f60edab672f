"""Chat messages and policy calls as the steps of an ATIF document."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from osmosis_core import Message, PolicyCall, RolloutSample
from osmosis_server.trajectory.messages import as_chat, text_of

type Step = dict[str, Any]
"""One object of `steps`."""

_SOURCES = {"system": "system", "developer": "system", "assistant": "agent", "user": "user"}


def steps_of(sample: RolloutSample) -> list[Step]:
    """A sample's steps, by its policy calls where any was answered, else by its messages.

    By its calls: each answer is an agent step with its metrics, and what the policy was told since
    the call that it goes on from comes before it. Of a conversation that was written anew only the
    messages that are new are told again. Token ids of prompts are given where a conversation ends:
    that prompt holds those of all the earlier ones.
    """
    answered = [call for call in sample.calls if call.answer is not None]
    told = _Steps()
    if answered:
        told.add_calls(answered)
        told.add_late_results(as_chat(sample.messages))
    else:
        asked = sample.calls[-1].messages if sample.calls else []
        told.add_all(as_chat(sample.messages or asked))
    for number, step in enumerate(told.steps, 1):
        step["step_id"] = number
    return told.steps


def generated(steps: Iterable[Step]) -> list[Step]:
    """The agent steps that are answers of the policy in this sample."""
    return [s for s in steps if s["source"] == "agent" and not s.get("is_copied_context")]


class _Steps:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._askers: dict[str, Step] = {}
        """By id of a tool call: the latest step that asked for it."""
        self._waiting: set[str] = set()
        """Ids of tool calls whose result was not told."""

    def add_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._add(message)

    def add_calls(self, calls: Sequence[PolicyCall]) -> None:
        known: Counter[Any] = Counter()
        earlier: dict[int | None, PolicyCall] = {}
        continued = {call.continues for call in calls}
        for call in calls:
            before = earlier.get(call.continues)
            if before is not None:
                new = as_chat(call.messages[len(before.messages) + 1 :])
            else:
                new = _not_in(known, as_chat(call.messages))
            for message in new:
                step = self._add(message)
                if step is not None and step["source"] == "agent":
                    step["is_copied_context"] = True
            answer = as_chat([call.answer])[0]
            step = self._add({**answer, "role": "assistant"}, call)
            if step is not None and call.index not in continued and call.prompt_token_ids:
                step.setdefault("metrics", {})["prompt_token_ids"] = call.prompt_token_ids
            known.update(map(_key, [*new, answer]))
            earlier[call.index] = call

    def add_late_results(self, messages: Iterable[Message]) -> None:
        """Results of tools after which the policy was not called again."""
        late = (m for m in messages if m.get("tool_call_id") in self._waiting)
        self.add_all(message for message in late if message["role"] == "tool")

    def _add(self, message: Message, call: PolicyCall | None = None) -> Step | None:
        role = str(message.get("role"))
        if role in ("tool", "function"):
            return self._observe(message)
        step: Step = {"step_id": 0, "source": _SOURCES.get(role, "user")}
        step["message"] = text_of(message.get("content"))
        if role not in _SOURCES:
            step["extra"] = {"original_role": role}
        if step["source"] == "agent":
            step |= _agent_members(message)
            step |= _call_members(call) if call else _metrics(usage_metrics(message.get("usage")))
            for tool_call in step.get("tool_calls", ()):
                self._askers[tool_call["tool_call_id"]] = step
                self._waiting.add(tool_call["tool_call_id"])
        self.steps.append(step)
        return step

    def _observe(self, message: Message) -> Step | None:
        """Fold a tool's result into the step that asked, else into the agent step before it."""
        call_id, content = message.get("tool_call_id"), text_of(message.get("content"))
        asker = self._askers.get(str(call_id)) if call_id is not None else None
        result: dict[str, Any] = {"content": content}
        if asker is not None:
            result = {"source_call_id": str(call_id), **result}
            self._waiting.discard(str(call_id))
        elif call_id is not None:
            result["extra"] = {"tool_call_id": str(call_id)}
        step = asker or next((s for s in reversed(self.steps) if s["source"] == "agent"), None)
        if step is not None:
            step.setdefault("observation", {"results": []})["results"].append(result)
            return None
        self.steps.append({"step_id": 0, "source": "system", "message": content})
        if "extra" in result:
            self.steps[-1]["extra"] = result["extra"]
        return self.steps[-1]


def _not_in(known: Counter[Any], messages: list[Message]) -> list[Message]:
    """The messages without those that are known, as often as they are."""
    left, new = known.copy(), list[Message]()
    for message in messages:
        left[key := _key(message)] -= 1
        if left[key] < 0:
            new.append(message)
    return new


def _key(message: Message) -> Any:
    calls: list[Any] = message.get("tool_calls") or []
    ids = tuple(str(_object(call).get("id")) for call in calls)
    return message.get("role"), message.get("content"), message.get("tool_call_id"), ids


def _agent_members(message: Message) -> Step:
    calls: list[Any] = message.get("tool_calls") or []
    members: Step = {}
    if message.get("reasoning_content"):
        members["reasoning_content"] = message["reasoning_content"]
    if calls:
        members["tool_calls"] = [_tool_call(_object(call), i) for i, call in enumerate(calls)]
    return members


def _tool_call(call: Mapping[str, Any], position: int) -> Step:
    function = _object(call.get("function")) or call
    return {
        "tool_call_id": str(call.get("id") or f"call_{position}"),
        "function_name": str(function.get("name") or ""),
        "arguments": _arguments(function.get("arguments", function.get("args"))),
    }


def _arguments(given: Any) -> Any:
    if isinstance(given, str):
        try:
            parsed = json.loads(given or "{}")
        except (ValueError, RecursionError):
            parsed = None
        return parsed if isinstance(parsed, dict) else {"_raw": given}  # pyright: ignore[reportUnknownVariableType]
    if given is None or isinstance(given, dict):
        return given or {}  # pyright: ignore[reportUnknownVariableType]
    return {"_raw": json.dumps(given, default=str)}


def _call_members(call: PolicyCall) -> Step:
    ended = datetime.fromtimestamp(call.started_at + call.duration_sec, UTC)
    notes = {
        "call": call.index,
        "chain": call.chain,
        "finish_reason": call.finish_reason,
        "findings": [finding.text for finding in call.findings],
        "weight_versions": call.weight_versions,
    }
    members: Step = {
        "timestamp": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "llm_call_count": 1,
        "extra": {
            "osmosis": {name: value for name, value in notes.items() if value not in (None, [])}
        },
    }
    if call.model:
        members["model_name"] = call.model
    return members | _metrics({**usage_metrics(call.usage), **_tokens(call)})


def _tokens(call: PolicyCall) -> Step:
    """Token ids and log-probs of the answer, of which ATIF takes finite ones only."""
    tokens: Step = {}
    if call.completion_token_ids is not None:
        tokens["completion_token_ids"] = call.completion_token_ids
    logprobs = call.logprobs
    if logprobs is not None and all(p is not None and math.isfinite(p) for p in logprobs):
        tokens["logprobs"] = logprobs
    return tokens


def _metrics(found: Mapping[str, Any]) -> Step:
    return {"metrics": found} if found else {}


def usage_metrics(given: Any) -> dict[str, Any]:
    """Usage of chat completions, the Responses API or LangChain in ATIF's names."""
    usage = _object(given)
    details = _object(
        usage.get("prompt_tokens_details")
        or usage.get("input_tokens_details")
        or usage.get("input_token_details")
    )
    found = {
        "prompt_tokens": _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        "completion_tokens": _count(usage.get("completion_tokens", usage.get("output_tokens"))),
        "cached_tokens": _count(details.get("cached_tokens", details.get("cache_read"))),
        "cost_usd": _cost(usage.get("cost_usd", usage.get("cost"))),
    }
    return {name: value for name, value in found.items() if value is not None}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _cost(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
