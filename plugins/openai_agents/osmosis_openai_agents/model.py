"""The policy as a model of the SDK: created anywhere, bound to the active rollout when called."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import copy
import dataclasses
import functools
import importlib
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from typing import Any, Self
from uuid import uuid4

import openai
from agents import Agent, Model, ModelProvider, ModelSettings, OpenAIChatCompletionsModel
from agents.models.default_models import get_default_model_settings

from osmosis_core import PolicyError, PolicyNotBoundError, get_rollout_context
from osmosis_core.errors import describe
from osmosis_core.policy import BASE_URL, MODEL, async_client, bound_headers, current_scope
from osmosis_openai_agents.history import history_of
from osmosis_openai_agents.prompts import native_items
from osmosis_openai_agents.runs import current_run, watch_runs

_registering = threading.Lock()
_DECIDED = {"model", "model_id", "openai_client", "client", "api_key", "api_base", "base_url"}


class OsmosisRolloutModel(OpenAIChatCompletionsModel):
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
        if refused := sorted(_DECIDED & params.keys()):
            raise TypeError(f"OsmosisRolloutModel takes no {refused[0]}: the rollout decides it")
        unknown = params.keys() - ModelSettings.__dataclass_fields__
        body = {name: params.pop(name) for name in unknown} | params.pop("extra_body", {})
        self._defaults, self._body = ModelSettings(**params), body
        watch_runs()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the policy; see `agents.Model.get_response`.

        Raises:
            PolicyNotBoundError: no rollout is active.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        with self._call(system_instructions, input, model_settings) as (asked, answered):
            response = await super().get_response(*asked, *args, **kwargs)
            answered(response.output)
            return response

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Call the policy and yield its answer as events; errors as `get_response`.

        The answer comes at once when it is complete, unless `WireOptions(tee=True)`.
        """
        stream: Any = super().stream_response
        with self._call(system_instructions, input, model_settings) as (asked, answered):
            async with aclosing(stream(*asked, *args, **kwargs)) as events:
                async for event in events:
                    if event.type == "response.completed":
                        answered(event.response.output)
                    yield event

    @contextmanager
    def _call(self, system: Any, input: Any, settings: Any) -> Generator[tuple[Any, Any]]:
        rollout, run, scope = get_rollout_context(), current_run(), current_scope()
        if rollout is None:
            raise PolicyNotBoundError(type(self).__name__)
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        sample_id, parent, answered = scope.sample_id, None, list[Any]().extend
        if run and (agent := run.agent):
            settings = _without_implicit(settings, agent)
            with _registering:
                name = agent.name or uuid4().hex
                sample_id = rollout.register_agent(name, agent, derived=True)
            parent = run.sample_id if run.sample_id != sample_id else None
            run.sample_id = sample_id
            answered = history_of(agent, rollout).asked(run, items)
        labels = bound_headers(rollout, sample_id, trainable=scope.trainable, parent=parent)
        try:
            yield (system, native_items(items), self._with_defaults(settings, labels)), answered
        except openai.APIError as error:
            raise PolicyError(describe(error)) from error

    def _with_defaults(self, settings: Any, labels: dict[str, str]) -> ModelSettings:
        headers = {**(settings.extra_headers or {}), **labels}
        body = {**self._body, **(settings.extra_body or {})}
        added: Any = {"include_usage": True, "extra_headers": headers, "extra_body": body}
        return dataclasses.replace(self._defaults.resolve(settings), **added)


class OsmosisModelProvider(ModelProvider):
    """The current policy for every agent of a run: `RunConfig(model_provider=...)`.

    Whatever model an agent names, the policy answers. Takes what OsmosisRolloutModel takes.
    """

    def __init__(self, **params: Any) -> None:
        self._model = OsmosisRolloutModel(**params)

    def get_model(self, model_name: str | None) -> Model:
        """The policy."""
        return self._model


def _without_implicit(settings: ModelSettings, agent: Agent[Any]) -> ModelSettings:
    """Without what the SDK assumes of the vendor's model that an agent names, or of its default."""
    if isinstance(agent.model, Model):
        return settings
    implicit = get_default_model_settings(agent.model)
    names = [n for n in ("reasoning", "verbosity") if getattr(settings, n) == getattr(implicit, n)]
    return dataclasses.replace(settings, **dict.fromkeys(names))


@functools.cache
def _openai_client() -> openai.AsyncOpenAI:
    """The shared SDK client over our transport; it retries nothing, its key goes nowhere."""
    lib = importlib.import_module(
        "httpx2" if int(openai.__version__.split(".")[0]) > 2 else "httpx"
    )
    client = async_client(lib)
    return openai.AsyncOpenAI(base_url=BASE_URL, http_client=client, api_key="-", max_retries=0)
