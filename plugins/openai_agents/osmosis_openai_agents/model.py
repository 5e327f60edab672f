"""The policy as a model of the SDK: created anywhere, bound to the active rollout when called."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import uuid
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Self, cast, override

import openai
from agents import Agent, Model, ModelProvider, ModelResponse, ModelSettings
from agents import OpenAIChatCompletionsModel as ChatModel
from agents.models.default_models import get_default_model_settings
from openai import AsyncOpenAI
from openai.resources.chat.completions import AsyncCompletions

from osmosis_core import PolicyError, PolicyNotBoundError, get_rollout_context
from osmosis_core.errors import describe
from osmosis_core.policy import BASE_URL, MODEL, async_client, bound_headers, current_scope
from osmosis_openai_agents.history import AgentHistory, history_of
from osmosis_openai_agents.prompts import native_items
from osmosis_openai_agents.runs import Run, current_run, keep_traces_here, watch_runs

_DECIDED = ("model", "model_id", "openai_client", "client", "api_key", "api_base", "base_url")


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """One call: what goes to the policy, and where its answer is noted."""

    items: list[Any]
    settings: ModelSettings
    run: Run | None
    history: AgentHistory | None

    def answered(self, output: Sequence[Any]) -> None:
        if self.history is not None and self.run is not None:
            self.history.answered(self.run, output)


class OsmosisRolloutModel(ChatModel):
    """The current policy; give it to any agent, or to a run as `RunConfig(model=...)`.

    `OsmosisRolloutModel(temperature=1.0)` holds no connection: it may live at module level, be
    copied, and be shared by any number of agents and rollouts; each call belongs to the agent
    whose turn it is. Keywords are sampling parameters, those that only an engine knows too
    (`top_k=20`); an agent's and a run's ModelSettings come before them. Calling it outside a
    rollout raises PolicyNotBoundError.

    Raises:
        TypeError: an option that the active rollout decides, such as `base_url`.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__(MODEL, _openai_client())
        self._defaults = _settings(type(self).__name__, params)
        watch_runs()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)
        copied._defaults = copy.deepcopy(self._defaults, memo)
        return copied

    @override
    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        """Call the policy; see `agents.Model.get_response`.

        Raises:
            PolicyNotBoundError: no rollout is active.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        call = self._begin(input, model_settings)
        with _policy_errors():
            response = await super().get_response(
                system_instructions, call.items, call.settings, *args, **kwargs
            )
        call.answered(response.output)
        return response

    @override
    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Call the policy and yield its answer as events; errors as `get_response`.

        The answer comes at once when it is complete, unless `WireOptions(tee=True)`.
        """
        call = self._begin(input, model_settings)
        with _policy_errors():
            stream: Any = super().stream_response(
                system_instructions, call.items, call.settings, *args, **kwargs
            )
            async with aclosing(stream) as events:
                async for event in events:
                    if event.type == "response.completed":
                        call.answered(event.response.output)
                    yield event

    def _begin(self, input: str | list[Any], settings: ModelSettings) -> _Call:
        rollout = get_rollout_context()
        if rollout is None:
            raise PolicyNotBoundError(type(self).__name__)
        keep_traces_here()
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        run, scope, history, parent = current_run(), current_scope(), None, None
        agent, sample_id = run.agent if run else None, scope.sample_id
        if run is not None and agent is not None:
            sample_id = rollout.register_agent(agent.name or uuid.uuid4().hex, agent, derived=True)
            history = history_of(agent, rollout)
            history.asked(run, items)
            parent = run.sample_id if run.sample_id != sample_id else None
            run.sample_id = sample_id
        labels = bound_headers(rollout, sample_id, trainable=scope.trainable, parent=parent)
        return _Call(native_items(items), self._asked(settings, agent, labels), run, history)

    def _asked(
        self, settings: ModelSettings, agent: Agent[Any] | None, labels: dict[str, str]
    ) -> ModelSettings:
        """The run's settings over the model's own, with usage also when streamed."""
        asked = self._defaults.resolve(_without_implicit(settings, agent))
        return dataclasses.replace(
            asked,
            include_usage=True,
            extra_headers={**_mapping(settings.extra_headers), **labels},
            extra_body={**_mapping(self._defaults.extra_body), **_mapping(settings.extra_body)},
        )


class OsmosisModelProvider(ModelProvider):
    """The current policy for every agent of a run: `RunConfig(model_provider=...)`.

    Whatever model an agent names, the policy answers. Takes what OsmosisRolloutModel takes.
    """

    def __init__(self, **params: Any) -> None:
        self._model = OsmosisRolloutModel(**params)

    @override
    def get_model(self, model_name: str | None) -> Model:
        """The policy."""
        return self._model


def _without_implicit(settings: ModelSettings, agent: Agent[Any] | None) -> ModelSettings:
    """Without what the SDK assumes of the vendor's model that an agent names, or of its default."""
    if agent is None or isinstance(agent.model, Model):
        return settings
    implicit = get_default_model_settings(*([agent.model] if agent.model else []))
    if agent.model_settings != implicit:
        return settings
    assumed = {name: None for name in ("reasoning", "verbosity") if getattr(implicit, name)}
    return dataclasses.replace(
        settings, **{n: None for n in assumed if getattr(settings, n) == getattr(implicit, n)}
    )


def _settings(model: str, params: dict[str, Any]) -> ModelSettings:
    for refused in _DECIDED:
        if refused in params:
            raise TypeError(
                f"{model} takes no {refused}: the active rollout says where the policy is; "
                "sampling parameters are keywords, such as temperature=1.0"
            )
    fields = {field.name for field in dataclasses.fields(ModelSettings)}
    known = inspect.signature(AsyncCompletions.create).parameters
    given = {name: value for name, value in params.items() if name in fields}
    others = params.keys() - fields
    arguments = {name: params[name] for name in others if name in known}
    body = {name: params[name] for name in others if name not in known}
    given["extra_args"] = {**_mapping(given.get("extra_args")), **arguments} or None
    given["extra_body"] = {**_mapping(given.get("extra_body")), **body} or None
    return ModelSettings(**given)


def _mapping(value: object) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}


@contextmanager
def _policy_errors() -> Generator[None]:
    try:
        yield
    except openai.APIError as error:
        raise PolicyError(describe(error)) from error


@functools.cache
def _openai_client() -> AsyncOpenAI:
    """The shared SDK client over our transport; it retries nothing, its key goes nowhere."""
    major = int(openai.__version__.partition(".")[0])
    lib = importlib.import_module("httpx2" if major >= 3 else "httpx")
    return AsyncOpenAI(base_url=BASE_URL, http_client=async_client(lib), api_key="-", max_retries=0)
