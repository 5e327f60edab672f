"""Schemas and settings (protocol.md 1.1, 1.2 and 2.1, "Schemas", "Settings")."""

import json

import pytest
from pydantic import ValidationError

from osmosis_agent_loop import (
    RolloutClientSettings,
    RolloutSettings,
    configure,
    get_settings,
    reset_settings,
    schemas,
)
from osmosis_agent_loop.schemas import (
    CompletionsRequest,
    InitResponse,
    OpenAIFunctionCallSchema,
    OpenAIFunctionParametersSchema,
    OpenAIFunctionParsedSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolCall,
    OpenAIFunctionToolSchema,
    RolloutRequest,
    RolloutResponse,
    ToolResponse,
)
from osmosis_agent_loop.settings import RolloutServerSettings

REQUEST = {"rollout_id": "r", "server_url": "http://t:1", "messages": [], "completion_params": {}}
RICH = {
    "type": "function",
    "x-vendor": 1,
    "function": {
        "name": "search",
        "description": "Search",
        "parameters": {
            "type": "object",
            "properties": {
                "tags": {"type": "array", "items": {"type": "string"}, "default": None},
                "depth": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
                "where": {"$ref": "#/$defs/Where"},
                "kind": {"enum": [1, "two", None]},
                "any": True,
            },
            "additionalProperties": False,
            "$defs": {"Where": {"type": "object", "properties": {"x": {"type": "number"}}}},
        },
    },
}


class TestTools:
    def test_json_schema_of_any_kind_survives(self):
        assert OpenAIFunctionToolSchema.model_validate(RICH).model_dump() == RICH
        response = InitResponse.model_validate({"rollout_id": "r", "tools": [RICH]})
        assert json.loads(response.model_dump_json())["tools"] == [RICH]

    def test_documented_construction_has_no_nulls(self):
        tool = OpenAIFunctionToolSchema(
            type="function",
            function=OpenAIFunctionSchema(
                name="search",
                description="Search for information",
                parameters=OpenAIFunctionParametersSchema(
                    type="object",
                    properties={"query": OpenAIFunctionPropertySchema(type="string")},
                    required=["query"],
                ),
            ),
        )
        assert tool.model_dump()["function"]["parameters"] == {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        }
        assert (tool.function.strict, tool.function.parameters.required) == (False, ["query"])

    def test_function_without_parameters_has_an_empty_object(self):
        bare = OpenAIFunctionSchema(name="now", description="The time")
        assert bare.model_dump()["parameters"]["type"] == "object"

    def test_null_padded_tools_of_other_servers_are_read(self):
        padded = {"type": "string", "description": None, "enum": None}
        assert OpenAIFunctionPropertySchema.model_validate(padded).model_dump() == {
            "type": "string"
        }

    @pytest.mark.parametrize(
        ("arguments", "read"),
        [('{"a": 1}', ({"a": 1}, False)), ("{a", ({}, True)), ("[1]", ({}, True))],
    )
    def test_call_is_read_from_what_the_model_wrote(self, arguments, read):
        parsed = OpenAIFunctionParsedSchema(name="add", arguments=arguments)
        call, has_error = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(parsed)
        assert (call.arguments, has_error) == read
        assert OpenAIFunctionToolCall(id="c", function=call).model_dump()["type"] == "function"

    def test_tool_response_says_what_is_in_it(self):
        assert ToolResponse().is_empty() and not ToolResponse(text="x").is_empty()
        assert ToolResponse(text="x").is_text_only()
        assert not ToolResponse(text="x", image=["i"]).is_text_only()
        with pytest.raises(ValueError, match="image"):
            ToolResponse(image="not a list")


class TestRolloutRequest:
    def test_defaults_are_the_documented_ones(self):
        request = RolloutRequest(**REQUEST, unknown="ignored")
        assert (request.max_turns, request.max_tokens_total, request.metadata) == (10, 8192, {})
        optional = request.tool_server_url, request.api_key, request.idempotency_key
        assert optional == (None, None, None)

    @pytest.mark.parametrize("missing", sorted(REQUEST))
    def test_required_fields_are_required(self, missing):
        with pytest.raises(ValidationError, match=missing):
            RolloutRequest(**{k: v for k, v in REQUEST.items() if k != missing})

    @pytest.mark.parametrize(
        ("changed", "text"),
        [
            ({"rollout_id": ""}, "at least 1"),
            ({"rollout_id": "  "}, "is blank"),
            ({"rollout_id": "x" * 257}, "at most 256"),
            ({"server_url": "ftp://t"}, "needs the form"),
            ({"server_url": "http://"}, "needs the form"),
            ({"metadata": {"x": "y" * 2**20}}, "metadata has 1048585 bytes"),
        ],
    )
    def test_each_limit_is_held(self, changed, text):
        with pytest.raises(ValidationError, match=text):
            RolloutRequest(**{**REQUEST, **changed})

    def test_key_is_not_shown(self):
        assert "sk-secret" not in repr(RolloutRequest(**REQUEST, api_key="sk-secret"))

    def test_limit_of_metadata_comes_from_the_settings_or_the_setter(self, monkeypatch):
        monkeypatch.setenv("OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES", "2000")
        assert schemas.get_max_metadata_size_bytes() == 2000
        schemas.set_max_metadata_size_bytes(20)
        with pytest.raises(ValidationError, match="at most 20 are accepted"):
            RolloutRequest(**REQUEST, metadata={"x": "y" * 20})
        with pytest.raises(ValueError, match="1 or more"):
            schemas.set_max_metadata_size_bytes(0)
        assert schemas.DEFAULT_MAX_METADATA_SIZE_BYTES == 1_048_576


def test_response_leaves_out_what_is_none():
    response = RolloutResponse(rollout_id="r", status="ERROR", finish_reason="error")
    assert response.model_dump(exclude_none=True, mode="json") == {
        "rollout_id": "r",
        "status": "ERROR",
        "final_messages": [],
        "finish_reason": "error",
        "extra_fields": {},
    }


def test_completions_request_has_the_documented_defaults():
    request = CompletionsRequest(messages=[], rollout_id="r").model_dump(exclude_none=True)
    assert request == {
        "model": "default",
        "messages": [],
        "rollout_id": "r",
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 512,
        "logprobs": True,
    }


class TestSettings:
    @pytest.mark.parametrize(
        ("kind", "prefix", "field", "default", "low", "high"),
        [
            (RolloutClientSettings, "CLIENT_", "timeout_seconds", 300.0, 1, 3600),
            (RolloutClientSettings, "CLIENT_", "max_retries", 3, 0, 10),
            (RolloutClientSettings, "CLIENT_", "complete_rollout_retries", 2, 0, 10),
            (RolloutClientSettings, "CLIENT_", "retry_base_delay", 1.0, 0.1, 60),
            (RolloutClientSettings, "CLIENT_", "retry_max_delay", 30.0, 1, 300),
            (RolloutClientSettings, "CLIENT_", "max_connections", 100, 1, 1000),
            (RolloutClientSettings, "CLIENT_", "max_keepalive_connections", 20, 1, 100),
            (RolloutServerSettings, "SERVER_", "max_concurrent_rollouts", 100, 1, 10_000),
            (RolloutServerSettings, "SERVER_", "record_ttl_seconds", 3600.0, 60, 86_400),
            (RolloutServerSettings, "SERVER_", "cleanup_interval_seconds", 60.0, 10, 3600),
            (RolloutServerSettings, "SERVER_", "request_timeout_seconds", 600.0, 10, 3600),
            (
                RolloutServerSettings,
                "SERVER_",
                "registration_readiness_timeout_seconds",
                10.0,
                1,
                60,
            ),
            (
                RolloutServerSettings,
                "SERVER_",
                "registration_readiness_poll_interval_seconds",
                0.2,
                0.05,
                5,
            ),
            (
                RolloutServerSettings,
                "SERVER_",
                "registration_shutdown_timeout_seconds",
                30.0,
                1,
                300,
            ),
            (RolloutSettings, "", "max_metadata_size_bytes", 1_048_576, 1024, 104_857_600),
        ],
    )
    def test_each_has_its_default_range_and_variable(
        self, kind, prefix, field, default, low, high, monkeypatch
    ):
        assert getattr(kind(), field) == default
        for bound in (low, high):
            monkeypatch.setenv(f"OSMOSIS_ROLLOUT_{prefix}{field.upper()}", str(bound))
            assert getattr(kind(), field) == bound
        for beyond in (low - 1, high + 1):
            with pytest.raises(ValidationError, match=field):
                kind(**{field: beyond})

    def test_dotenv_is_read_and_unknown_variables_are_ignored(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=7\nOSMOSIS_ROLLOUT_CLIENT_COLOUR=red\n"
        (tmp_path / ".env").write_text(text)
        assert RolloutSettings().client.max_retries == 7

    def test_process_has_one_until_it_is_configured_or_reset(self, monkeypatch):
        assert get_settings() is get_settings()
        mine = RolloutSettings(client=RolloutClientSettings(max_retries=1))
        configure(mine)
        assert get_settings() is mine
        monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "9")
        reset_settings()
        assert get_settings().client.max_retries == 9

    def test_client_settings_are_the_transports_retry_policy(self):
        settings = RolloutClientSettings(max_retries=2, retry_base_delay=0.5, retry_max_delay=4)
        retry = settings.retry
        assert (retry.max_attempts, retry.base_delay_sec, retry.max_delay_sec) == (3, 0.5, 4.0)
