"""What a loop asks the policy for, and what becomes of every bad answer (protocol.md 1.2)."""

import asyncio
import json
import math
import pickle

import pytest

from osmosis_agent_loop import (
    OsmosisLLMClient,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
    RolloutClientSettings,
)
from osmosis_agent_loop.testing import RolloutCompletionTracker, ServedApp, create_mock_trainer_app
from osmosis_core import PolicyError
from osmosis_core.testing import Cut, Delay, Malformed, Say, ScriptedPolicy, Status, Tool

FAST = RolloutClientSettings(retry_base_delay=0.1, max_retries=3)
HELLO = [{"role": "user", "content": "hello"}]


async def asked(*script, messages=HELLO, settings=FAST, api_key=None, **params):
    """One call of a trainer that follows the script: the answer (or error), and the requests."""
    with ScriptedPolicy(*script, repeat=False, api_key=api_key) as trainer:
        url = trainer.base_url.removesuffix("/v1")
        async with OsmosisLLMClient(f"{url}/", "r-1", api_key, settings=settings) as client:
            try:
                answer = await client.chat_completions(messages, **params)
            except PolicyError as error:
                answer = error
        return answer, trainer.requests


class TestRequest:
    async def test_trainer_gets_the_documented_fields_and_their_defaults(self):
        answer, (request,) = await asked("hi", api_key="sk-trainer")
        assert answer.content == "hi"
        assert request.body == {
            "model": "default",
            "messages": HELLO,
            "rollout_id": "r-1",
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 512,
            "logprobs": True,
        }
        assert request.headers["authorization"] == "Bearer sk-trainer"
        assert request.headers["content-type"] == "application/json"

    async def test_without_a_key_the_environments_is_not_sent(self, monkeypatch):
        monkeypatch.setenv("OSMOSIS_API_KEY", "sk-mine")
        _, (request,) = await asked("hi")
        assert "authorization" not in request.headers

    @pytest.mark.parametrize(("stop", "sent"), [("END", ["END"]), (["a"], ["a"]), (None, None)])
    async def test_single_stop_is_wrapped_and_a_null_one_left_out(self, stop, sent):
        _, (request,) = await asked("hi", stop=stop)
        assert request.body.get("stop") == sent
        assert ("stop" in request.body) == (stop is not None)

    async def test_known_extras_are_sent_and_others_are_named_once(self, caplog):
        with ScriptedPolicy("hi") as trainer:
            client = OsmosisLLMClient(trainer.base_url.removesuffix("/v1"), "r-1")
            for _ in range(2):
                await client.chat_completions(HELLO, top_k=5, colour="red", rollout_id="other")
        body = trainer.requests[0].body
        assert (body["top_k"], body["rollout_id"]) == (5, "r-1")
        assert "colour" not in body
        assert [text.split("'")[1] for text in client.warnings] == ["rollout_id", "colour"]
        assert caplog.text.count("colour") == 1

    async def test_what_is_no_json_is_refused_before_it_is_sent(self):
        error, requests = await asked("hi", messages=[{"content": object()}])
        assert isinstance(error, OsmosisValidationError)
        assert "cannot be written as JSON" in str(error) and requests == []


class TestAnswer:
    async def test_answer_has_message_usage_and_finish_reason(self):
        answer, _ = await asked(Say("hi", finish_reason="length"))
        assert answer.message["role"] == "assistant"
        assert (answer.content, answer.finish_reason) == ("hi", "length")
        assert (answer.has_tool_calls, answer.tool_calls) == (False, [])
        assert answer.usage["completion_tokens"] == 2

    async def test_tool_calls_are_a_list(self):
        answer, _ = await asked(Tool("add", {"a": 1}))
        assert answer.has_tool_calls
        assert answer.tool_calls[0]["function"]["name"] == "add"
        assert answer.content is None

    async def test_tokens_and_logprobs_of_a_trainer_are_read(self):
        body = completion(token_ids=[1, 2], logprobs=[-0.5, 0.0], prompt_token_ids=[3])
        answer, _ = await asked(Malformed(json.dumps(body), "application/json"))
        assert (answer.token_ids, answer.logprobs) == ([1, 2], [-0.5, 0.0])
        assert answer.prompt_token_ids == [3]

    async def test_nulls_are_empty(self):
        body = completion(token_ids=None, logprobs=None, prompt_token_ids=None, usage=None)
        answer, _ = await asked(Malformed(json.dumps(body), "application/json"))
        assert (answer.usage, answer.token_ids, answer.logprobs) == ({}, [], [])


def completion(**more):
    message = {"role": "assistant", "content": "hi"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 0, "choices": [choice], **more}


class TestFailures:
    @pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
    async def test_refusal_is_not_tried_again(self, status):
        error, requests = await asked(Status(status, "no such rollout"))
        assert isinstance(error, OsmosisValidationError)
        assert (error.status_code, len(requests)) == (status, 1)
        assert "no such rollout" in str(error)

    @pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
    async def test_trainer_in_trouble_is_tried_four_times(self, status):
        error, requests = await asked(*[Status(status, "busy")] * 4)
        assert isinstance(error, OsmosisServerError)
        assert (error.status_code, len(requests)) == (status, 4)

    @pytest.mark.parametrize("bad", [Status(500), Status(429, retry_after="0"), Cut(0)])
    async def test_retry_that_succeeds_is_an_answer(self, bad):
        answer, requests = await asked(bad, "hi")
        assert (answer.content, len(requests)) == ("hi", 2)

    @pytest.mark.parametrize(
        "bad", [Malformed("{not json", "application/json"), Malformed("[]", "application/json")]
    )
    async def test_garbage_is_tried_again_and_then_a_transport_error(self, bad):
        error, requests = await asked(*[bad] * 4)
        assert isinstance(error, OsmosisTransportError)
        assert len(requests) == 4 and "\n" not in str(error)

    async def test_silence_is_a_timeout(self):
        settings = FAST.model_copy(update={"timeout_seconds": 0.1, "max_retries": 0})
        error, requests = await asked(Delay("late", before_sec=1.0), settings=settings)
        assert isinstance(error, OsmosisTimeoutError)
        assert "stopped answering" in str(error) and len(requests) == 1

    async def test_nobody_there_is_a_transport_error(self):
        settings = FAST.model_copy(update={"max_retries": 0})
        client = OsmosisLLMClient("http://127.0.0.1:9", "r", settings=settings)
        with pytest.raises(OsmosisTransportError, match="cannot be reached"):
            await client.chat_completions(HELLO)

    async def test_keys_do_not_reach_the_error(self):
        error, _ = await asked(Status(400, "bad key sk-trainer"), api_key="sk-trainer")
        assert "sk-trainer" not in str(error)

    async def test_metrics_count_calls_and_tokens(self):
        with ScriptedPolicy("hi", "hello you") as trainer:
            client = OsmosisLLMClient(trainer.base_url.removesuffix("/v1"), "r-1")
            first = await client.chat_completions(HELLO)
            second = await client.chat_completions([*HELLO, first.message, *HELLO])
        metrics, usages = client.get_metrics(), (first.usage, second.usage)
        assert metrics.num_llm_calls == 2 and metrics.llm_latency_ms > 0
        assert metrics.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
        assert metrics.response_tokens == sum(usage["completion_tokens"] for usage in usages)
        assert metrics.max_context_tokens == second.usage["total_tokens"]

    def test_errors_survive_a_pickle(self):
        for error in (OsmosisServerError("busy", 503), OsmosisTransportError("gone")):
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class TestSettings:
    async def test_constructor_wins_over_settings(self):
        with ScriptedPolicy(Status(500)) as trainer:
            url = trainer.base_url.removesuffix("/v1")
            client = OsmosisLLMClient(url, "r", max_retries=1, settings=FAST)
            with pytest.raises(OsmosisServerError):
                await client.chat_completions(HELLO)
        assert len(trainer.requests) == 2

    async def test_settings_of_the_environment_are_honoured(self, monkeypatch):
        monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "0")
        error, requests = await asked(Status(500), settings=None)
        assert isinstance(error, OsmosisServerError) and len(requests) == 1

    async def test_no_more_calls_are_in_flight_than_max_connections(self):
        most = []

        with ScriptedPolicy(Delay("hi", before_sec=0.05)) as trainer:
            settings = RolloutClientSettings(max_connections=2)
            client = OsmosisLLMClient(
                trainer.base_url.removesuffix("/v1"), "r-1", settings=settings
            )
            calls = [asyncio.create_task(client.chat_completions(HELLO)) for _ in range(6)]
            while not all(call.done() for call in calls):
                most.append(len(trainer.requests) - sum(call.done() for call in calls))
                await asyncio.sleep(0.005)
        assert max(most) <= 2 and len(trainer.requests) == 6


class TestCompleteRollout:
    async def test_completion_has_no_nulls_and_reaches_the_trainer(self):
        tracker = RolloutCompletionTracker()
        with ServedApp(create_mock_trainer_app(tracker)) as trainer:
            async with OsmosisLLMClient(trainer.url, "r-1") as client:
                await client.complete_rollout("COMPLETED", HELLO, reward=0.5)
        assert tracker.responses == [
            {
                "rollout_id": "r-1",
                "status": "COMPLETED",
                "final_messages": HELLO,
                "finish_reason": "stop",
                "reward": 0.5,
                "extra_fields": {},
            }
        ]

    async def test_completion_that_nobody_takes_is_a_transport_error(self):
        client = OsmosisLLMClient("http://127.0.0.1:9", "r", complete_rollout_retries=0)
        with pytest.raises((OsmosisTransportError, OsmosisServerError), match="cannot be reached"):
            await client.complete_rollout("ERROR", [], error_message="no")

    async def test_reward_that_is_no_number_is_refused(self):
        with pytest.raises(ValueError, match="finite"):
            await OsmosisLLMClient("http://t", "r").complete_rollout(
                "COMPLETED", [], reward=math.nan
            )


class TestMockTrainer:
    """protocol.md 2.1, "Testing utilities"."""

    async def test_it_answers_by_rule(self):
        with ServedApp(create_mock_trainer_app()) as trainer:
            client = OsmosisLLMClient(trainer.url, "r-1")
            plain = await client.chat_completions(HELLO)
            ask = [{"role": "user", "content": "please calculate 5 plus 3"}]
            called = await client.chat_completions(ask)
            tool = {"role": "tool", "tool_call_id": "call_mock_add", "content": "8"}
            done = await client.chat_completions([*ask, called.message, tool])
        assert (plain.content, plain.token_ids) == ("OK.", [0, 1, 2])
        assert plain.prompt_token_ids == list(range(10))
        assert called.tool_calls[0]["id"] == "call_mock_add"
        assert called.tool_calls[0]["function"]["arguments"] == '{"a": 5, "b": 3}'
        assert done.content == "The calculation is complete."

    async def test_tracker_waits_for_a_completion_and_forgets(self):
        tracker = RolloutCompletionTracker()
        assert not await tracker.wait(timeout=0.01)
        tracker.record({"rollout_id": "r"})
        assert await tracker.wait()
        tracker.clear()
        assert tracker.responses == []

    async def test_tool_calls_can_be_made_by_the_test(self):
        calls = [{"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}]
        app = create_mock_trainer_app(tool_call_generator=lambda message: calls)
        with ServedApp(app) as trainer:
            answer = await OsmosisLLMClient(trainer.url, "r").chat_completions(HELLO)
        assert answer.tool_calls == calls
