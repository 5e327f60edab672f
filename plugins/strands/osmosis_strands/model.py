"""The policy as a Strands model: created anywhere, bound to the active rollout when called."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import weakref
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self, override

import openai
from openai import AsyncOpenAI, AsyncStream
from openai.resources.chat.completions import AsyncCompletions
from strands import Agent
from strands.handlers.callback_handler import null_callback_handler
from strands.models import ModelRouter
from strands.models.openai import OpenAIModel
from strands.models.routing import RoutingCandidate
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

from osmosis_core import PolicyError, PolicyNotBoundError, RolloutContext, get_rollout_context
from osmosis_core.errors import describe
from osmosis_core.policy import BASE_URL, MODEL, async_client, bound_headers, current_scope
from osmosis_strands.callers import calling_agent, register, starter_of, streaming, watch
from osmosis_strands.cancelling import until_set
from osmosis_strands.history import History

_CONFIG_KEYS = ("stream", "cache_config", "context_window_limit")
_DECIDED = ("model_id", "client", "client_args", "api_key", "api_base", "base_url")


@dataclass(frozen=True, slots=True)
class _Binding:
    rollout: RolloutContext
    sample_id: str
    is_trainable: bool = True
    agent: weakref.ref[Agent] | None = None


class PolicyModel(ModelRouter):
    """What every Osmosis model of Strands does; mixed into one of Strands' own models.

    Strands introduces a ModelRouter to each agent that is given it, and nothing else that is
    passed as `model=`. This one routes to itself; being introduced is how it knows its agents.
    """

    config: dict[str, Any]
    _binding: _Binding | None = None

    @property
    def is_bound(self) -> bool:
        """True for what `for_sample` returns."""
        return self._binding is not None

    def for_sample(
        self, sample_id: str, rollout_ctx: RolloutContext, *, trainable: bool = True
    ) -> Self:
        """A copy bound to a rollout and sample, whatever is active where it is called.

        `trainable=False` is for helpers, such as an agent's `aux_model`.
        """
        return self._bound(_Binding(rollout_ctx, sample_id, trainable))

    def for_agent(self, agent: Agent, rollout_ctx: RolloutContext) -> Self:
        """A copy bound to an agent, registered with the rollout if it was not.

        Called while another rollout is active, its calls are the agent's in that one.
        """
        sample_id = register(agent, rollout_ctx)
        return self._bound(_Binding(rollout_ctx, sample_id, agent=weakref.ref(agent)))

    def _bound(self, binding: _Binding) -> Self:
        bound = copy.deepcopy(self)
        bound._binding = binding
        return bound

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)
        copied.config = copy.deepcopy(self.config, memo)
        return copied

    @override
    def init_agent(self, agent: Agent) -> None:
        """Learn of an agent that was given this model."""
        watch(agent)

    @property
    @override
    def default_model(self) -> Any:
        """The model itself."""
        return self

    @property
    @override
    def candidates(self) -> tuple[RoutingCandidate, ...]:
        """None: there is nothing to choose from."""
        return ()

    @override
    async def _select_model(self, context: Any) -> Any:
        return self

    @property
    @override
    def hooks(self) -> list[Any]:
        """None beyond those of `init_agent`."""
        return []

    @property
    @override
    def tools(self) -> list[Any]:
        """None."""
        return []

    def format_request(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The chat completion request, labelled with the rollout and sample it is bound to."""
        request: dict[str, Any] = self._next().format_request(*args, **kwargs)
        if not request["tools"]:
            del request["tools"]
        if self._binding is not None:
            is_trainable = self._binding.is_trainable and current_scope().trainable
            agent = self._agent()
            labels = bound_headers(
                self._binding.rollout,
                self._binding.sample_id,
                trainable=is_trainable,
                tee=agent is not None and agent.callback_handler is not null_callback_handler,
                parent=agent and starter_of(agent),
            )
            request["extra_headers"] = {**(request.get("extra_headers") or {}), **labels}
        return request

    @classmethod
    def format_request_message_content(cls, content: Any, **kwargs: Any) -> dict[str, Any]:
        """As Strands formats it; an image of the prompt goes out as it came in."""
        image_url = content.get("image", {}).get("source", {}).get("image_url")
        if image_url is not None:
            return {"type": "image_url", "image_url": image_url}
        base: Any = super()
        return base.format_request_message_content(content, **kwargs)

    async def stream(
        self, messages: Any, *args: Any, invocation_state: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        """Call the policy; see `strands.models.Model.stream`.

        Raises:
            PolicyNotBoundError: no rollout is active and the model is bound to none.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        signal = kwargs.get("cancel_signal")
        bound = self._for_caller(invocation_state, signal)
        try:
            async with aclosing(bound._next().stream(messages, *args, **kwargs)) as events:
                with streaming(bound._agent(), events):
                    async for event in until_set(events, signal):
                        yield event
        except (ModelThrottledException, openai.APIError) as error:
            raise _policy_error(error) from error

    async def structured_output(
        self, output_model: Any, prompt: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any]]:
        """Ask for an instance of `output_model`; errors as `stream`.

        Strands keeps neither the question nor the answer in the agent's messages; the sample
        of the agent that asks has both.
        """
        bound = self._for_caller(None, None)
        try:
            async for event in bound._next().structured_output(
                output_model, prompt, *args, **kwargs
            ):
                bound._keep_output(prompt, event)
                yield event
        except (ModelThrottledException, openai.APIError) as error:
            raise _policy_error(error) from error

    def _keep_output(self, prompt: Any, event: dict[str, Any]) -> None:
        agent = self._agent()
        if agent is not None and "output" in event:
            text = event["output"].model_dump_json()
            answer = {"role": "assistant", "content": [{"text": text}]}
            History.of(agent).keep_aside([*prompt, answer])

    def _agent(self) -> Agent | None:
        return self._binding.agent() if self._binding and self._binding.agent else None

    def _next(self) -> Any:
        """This model as the Strands model that it is mixed into."""
        return super()

    def _for_caller(self, invocation_state: Any, cancel_signal: Any) -> Self:
        rollout = get_rollout_context()
        if self._binding is not None:
            agent = self._agent()
            is_elsewhere = rollout is not None and rollout is not self._binding.rollout
            return self.for_agent(agent, rollout) if agent and rollout and is_elsewhere else self
        if rollout is None:
            raise PolicyNotBoundError(type(self).__name__)
        agent = calling_agent(invocation_state, cancel_signal)
        if agent is None:
            return self.for_sample(current_scope().sample_id, rollout)
        watch(agent)
        return self.for_agent(agent, rollout)


class OsmosisRolloutModel(PolicyModel, OpenAIModel):
    """The current policy; give it to any Strands agent.

    `OsmosisRolloutModel(params={"temperature": 1.0})` holds no connection: it may live at module
    level or in a config, be copied, and be shared by any number of agents and rollouts. Sampling
    parameters may also be given as keywords. There is no `model_id`: the training cluster decides
    which policy it serves. Calling it outside a rollout raises PolicyNotBoundError.
    """

    def __init__(self, params: dict[str, Any] | None = None, **options: Any) -> None:
        config = model_config(type(self).__name__, params, options)
        OpenAIModel.__init__(self, client=openai_client(), model_id=MODEL, **config)

    @asynccontextmanager
    async def _get_client(self) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as opened:
            yield _ClosingClient(openai_client(), opened)

    @override
    def format_request(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As PolicyModel's; parameters that the SDK does not know, such as top_k, go along."""
        request = super().format_request(*args, **kwargs)
        unknown = {name: request.pop(name) for name in request.keys() - _known_parameters()}
        if unknown:
            request["extra_body"] = {**unknown, **(request.get("extra_body") or {})}
        return request


class _ClosingClient:
    """The shared client, whose streams end with the call that opened them.

    The SDK's streams are reference cycles: one that is left early would go on until it is
    collected.
    """

    def __init__(self, client: AsyncOpenAI, opened: AsyncExitStack) -> None:
        self._client, self._opened = client, opened
        self.beta = client.beta
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, **request: Any) -> Any:
        answer = await self._client.chat.completions.create(**request)
        if isinstance(answer, AsyncStream):
            self._opened.push_async_callback(answer.close)
        return answer


def model_config(
    model: str, params: dict[str, Any] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Strands' model configuration from what the user gave.

    Raises:
        TypeError: an option that the active rollout decides.
    """
    for refused in _DECIDED:
        if refused in options:
            raise TypeError(
                f"{model} takes no {refused}: the active rollout says where the policy is; "
                "sampling parameters go into params={...}"
            )
    config = {key: options.pop(key) for key in _CONFIG_KEYS if key in options}
    return {**config, "params": {**(params or {}), **options}}


def _policy_error(error: Exception) -> Exception:
    if isinstance(error, ContextWindowOverflowException):
        return error
    return PolicyError(describe(error))


@functools.cache
def _known_parameters() -> frozenset[str]:
    """What the SDK takes by name; everything else an engine understands goes in the extra body."""
    return frozenset(inspect.signature(AsyncCompletions.create).parameters)


@functools.cache
def openai_client() -> AsyncOpenAI:
    """The shared SDK client over our transport; it retries nothing, its key goes nowhere."""
    lib = importlib.import_module(
        "httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx"
    )
    return AsyncOpenAI(base_url=BASE_URL, http_client=async_client(lib), api_key="-", max_retries=0)
