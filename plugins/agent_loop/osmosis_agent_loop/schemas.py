"""What travels over the first-generation protocol, and tools; nothing given to them is lost."""

from __future__ import annotations

import json
import urllib.parse
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from osmosis_agent_loop.settings import (
    DEFAULT_MAX_METADATA_SIZE_BYTES,
    get_max_metadata_size_bytes,
    set_max_metadata_size_bytes,
)

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "InitResponse",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
]

MessageDict = dict[str, Any]
"""One chat message."""
SamplingParamsDict = dict[str, Any]
"""Sampling parameters of a model call."""


class _Open(BaseModel):
    """Keeps members it does not know, and writes only what was given or has a value."""

    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        declared, given = type(self).model_fields, self.model_fields_set
        return {
            name: value
            for name, value in written.items()
            if name not in declared or (value is not None and (value or name in given))
        }


class OpenAIFunctionPropertySchema(_Open):
    """One parameter: any JSON Schema."""

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Open):
    """The parameters of a function: any JSON Schema of an object."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema | bool] = Field(
        default_factory=dict[str, OpenAIFunctionPropertySchema | bool]
    )
    required: list[str] = Field(default_factory=list[str])


class OpenAIFunctionSchema(_Open):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = Field(
        default_factory=lambda: OpenAIFunctionParametersSchema(
            type="object", properties={}, required=[]
        )
    )
    strict: bool = False


class OpenAIFunctionToolSchema(_Open):
    """A tool that a model is offered."""

    type: str
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(_Open):
    """A function call as the model wrote it."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(_Open):
    """A function call with its arguments read."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed: OpenAIFunctionParsedSchema,
    ) -> tuple[OpenAIFunctionCallSchema, bool]:
        """The call, and True when its arguments were no JSON object and are left empty."""
        try:
            arguments: Any = json.loads(parsed.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return OpenAIFunctionCallSchema(name=parsed.name, arguments={}), True
        return OpenAIFunctionCallSchema.model_validate(
            {"name": parsed.name, "arguments": arguments}
        ), False


class OpenAIFunctionToolCall(_Open):
    """A tool call."""

    id: str
    type: str = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """What a tool answers: text, images, videos.

    Raises:
        pydantic.ValidationError: images or videos are no list (also a ValueError).
    """

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """True when there is nothing in it."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """True when there is text and nothing else."""
        return bool(self.text) and not (self.image or self.video)


class RolloutStatus(StrEnum):
    """How a rollout of an agent loop ended."""

    COMPLETED = "COMPLETED"
    ERROR = "ERROR"


class RolloutMetrics(BaseModel):
    """What a rollout took; latencies in milliseconds, from the start of `run` on."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0
    """Most tokens, prompt and answer, of one call."""


class RolloutRequest(BaseModel):
    """Body of `POST /v1/rollout/init` (protocol.md 1.1); unknown members are ignored."""

    rollout_id: Annotated[str, Field(min_length=1, max_length=256)]
    server_url: str
    """Base of the trainer's endpoints, `http` or `https`."""
    messages: list[MessageDict]
    completion_params: SamplingParamsDict
    """Sampling parameters that a loop passes on: `ctx.chat(messages, **completion_params)`."""
    tool_server_url: str | None = None
    max_turns: int = 10
    """For the loop to heed; nothing else does."""
    max_tokens_total: int = 8192
    """For the loop to heed; nothing else does."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    api_key: str | None = Field(default=None, repr=False)
    """Bearer key of the trainer's endpoints."""
    idempotency_key: str | None = None

    @field_validator("rollout_id")
    @classmethod
    def _not_blank(cls, rollout_id: str) -> str:
        if not rollout_id.strip():
            raise ValueError("rollout_id is blank; give 1 to 256 characters")
        return rollout_id

    @field_validator("server_url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("server_url needs the form http://host:port (https as well)")
        return url

    @field_validator("metadata")
    @classmethod
    def _not_huge(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        try:
            size = len(json.dumps(metadata).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"metadata cannot be written as JSON: {error}") from error
        limit = get_max_metadata_size_bytes()
        if size > limit:
            raise ValueError(f"metadata has {size} bytes as JSON; at most {limit} are accepted")
        return metadata


class InitResponse(BaseModel):
    """Answer to `POST /v1/rollout/init`."""

    rollout_id: str
    tools: list[OpenAIFunctionToolSchema] = Field(default_factory=list[OpenAIFunctionToolSchema])


class RolloutResponse(BaseModel):
    """Body of `POST /v1/rollout/completed`; members that are None are left out of it."""

    rollout_id: str
    status: RolloutStatus
    final_messages: list[MessageDict] = Field(default_factory=list[MessageDict])
    finish_reason: str | None = None
    error_message: str | None = None
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict[str, Any])


class CompletionsRequest(BaseModel):
    """Body of the trainer's `POST /v1/chat/completions`; a `stop` of None is left out."""

    model: str = "default"
    messages: list[MessageDict]
    rollout_id: Annotated[str, Field(min_length=1, max_length=256)]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


class CompletionUsage(BaseModel):
    """Tokens of a completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionsChoice(BaseModel):
    """One answer of a completion."""

    index: int = 0
    message: MessageDict
    finish_reason: str = "stop"


class CompletionsResponse(BaseModel):
    """Answer of the trainer's `POST /v1/chat/completions`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str = "default"
    choices: list[CompletionsChoice]
    usage: CompletionUsage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None
