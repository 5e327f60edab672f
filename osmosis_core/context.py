"""One rollout: where its policy is, who has registered, what was called."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self, TypedDict, cast

from osmosis_core.active import enter, last_call, leave
from osmosis_core.config import RetryPolicy, WireOptions
from osmosis_core.errors import SampleError, WorkflowError, boundary
from osmosis_core.records import Message, PolicyCall
from osmosis_core.sample_ids import encode_sample_id
from osmosis_core.types import RolloutSample

_DEFAULT_RETRY = RetryPolicy()
_DEFAULT_WIRE = WireOptions()


class Policy(TypedDict):
    """The arguments of a RolloutContext that say where its policy is and how to call it."""

    chat_completions_url: str
    api_key: str | None
    model: str | None
    retry: RetryPolicy
    wire: WireOptions


class SampleSource(ABC):
    """Hands over one agent's conversation when the workflow is done."""

    @abstractmethod
    async def get_sample(self, sample_id: str) -> RolloutSample:
        """Return the sample; `sample_id` is the id that it was registered under."""


class RolloutContext:
    """One rollout's road to the policy and the samples registered with it.

    Backends open one around every workflow. For local development open it yourself:
    `with RolloutContext(chat_completions_url=..., api_key=...):`. Empty values come from
    `OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY` and `OSMOSIS_ROLLOUT_ID`, which is how a
    container is told. It nests, as `with` or `async with`, and restores the outer one.
    """

    def __init__(
        self,
        chat_completions_url: str = "",
        api_key: str | None = None,
        rollout_id: str = "",
        *,
        model: str | None = None,
        retry: RetryPolicy = _DEFAULT_RETRY,
        deadline: float | None = None,
        wire: WireOptions = _DEFAULT_WIRE,
    ) -> None:
        """Describe the policy; `chat_completions_url` is the OpenAI *base* URL.

        `model` replaces the model name on the wire (`osmosis-rollout` when None). `deadline` is
        a `time.monotonic()` instant in seconds; no policy call outlives it. An `api_key` of `""`
        means none, whatever the environment says: a URL that a stranger named must not get it.
        """
        self.chat_completions_url = chat_completions_url or _env("CHAT_COMPLETIONS_URL") or ""
        self.api_key = ((_env("API_KEY") if api_key is None else api_key) or "").strip() or None
        self.rollout_id = rollout_id or _env("ROLLOUT_ID") or ""
        self.model = model
        self.retry = retry
        self.deadline = deadline
        self.wire = wire
        self._sources: dict[str, SampleSource] = {}
        self._names: dict[str, str] = {}
        self._agents: dict[int, tuple[object, str]] = {}
        self._calls: list[PolicyCall] = []
        self._handed_over: set[tuple[str, int | None]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        url = self.chat_completions_url.partition("?")[0].rpartition("@")[2]
        return f"RolloutContext({url!r}, rollout_id={self.rollout_id!r})"

    def __enter__(self) -> Self:
        enter(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        leave(self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()

    def for_rollout(self, rollout_id: str, deadline: float | None = None) -> RolloutContext:
        """A fresh context with this one's policy, for one rollout."""
        return RolloutContext(rollout_id=rollout_id, deadline=deadline, **self.policy)

    @property
    def policy(self) -> Policy:
        """What a context elsewhere is opened with to call the same policy in the same way."""
        same = {name: getattr(self, name) for name in Policy.__annotations__}
        return cast(Policy, {**same, "api_key": self.api_key or ""})

    @property
    def calls(self) -> Sequence[PolicyCall]:
        """Every policy call of this rollout, in the order in which they began."""
        return tuple(self._calls)

    def register_agent(self, sample_id: str, agent: object, *, derived: bool = False) -> str:
        """Register an agent of any framework; its plugin makes it readable as a sample.

        Args:
            sample_id: the agent's name. On the wire and as a key, an id is percent-encoded.
            agent: an object that a plugin adapts, or a `SampleSource`. Registering the same
                object again returns its id.
            derived: the id was derived from the agent, not chosen by the user, so one that is
                taken gets `-2`, `-3`... instead of being an error.

        Returns:
            The id under which the sample will appear.

        Raises:
            SampleError: the id is taken, or no plugin adapts the object.
            PluginError: the plugin that should adapt it raised.
        """
        known = self._agents.get(id(agent))
        if known is not None:
            return known[1]
        from osmosis_core.plugins import get_plugins

        source = (
            agent if isinstance(agent, SampleSource) else get_plugins().adapt_sample_source(agent)
        )
        if source is None:
            kind = f"{type(agent).__module__}.{type(agent).__qualname__}"
            raise SampleError(
                f"no plugin reads samples from {kind}; install its integration (see `osmosis "
                "plugins`) or pass a SampleSource to register_sample_source()"
            )
        taken = self.register_sample_source(sample_id, source, derived=derived)
        self._agents[id(agent)] = (agent, taken)
        return taken

    def register_sample_source(
        self, sample_id: str, source: SampleSource, *, derived: bool = False
    ) -> str:
        """Register a source under an id, as `register_agent`; one source may serve several ids."""
        if not isinstance(source, SampleSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SampleError(
                f"{source!r} is not a SampleSource; give one, or use register_agent()"
            )
        with self._lock:
            key = encode_sample_id(sample_id)
            if derived:
                key = self._free(sample_id)
            elif key in self._sources:
                raise SampleError(
                    f"sample id {sample_id!r} is taken in this rollout; there is "
                    f"{', '.join(self._sources)}; give each agent its own name"
                )
            self._sources[key] = source
            self._names[key] = sample_id
        from osmosis_core.plugins import get_plugins

        get_plugins().notify("osmosis_sample_registered", rollout_id=self.rollout_id, sample_id=key)
        return key

    def _free(self, name: str) -> str:
        key, number = encode_sample_id(name), 1
        while key in self._sources:
            number += 1
            key = encode_sample_id(f"{name}-{number}")
        return key

    async def get_samples(self, *, skip_failing: bool = False) -> dict[str, RolloutSample]:
        """One sample per registered agent, and per agent scope seen only on the wire.

        Raises:
            WorkflowError: a sample source raised; the message names its sample. With
                `skip_failing`, its sample is left out or told from the wire instead.
        """
        samples: dict[str, RolloutSample] = {}
        for sample_id in list(self._sources):
            try:
                samples[sample_id] = await self._collect(sample_id)
            except WorkflowError:
                if not skip_failing:
                    raise
        return self._with_calls(samples)

    async def _collect(self, sample_id: str) -> RolloutSample:
        try:
            with boundary(WorkflowError):
                given: object = await self._sources[sample_id].get_sample(sample_id)
        except WorkflowError as error:
            text = f"sample source {sample_id!r} failed: {error}"
            raise WorkflowError(text, category=error.category) from error
        if not isinstance(given, RolloutSample):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(given).__name__
            raise WorkflowError(f"sample source {sample_id!r} gave a {kind}, not a RolloutSample")
        extra_fields = {"agent_name": self._names[sample_id], **given.extra_fields}
        changed = {"id": sample_id, "calls": list(given.calls), "extra_fields": extra_fields}
        return given.model_copy(update=changed)

    def _with_calls(self, samples: dict[str, RolloutSample]) -> dict[str, RolloutSample]:
        told = set(samples)
        for call in self._calls:
            sample = samples.get(call.sample_id)
            if sample is None:
                sample = samples[call.sample_id] = RolloutSample(id=call.sample_id)
            sample.calls.append(call)
        for sample_id, sample in samples.items():
            if sample_id not in told or not sample.messages:
                sample.messages = _conversation(sample.calls)
            sample.trainable = sample.trainable and all(call.trainable for call in sample.calls)
            sample.truncated = any(call.finish_reason == "length" for call in sample.calls)
        return samples

    def begin_call(self, call: PolicyCall, parent: str | None = None) -> None:
        """Take a call into the record; the transport completes it."""
        with self._lock:
            call.index = len(self._calls)
            call.started_by = self._started_by(call.sample_id, parent)
            self._calls.append(call)

    def latest_tool_call(self, sample_id: str) -> PolicyCall | None:
        """The latest call of a sample whose answer asks for tools."""
        mine = (call for call in reversed(self._calls) if call.sample_id == sample_id)
        return next((call for call in mine if call.has_tool_calls), None)

    def _started_by(self, sample_id: str, parent: str | None) -> int | None:
        """The innermost call still being acted on here, unless it is the agent's own.

        Who handed over does not wait for an answer: when that came, its call is not acted on.
        """
        call, found, is_waiting = last_call(), None, True
        if parent is not None:
            call = self.latest_tool_call(parent)
            self._handed_over.add((sample_id, call and call.index))
        elif call is not None and self._calls[call.index : call.index + 1] != [call]:
            return None
        while call is not None:
            if call.sample_id == sample_id:
                return call.started_by
            if found is None and is_waiting and call.has_tool_calls:
                found = call.index
            is_waiting = (call.sample_id, call.started_by) not in self._handed_over
            call = None if call.started_by is None else self._calls[call.started_by]
        return found


def _conversation(calls: list[PolicyCall]) -> list[Message]:
    """What the wire says: the last answered request and its answer."""
    answered: list[Any] = [call for call in calls if call.answer is not None]
    return [*answered[-1].messages, answered[-1].answer] if answered else []


def _env(name: str) -> str | None:
    return os.environ.get(f"OSMOSIS_{name}") or None
