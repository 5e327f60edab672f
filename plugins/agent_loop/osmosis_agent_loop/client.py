"""How a loop calls the policy: one client over the kernel's transport, in two dialects."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_agent_loop.errors import (
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis_agent_loop.messages import normalize_stop, parse_tool_calls
from osmosis_agent_loop.schemas import MessageDict, RolloutMetrics
from osmosis_agent_loop.settings import RolloutClientSettings, get_settings
from osmosis_core import PolicyCall, WireOptions
from osmosis_core import RolloutContext as Rollout
from osmosis_core.policy import WireRequest, WireResponse, bound_headers, exchange

_log = logging.getLogger(__name__)

_TRAINER_WIRE = WireOptions(stream=False)
_TRAINER_MODEL = "default"
JSON = {"content-type": "application/json"}
_PASSING = (408, 425, 429)
"""Refusals that the transport tries again."""
_CONTROL = frozenset(
    ("api_key", "base_url", "messages", "model", "rollout_id", "stream", "stream_options", "tools")
)
"""Names that sampling parameters cannot set."""
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_LIMITS = ("max_completion_tokens", "min_p", "min_tokens", "stop_token_ids", "top_k")
_CHOICES = ("logit_bias", "parallel_tool_calls", "reasoning_effort", "response_format", "seed")
_ENGINES = ("chat_template_kwargs", "skip_special_tokens", "tool_choice", "top_logprobs")
_EXTRA_SAMPLING = frozenset((*_PENALTIES, *_LIMITS, *_CHOICES, *_ENGINES))
"""Sampling parameters beyond the documented ones that trainers' engines know."""


@dataclass(frozen=True)
class CompletionsResult:
    """The policy's answer to one call."""

    message: MessageDict
    """The assistant message; append it to the messages as it is."""
    token_ids: list[int] = field(default_factory=list[int])
    """Of the answer; empty where the endpoint returns none."""
    logprobs: list[float] = field(default_factory=list[float])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str = "stop"
    prompt_token_ids: list[int] = field(default_factory=list[int])

    @property
    def has_tool_calls(self) -> bool:
        """True when the policy asks for tools."""
        return bool(self.tool_calls)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls, maybe none."""
        return parse_tool_calls(self.message)

    @property
    def content(self) -> str | None:
        """The text, or None."""
        return self.message.get("content")


class LLMClientProtocol(Protocol):
    """What `RolloutContext.llm` must do; give your own in tests."""

    async def chat_completions(
        self, messages: list[MessageDict], **params: Any
    ) -> CompletionsResult:
        """Ask the policy."""
        ...

    def get_metrics(self) -> RolloutMetrics:
        """What the calls so far took."""
        ...


class PolicyClient:
    """Calls the policy of a rollout; each call is recorded as one of the sample's.

    Args:
        rollout: the kernel's context of the rollout.
        sample_id: whose calls these are.
        tools: offered with every call; None for trainers, which know them already.
        settings: time-outs and the number of connections; the process's by default.
    """

    def __init__(
        self,
        rollout: Rollout,
        sample_id: str,
        *,
        tools: list[dict[str, Any]] | None = None,
        is_trainer: bool = False,
        settings: RolloutClientSettings | None = None,
        trainable: bool = True,
    ) -> None:
        self._rollout, self._tools, self._is_trainer = rollout, tools, is_trainer
        self._settings = settings or get_settings().client
        self._headers = {**JSON, **bound_headers(rollout, sample_id, trainable=trainable)}
        self._metrics = RolloutMetrics()
        self.warnings: list[str] = []
        """What of the parameters was not sent, each said once."""

    async def chat_completions(
        self, messages: list[MessageDict], **params: Any
    ) -> CompletionsResult:
        """Ask the policy for the next message.

        Raises:
            OsmosisValidationError: the messages or parameters cannot be sent, or were refused.
            OsmosisServerError, OsmosisTimeoutError, OsmosisTransportError: no answer in all tries.
        """
        body = self._body(messages, params)
        began = time.monotonic()
        try:
            async with _slot(self._settings):
                timeout = self._settings.timeout_seconds
                answer = await exchange(
                    WireRequest("POST", "/chat/completions", self._headers, body, timeout)
                )
        finally:
            self._metrics.num_llm_calls += 1
            self._metrics.llm_latency_ms += (time.monotonic() - began) * 1000
        if answer.call is None or answer.call.error is not None:
            raise failure(answer)
        result = _result(json.loads(answer.body), answer.call)
        self._count(result.usage)
        return result

    def get_metrics(self) -> RolloutMetrics:
        """What the calls so far took."""
        return self._metrics.model_copy()

    def _body(self, messages: list[MessageDict], params: dict[str, Any]) -> bytes:
        refused = sorted(params.keys() & _CONTROL)
        given = {name: value for name, value in params.items() if name not in _CONTROL}
        if "stop" in given and (stop := normalize_stop(given.pop("stop"))) is not None:
            given["stop"] = stop
        body: dict[str, Any] = {"messages": messages}
        if self._is_trainer:
            unknown = given.keys() - _EXTRA_SAMPLING - _TRAINER_DEFAULTS.keys() - {"stop"}
            refused += sorted(unknown)
            kept = {name: given[name] for name in given.keys() - unknown}
            body |= {"rollout_id": self._rollout.rollout_id, **_TRAINER_DEFAULTS, **kept}
        else:
            body |= {**({"tools": self._tools} if self._tools else {}), **given}
        for name in refused:
            self._warn(f"ctx.chat() was given {name!r}, which is not sent to the policy")
        try:
            return json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            text = f"what ctx.chat() was given cannot be written as JSON: {error}"
            raise OsmosisValidationError(text, 0) from error

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            _log.warning("rollout %r: %s", self._rollout.rollout_id, text)

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, answer = (_tokens(usage, name) for name in ("prompt_tokens", "completion_tokens"))
        metrics = self._metrics
        metrics.prompt_tokens += prompt
        metrics.response_tokens += answer
        metrics.max_context_tokens = max(metrics.max_context_tokens, prompt + answer)


_TRAINER_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "logprobs": True}
"""What a trainer is asked for where the loop does not say (protocol.md 1.2)."""


def speak_to_trainer(rollout: Rollout, settings: RolloutClientSettings) -> None:
    """Let a rollout's calls go to a trainer of the first generation, retried as `settings` say."""
    rollout.model, rollout.wire, rollout.retry = _TRAINER_MODEL, _TRAINER_WIRE, settings.retry


type _Slots = dict[int, asyncio.Semaphore]
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = weakref.WeakKeyDictionary()


def _slot(settings: RolloutClientSettings) -> asyncio.Semaphore:
    """The running loop's permits for `max_connections` calls at once."""
    limit, slots = settings.max_connections, _slots.setdefault(asyncio.get_running_loop(), {})
    return slots.setdefault(limit, asyncio.Semaphore(limit))


def _result(completion: dict[str, Any], call: PolicyCall) -> CompletionsResult:
    choice = completion["choices"][0]
    _take_trainers_tokens(completion, call)
    return CompletionsResult(
        message=choice["message"],
        token_ids=list(call.completion_token_ids or ()),
        logprobs=[p for p in call.logprobs or () if p is not None],
        usage=completion.get("usage") or {},
        finish_reason=choice.get("finish_reason") or "stop",
        prompt_token_ids=list(call.prompt_token_ids or ()),
    )


def _take_trainers_tokens(completion: dict[str, Any], call: PolicyCall) -> None:
    """Tokens stand at the top of a trainer's answer (protocol.md 1.2); the record has them too."""
    ids, logprobs = completion.get("token_ids"), completion.get("logprobs")
    if call.completion_token_ids is None and isinstance(ids, list):
        call.completion_token_ids = ids
    if call.logprobs is None and isinstance(logprobs, list):
        call.logprobs = logprobs


def _tokens(usage: dict[str, Any], name: str) -> int:
    count = usage.get(name)
    return count if isinstance(count, int) else 0


def failure(answer: WireResponse) -> Exception:
    """The published error for an answer that is none."""
    call = answer.call
    tried = call.attempts[-1].status if call and call.attempts else None
    status = answer.status if call is None else tried
    text = (call.error if call else None) or _said(answer)
    if status is not None and 400 <= status < 600:
        is_passing = status >= 500 or status in _PASSING
        kind = OsmosisServerError if is_passing else OsmosisValidationError
        return kind(text, status)
    is_silent = answer.status == 504 or "stopped answering" in text
    return (OsmosisTimeoutError if is_silent else OsmosisTransportError)(text)


def _said(answer: WireResponse) -> str:
    try:
        return str(json.loads(answer.body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the trainer answered {answer.status}"
