"""The policy as a LangChain chat model: created anywhere, bound to its rollout when called."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import Field, SecretStr, model_validator

from osmosis_core import PolicyError, PolicyNotBoundError, get_rollout_context
from osmosis_core.errors import describe
from osmosis_core.policy import BASE_URL, MODEL, async_client, bound_headers, client, current_scope
from osmosis_langgraph.watch import Watch

_KEY = SecretStr("-")
_DECIDED = ("model", "model_name", "base_url", "openai_api_base", "api_key", "max_retries")
_OWN = (None, MODEL, BASE_URL, _KEY, 0)


def _http_library() -> Any:
    return importlib.import_module("httpx2" if int(openai.VERSION.split(".")[0]) >= 3 else "httpx")


class ChatOsmosis(BaseChatOpenAI):
    """The current policy; give it to any agent, chain or node.

    `ChatOsmosis(temperature=1.0, max_tokens=512)` holds no rollout: it may live at module level
    and be shared by any number of graphs and rollouts. Its parameters are those of
    `BaseChatOpenAI`, less what the active rollout decides: model, URL, key and retries.

    Raises:
        TypeError: it was given a parameter that the active rollout decides.
        PolicyNotBoundError: it was called outside a rollout.
        PolicyError: a call failed for good; the transport has retried it already.
    """

    sample_id: str | None = None
    """Sample that all calls belong to, whoever makes them; by default the calling agent's."""
    trainable: bool = True
    """False for helper agents: their calls are recorded, and never trained on."""

    model_name: str = Field(default=MODEL, alias="model")
    openai_api_base: str | None = Field(default=BASE_URL, alias="base_url")
    openai_api_key: Any = Field(default=_KEY, alias="api_key")
    openai_proxy: str | None = None
    max_retries: int | None = 0
    use_responses_api: bool | None = False
    stream_usage: bool | None = True
    stream_chunk_timeout: float | None = None
    http_socket_options: Any = ()
    http_client: Any = Field(default_factory=lambda: client(_http_library()), exclude=True)
    http_async_client: Any = Field(
        default_factory=lambda: async_client(_http_library()), exclude=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_decided(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in _DECIDED:
            if values.get(name) not in _OWN:
                raise TypeError(
                    f"{cls.__name__} takes no {name}: the active rollout says where the policy "
                    "is and how often it is asked; parameters of the endpoint go into extra_body"
                )
        return values

    @property
    def _llm_type(self) -> str:
        return "chat-osmosis"

    def get_num_tokens_from_messages(self, messages: Any, *args: Any, **kwargs: Any) -> int:
        """About how many tokens the messages have; the policy's tokenizer is not known here."""
        return count_tokens_approximately(messages)

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        with self._called(args, options):
            return super()._generate(*args, **options)

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        with self._called(args, options):
            return await super()._agenerate(*args, **options)

    def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        with self._called(args, options):
            yield from super()._stream(*args, **options)

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        with self._called(args, options):
            stream: Any = super()._astream(*args, **options)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    yield chunk

    @contextmanager
    def _called(self, args: tuple[Any, ...], options: dict[str, Any]) -> Generator[None]:
        """Label the call with the agent that makes it; the SDK's errors become ours."""
        rollout = get_rollout_context()
        if rollout is None:
            raise PolicyNotBoundError(type(self).__name__)
        agent = Watch.active().claim(rollout, self.sample_id, args[0])
        is_trainable = self.trainable and current_scope().trainable
        labels = bound_headers(rollout, agent.sample_id, trainable=is_trainable)
        options["extra_headers"] = {**(options.get("extra_headers") or {}), **labels}
        try:
            yield
        except openai.APIError as error:
            if isinstance(error, ContextOverflowError):
                raise
            raise PolicyError(describe(error)) from error


OsmosisRolloutModel = ChatOsmosis
