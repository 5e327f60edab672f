"""A finished rollout as a person reads it: who said what, which tools were called, the reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from osmosis_core import AgentRun, Message, RolloutSample
from osmosis_eval.runner import Outcome

_WIDTH = 100


def conversation(outcome: Outcome) -> str:
    """Every sample of a rollout, as the policy saw it on the wire; who called whom, if several."""
    lines: list[str] = []
    for sample_id, sample in outcome.result.samples.items():
        reward = "no reward" if sample.reward is None else f"reward {sample.reward:g}"
        head = f"row {outcome.row.index}, {sample_id}: {reward}"
        lines += [head, *map(_cut, _lines(sample)), ""]
    if len(outcome.result.samples) > 1:
        head = f"row {outcome.row.index}, who called whom:"
        lines += [head, *_indented(outcome.result.tree()), ""]
    return "\n".join(lines)


def _indented(tree: list[AgentRun]) -> Iterator[str]:
    return (_cut(line) for run in tree for line in str(run).splitlines())


def _lines(sample: RolloutSample) -> Iterator[str]:
    answered: list[Any] = [call for call in sample.calls if call.answer is not None]
    if not answered:
        yield "no answered policy call"
        return
    for message in [*answered[-1].messages, answered[-1].answer]:
        if message.get("role") not in ("system", "developer"):
            yield from _message_lines(message)


def _message_lines(message: Message) -> Iterator[str]:
    text = _text(message.get("content"))
    if text:
        yield f"{message.get('role')}: {text}"
    calls: list[Message] = message.get("tool_calls") or []
    for call in calls:
        function: Message = call.get("function") or {}
        yield f"{message.get('role')} calls {function.get('name')}({function.get('arguments')})"


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = cast(list[Message], content)
        content = " ".join(part.get("text", "[image or file]") for part in parts)
    return " ".join(str(content or "").split())


def _cut(line: str) -> str:
    line = "".join(c if c.isprintable() else "?" for c in line)
    return "  " + (line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}...")
