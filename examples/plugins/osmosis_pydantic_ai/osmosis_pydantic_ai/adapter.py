"""The policy as a model of Pydantic AI, and agents whose calls and messages become samples."""

import copy
import json
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import httpx2
from openai import AsyncOpenAI
from pydantic_ai import Agent, AgentRunError, ModelMessage, ModelMessagesTypeAdapter, ModelSettings
from pydantic_ai import messages as native
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import osmosis_core as osmosis
from osmosis_core import get_rollout_context, policy
from osmosis_core.errors import describe


class OsmosisModel(OpenAIChatModel):
    """The current policy; give it to any agent: `OsmosisModel({"temperature": 1.0})`.

    It holds no connection: it may live at module level and be shared by any number of agents and
    rollouts. The training cluster decides which policy it serves.
    """

    def __init__(self, settings: ModelSettings | None = None) -> None:
        profile: Any = {
            "may_tokenize_special_tokens_in_content": False,  # the policy sees what the prompt says
            "openai_chat_supports_max_completion_tokens": False,
        }
        http, url = policy.async_client(httpx2), policy.BASE_URL
        client = AsyncOpenAI(base_url=url, http_client=http, api_key="-", max_retries=0)
        provider = OpenAIProvider(openai_client=client)
        super().__init__(policy.MODEL, provider=provider, profile=profile, settings=settings)

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        """Call the policy; see `pydantic_ai.models.Model.request`.

        Raises:
            PolicyNotBoundError: no rollout is active.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        with _policy_errors():
            return await super().request(*args, **kwargs)

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Call the policy and stream its answer; errors as `request`."""
        with _policy_errors():
            async with super().request_stream(*args, **kwargs) as stream:
                yield stream


@contextmanager
def _policy_errors() -> Generator[None]:
    if get_rollout_context() is None:
        raise osmosis.PolicyNotBoundError("OsmosisModel")
    try:
        yield
    except AgentRunError as error:
        raise osmosis.PolicyError(describe(error)) from error


class AgentHistory(osmosis.SampleSource):
    """The messages of an agent in one rollout, once each, also those that processors drop."""

    def __init__(self) -> None:
        self._told: dict[str, osmosis.Message] = {}

    def tell(self, messages: Sequence[ModelMessage]) -> None:
        """Take in those that are new: runs complete a message's fields, but never its parts."""
        for message in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"):
            said_at = message["timestamp"] if message["kind"] == "response" else None
            self._told[json.dumps([said_at, message["parts"]])] = message

    async def get_sample(self, sample_id: str) -> osmosis.RolloutSample:
        """The sample, in the framework's own message shape."""
        return osmosis.RolloutSample(id=sample_id, messages=copy.deepcopy([*self._told.values()]))


_histories: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def history_of(agent: Agent[Any, Any], rollout: osmosis.RolloutContext) -> AgentHistory:
    """The history of an agent in a rollout, which holds the agent from its registration on."""
    return _histories.setdefault(rollout, {}).setdefault(id(agent), AgentHistory())


def adapt(source: object) -> osmosis.SampleSource | None:
    """The sample source of an agent in the active rollout; None for anything else."""
    rollout = get_rollout_context()
    return history_of(source, rollout) if rollout and isinstance(source, Agent) else None


class OsmosisRollout(AbstractCapability[Any]):
    """Makes an agent a sample of the active rollout, under its name: `Agent(capabilities=[...])`.

    A name that is taken gets `-2`. Without a rollout it does nothing.
    """

    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        """Keep what came after the last call, such as the results of output tools."""
        if (rollout := get_rollout_context()) is not None:
            history_of(ctx.agent, rollout).tell(result.all_messages())
        return result

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        """Label the call with the agent's sample, whatever task it is made in."""
        if (rollout := get_rollout_context()) is None:
            return await handler(request_context)
        trainable, history = policy.current_scope().trainable, history_of(ctx.agent, rollout)
        labels = policy.bound_headers(rollout, _sample_id(ctx, rollout), trainable=trainable)
        settings = request_context.model_settings or {}
        settings = {**settings, "extra_headers": {**settings.get("extra_headers", {}), **labels}}
        history.tell(request_context.messages)
        answer = await handler(replace(request_context, model_settings=settings))
        history.tell([answer])
        return answer

    async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
        """Say whose tool runs, so that an agent that it starts knows who started it."""
        if (rollout := get_rollout_context()) is not None:
            policy.in_tool_of(_sample_id(ctx, rollout))
        return await handler(args)


def _sample_id(ctx: Any, rollout: osmosis.RolloutContext) -> str:
    return rollout.register_agent(ctx.agent.name or ctx.run_id, ctx.agent, derived=True)


class OsmosisAgent(Agent[Any, Any]):
    """`pydantic_ai.Agent` on the policy, with OsmosisRollout; takes the same arguments."""

    def __init__(self, model: Any = None, *, capabilities: Any = (), **options: Any) -> None:
        given = [*capabilities, OsmosisRollout()]
        super().__init__(model or OsmosisModel(), capabilities=given, **options)


def message_history(prompt: Sequence[osmosis.Message]) -> list[ModelMessage]:
    """Chat messages for `agent.run(message_history=message_history(ctx.prompt))`.

    Text, images by URL, tool calls and their results are carried; the prompt is not changed.

    Raises:
        KeyError: a message lacks what its role needs, or has parts other than text and images.
    """
    calls = [call for message in prompt for call in message.get("tool_calls") or ()]
    names = {call["id"]: call["function"]["name"] for call in calls}
    return [_native(message, names) for message in prompt]


def _native(message: osmosis.Message, names: dict[str, str]) -> ModelMessage:
    content: Any = message.get("content")
    match message["role"]:
        case "assistant":
            said: list[Any] = [native.TextPart(content)] if content else []
            return native.ModelResponse([*said, *map(_call, message.get("tool_calls") or ())])
        case "tool":
            name = names[message["tool_call_id"]]
            part: Any = native.ToolReturnPart(name, content, message["tool_call_id"])
        case "user" if not isinstance(content, str):
            part = native.UserPromptPart([_part(each) for each in content])
        case role:
            part = (native.UserPromptPart if role == "user" else native.SystemPromptPart)(content)
    return native.ModelRequest([part])


def _call(call: osmosis.Message) -> native.ToolCallPart:
    return native.ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])


def _part(part: osmosis.Message) -> str | native.ImageUrl:
    return part["text"] if part["type"] == "text" else native.ImageUrl(part["image_url"]["url"])
