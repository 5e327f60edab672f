"""Policy calls as they went over the wire: compact in memory, and compact as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from osmosis_core.packing import pack_ids, pack_logprobs

type Message = dict[str, Any]
"""One chat message, in the shape of whoever produced it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One HTTP request of a policy call; a call has one per try."""

    number: int
    """Counted from 1."""
    duration_sec: float
    status: int | None = None
    """HTTP status, or None when no answer came."""
    error: str | None = None


type FindingKind = Literal[
    "window", "summary", "dropped", "edited", "tool_results", "tools", "handoff", "duplicate"
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A request that does not go on from what was said before it: somebody rewrote the history."""

    kind: FindingKind
    """`window`: the oldest turns are gone; `summary`: turns gave way to a new message; `dropped`:
    other turns are gone; `edited`: messages changed; `tool_results`: only results of tools did;
    `tools`: other tools are offered; `handoff`: another agent's history, filtered; `duplicate`:
    a request that was answered before is asked again."""
    call: int
    """Index of the call whose request it is."""
    of: int
    """Index of the call whose conversation it departs from."""
    text: str
    """The same in a sentence."""


@dataclass(slots=True)
class PolicyCall:
    """One call to the policy as it went over the wire, also when it failed.

    The record is what the model saw and said; frameworks' own histories are not. Token ids and
    log-probs are what the endpoint returned, never rebuilt from text.
    """

    call_id: str
    rollout_id: str
    sample_id: str
    index: int
    """Position among the calls of its rollout, from 0."""
    request: dict[str, Any]
    """The JSON body as sent, without credentials: messages, tools, sampling parameters."""
    started_at: float
    """Seconds since the epoch."""
    trainable: bool = True
    started_by: int | None = None
    """Index of the call whose tool call (or handoff) started the agent that made this one."""
    continues: int | None = None
    """Index of the call whose request and answer this request begins with (training.md 3)."""
    chain: int = 0
    """Number of the conversation: it goes on where a call continues the chain's last one."""
    answer: Message | None = None
    """The assistant message of the first choice, or None when the call failed."""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    response_id: str | None = None
    model: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    completion_token_ids: Sequence[int] | None = None
    logprobs: Sequence[float | None] | None = None
    """Aligned with `completion_token_ids` when both were returned."""
    logprobs_kind: Literal["sampling", "raw", "unknown"] = "unknown"
    """`raw` is before temperature and truncation (vLLM's default), `sampling` after (SGLang's)."""
    weight_versions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """`{"version", "start", "end"}` over completion tokens, as far as the endpoint says."""
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    duration_sec: float = 0.0
    error: str | None = None
    """Why the call failed; None when it succeeded."""
    findings: list[Finding] = field(default_factory=list[Finding])
    """How its request departs from the conversation so far; empty when it goes on or begins one."""

    @property
    def messages(self) -> list[Message]:
        """The request's messages; none where it has no list of them."""
        given = self.request.get("messages")
        return given if isinstance(given, list) else []  # pyright: ignore[reportUnknownVariableType]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The request's tool schemas."""
        return self.request.get("tools") or []

    @property
    def said(self) -> list[Message]:
        """The request's messages and the answer, as a request that goes on from it begins."""
        return self.messages if self.answer is None else [*self.messages, resent(self.answer)]

    @property
    def has_tool_calls(self) -> bool:
        """True when the answer asks for tools, so that agents may run inside of them."""
        return bool(self.answer and self.answer.get("tool_calls"))

    @property
    def received(self) -> bool:
        """True when the agent got an answer from this call."""
        return self.error is None

    def pack(self, before: PolicyCall | None) -> None:
        """Store token ids and log-probs compactly, sharing those of the call `before` this one."""
        shared = (before.prompt_token_ids, before.completion_token_ids) if before else ()
        self.prompt_token_ids = pack_ids(self.prompt_token_ids, *shared)
        self.completion_token_ids = pack_ids(self.completion_token_ids)
        self.logprobs = pack_logprobs(self.logprobs)


REASONING = ("reasoning_content", "reasoning")
"""What engines call the reasoning of a message."""

_RESENT = ("role", "content", "tool_calls", *REASONING)


def resent(answer: Message) -> Message:
    """An answer as it is said again in the next request: what was generated, nothing else."""
    kept = {name: answer[name] for name in _RESENT if answer.get(name) is not None}
    if kept.keys() == answer.keys():
        return answer
    return {"role": "assistant", "content": None, **kept}
