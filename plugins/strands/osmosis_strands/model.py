"""The policy as a Strands model: created anywhere, bound to the active rollout when called."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
import functools
import importlib
import uuid
from collections.abc import AsyncGenerator
from typing import Any, Self, cast, override

import openai
from openai import AsyncOpenAI
from strands import Agent
from strands.middleware.stages import InvokeModelContext, InvokeModelStage
from strands.models.openai import OpenAIModel
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

from osmosis_core import PolicyError, PolicyNotBoundError, RolloutContext, get_rollout_context
from osmosis_core.policy import (
    BASE_URL,
    MODEL,
    async_client,
    bound_headers,
    current_scope,
    failed_call,
)

_DEFAULT_NAME = "Strands Agents"
_DEFAULT_ID = "default"
_CONFIG_KEYS = ("stream", "cache_config", "context_window_limit")


class OsmosisRolloutModel(OpenAIModel):
    """The current policy; give it to any Strands agent.

    `OsmosisRolloutModel(params={"temperature": 1.0})` holds no connection: it may live at module
    level or in a config, be copied, and be shared by any number of agents and rollouts. Sampling
    parameters may also be given as keywords. There is no `model_id`: the training cluster decides
    which policy it serves. Calling it outside a rollout raises PolicyNotBoundError.
    """

    def __init__(self, params: dict[str, Any] | None = None, **options: Any) -> None:
        for refused in ("model_id", "client", "client_args", "api_key", "base_url"):
            if refused in options:
                raise TypeError(
                    f"OsmosisRolloutModel takes no {refused}: the active rollout says where the "
                    "policy is; sampling parameters go into params={...}"
                )
        config = {key: options.pop(key) for key in _CONFIG_KEYS if key in options}
        config["params"] = {**(params or {}), **options}
        super().__init__(client=_openai(), model_id=MODEL, **config)
        self._bound_to: tuple[RolloutContext, str] | None = None

    @property
    def is_bound(self) -> bool:
        """True for what `for_sample` returns."""
        return self._bound_to is not None

    def for_sample(self, sample_id: str, rollout_ctx: RolloutContext) -> Self:
        """A copy bound to a rollout and sample, whatever is active where it is called."""
        bound = copy.copy(self)
        bound.config = copy.deepcopy(self.config)
        bound._bound_to = (rollout_ctx, sample_id)
        return bound

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)
        copied.config = copy.deepcopy(self.config, memo)
        return copied

    @override
    def format_request(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The chat completion request, labelled with the rollout and sample it is bound to."""
        request = super().format_request(*args, **kwargs)
        if not request["tools"]:
            del request["tools"]
        if self._bound_to is not None:
            headers = request.get("extra_headers") or {}
            request["extra_headers"] = {**headers, **bound_headers(*self._bound_to)}
        return request

    @override
    @classmethod
    def format_request_message_content(cls, content: Any, **kwargs: Any) -> dict[str, Any]:
        """As Strands formats it; an image given by URL stays a URL."""
        url = content.get("image", {}).get("source", {}).get("url")
        if url is not None:
            return {"type": "image_url", "image_url": {"url": url}}
        return super().format_request_message_content(content, **kwargs)

    @override
    async def stream(
        self, messages: Any, *args: Any, invocation_state: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        """Call the policy; see `strands.models.Model.stream`.

        Raises:
            PolicyNotBoundError: no rollout is active and the model is bound to none.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        bound = self._for_caller(messages, invocation_state)
        try:
            async for event in OpenAIModel.stream(bound, messages, *args, **kwargs):
                yield event
        except (ModelThrottledException, openai.APIError) as error:
            raise _policy_error(error) from error

    @override
    async def structured_output(
        self, output_model: Any, prompt: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any]]:
        """Ask for an instance of `output_model`; errors as `stream`."""
        bound = self._for_caller(prompt, None)
        try:
            async for event in OpenAIModel.structured_output(
                bound, output_model, prompt, *args, **kwargs
            ):
                yield event
        except (ModelThrottledException, openai.APIError) as error:
            raise _policy_error(error) from error

    def _for_caller(self, messages: Any, invocation_state: Any) -> OsmosisRolloutModel:
        if self._bound_to is not None:
            return self
        rollout = get_rollout_context()
        if rollout is None:
            raise PolicyNotBoundError("OsmosisRolloutModel")
        agent = _caller(self, messages, invocation_state)
        if agent is None:
            return self.for_sample(current_scope().sample_id, rollout)
        agent.add_middleware(InvokeModelStage.Input, bind_to_rollout)
        return self.for_sample(register(agent, rollout), rollout)


def register(agent: Agent, rollout: RolloutContext) -> str:
    """Register an agent under its name, else its agent id, else a fresh id (contract.md 2)."""
    name = agent.name if agent.name != _DEFAULT_NAME else None
    agent_id = agent.agent_id if agent.agent_id != _DEFAULT_ID else None
    return rollout.register_agent(name or agent_id or uuid.uuid4().hex, agent, derived=True)


def bind_to_rollout(context: InvokeModelContext) -> InvokeModelContext:
    """Middleware: the model of this call, bound to the active rollout as this agent's."""
    rollout, model = get_rollout_context(), context.model
    if rollout is None or not isinstance(model, OsmosisRolloutModel) or model.is_bound:
        return context
    agent = cast("Agent", context.agent)
    return context.replace(model=model.for_sample(register(agent, rollout), rollout))


def _caller(model: OpenAIModel, messages: Any, invocation_state: Any) -> Agent | None:
    """The plain agent that is calling, if the state that Strands shares between agents says so.

    Parallel graph nodes share one state, so the agent found there counts only when it holds what
    is being sent.
    """
    agent = (invocation_state or {}).get("agent")
    if (
        not isinstance(agent, Agent)
        or agent.model is not model
        or not agent.messages
        or not messages
    ):
        return None
    return agent if agent.messages[-1]["content"] == messages[-1]["content"] else None


def _policy_error(error: Exception) -> Exception:
    if isinstance(error, ContextWindowOverflowException):
        return error
    call = failed_call(error) or failed_call(error.__cause__ or error)
    return PolicyError(str(getattr(call, "error", None) or error))


@functools.cache
def _openai() -> AsyncOpenAI:
    """The shared SDK client over our transport; it retries nothing, its key goes nowhere."""
    lib = importlib.import_module(
        "httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx"
    )
    return AsyncOpenAI(base_url=BASE_URL, http_client=async_client(lib), api_key="-", max_retries=0)
