"""Loops, their context and their result (protocol.md 2.1, "Agent loop")."""

import json
import math
from fractions import Fraction

import pytest

from osmosis_agent_loop import (
    AgentLoopNotFoundError,
    AgentLoopRegistry,
    CompletionsResult,
    RolloutAgentLoop,
    RolloutContext,
    RolloutMetrics,
    RolloutRequest,
    RolloutResult,
    execute_tool_calls,
    get_agent_loop,
    list_agent_loops,
    register_agent_loop,
    unregister_agent_loop,
)
from osmosis_agent_loop.debug import log_file
from osmosis_agent_loop.tools import on_executed


class Parrot:
    """A client of the user's own, as for their tests."""

    async def chat_completions(self, messages, **params):
        return CompletionsResult({"role": "assistant", "content": messages[-1]["content"]})

    def get_metrics(self):
        return RolloutMetrics(num_llm_calls=7)


def request(**fields):
    defaults = {"rollout_id": "r", "server_url": "http://t", "messages": []}
    return RolloutRequest(**{**defaults, "completion_params": {}, **fields})


def context(**fields):
    return RolloutContext(request(), [], Parrot(), **fields)


class Named(RolloutAgentLoop):
    name = "named"

    def get_tools(self, request):
        return [request.rollout_id]

    async def run(self, ctx):
        raise AssertionError


class TestRolloutAgentLoop:
    @pytest.mark.parametrize("name", [None, ""])
    def test_concrete_subclass_without_a_name_is_a_type_error(self, name):
        members = {"get_tools": Named.get_tools, "run": Named.run, "name": name}
        with pytest.raises(TypeError, match="agent loop Nameless has no name; write"):
            type("Nameless", (RolloutAgentLoop,), members)

    def test_abstract_base_needs_no_name_and_its_subclass_does(self):
        class Base(RolloutAgentLoop):
            def get_tools(self, request):
                return []

        with pytest.raises(TypeError, match="abstract"):
            Base()
        with pytest.raises(TypeError, match="agent loop Last has no name"):
            type("Last", (Base,), {"run": Named.run})

    def test_name_is_inherited(self):
        assert type("Child", (Named,), {}).name == "named"

    def test_default_tools_are_those_for_a_request_that_says_nothing(self):
        assert Named().get_default_tools() == ["discovery"]


class TestContext:
    async def test_chat_passes_messages_and_parameters_to_the_client(self):
        hello = [{"role": "user", "content": "hello"}]
        ctx = context()
        assert (await ctx.chat(hello, temperature=0.1)).content == "hello"
        assert (await ctx.chat(messages=hello)).content == "hello"

    async def test_chat_without_a_list_of_messages_says_so(self):
        with pytest.raises(TypeError, match=r"ctx\.chat\(\) was given str; give a list"):
            await context().chat("hello")

    def test_complete_has_the_documented_defaults_and_metrics(self):
        result = context().complete([{"role": "user"}])
        assert (result.status, result.finish_reason, result.reward) == ("COMPLETED", "stop", None)
        assert result.final_messages == [{"role": "user"}]
        assert result.metrics.num_llm_calls == 7
        assert result.metrics.total_latency_ms > 0

    def test_complete_and_error_take_the_sdks_names_too(self):
        ctx, said = context(), [{"role": "user"}]
        assert ctx.complete(final_messages=said).final_messages == said
        failed = ctx.error(error_message="no", final_messages=said)
        assert (failed.error_message, failed.final_messages) == ("no", said)

    def test_error_has_the_documented_defaults(self):
        result = context().error("no key")
        assert (result.status, result.finish_reason) == ("ERROR", "error")
        assert (result.error_message, result.final_messages) == ("no key", [])
        assert result.is_error and result.metrics is not None

    def test_recorded_tool_calls_are_counted_with_their_latency(self):
        ctx = context()
        ctx.record_tool_call(latency_ms=20.0)
        ctx.record_tool_call()
        metrics = ctx.complete([]).metrics
        assert (metrics.num_tool_calls, metrics.tool_latency_ms) == (2, 20.0)

    @pytest.mark.parametrize("recorded", [0, 1])
    async def test_executed_tool_calls_count_unless_the_loop_records_its_own(self, recorded):
        ctx = context()
        token = on_executed.set(ctx.count_executed)
        await execute_tool_calls([{}, {}, {}], _answered)
        on_executed.reset(token)
        for _ in range(recorded):
            ctx.record_tool_call()
        assert ctx.complete([]).metrics.num_tool_calls == (recorded or 3)

    @pytest.mark.parametrize("reward", [math.nan, math.inf, "1", True, [], 10**400])
    def test_reward_that_is_no_finite_number_is_refused_where_it_is_given(self, reward):
        with pytest.raises(ValueError, match="give a finite number, or None"):
            context().complete([], reward=reward)
        with pytest.raises(ValueError, match="give a finite number"):
            RolloutResult("COMPLETED", [], "stop", reward=reward)

    @pytest.mark.parametrize("reward", [1, 0.5, Fraction(1, 2)])
    def test_reward_becomes_a_float(self, reward):
        assert isinstance(context().complete([], reward=reward).reward, float)

    def test_status_is_one_of_the_two(self):
        with pytest.raises(ValueError, match="DONE"):
            RolloutResult("DONE", [], "stop")


async def _answered(call):
    return call


class TestDebugLog:
    def events(self, folder, rollout_id="r"):
        text = log_file(folder, rollout_id).read_text()
        return [json.loads(line) for line in text.splitlines()]

    def test_without_a_directory_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        ctx = context()
        ctx.log_event("agent_start")
        assert not ctx.debug_enabled
        assert list(tmp_path.iterdir()) == []

    def test_each_event_is_a_line_of_the_rollouts_file(self, tmp_path):
        ctx = context(_debug_dir=str(tmp_path / "logs"))
        ctx.log_event("pre_llm", turn=1, what=Fraction(1, 2))
        ctx.log_event(event_type="sdk")
        assert ctx.debug_enabled
        assert self.events(tmp_path / "logs") == [
            {"event": "pre_llm", "rollout_id": "r", "turn": 1, "what": "1/2"},
            {"event": "sdk", "rollout_id": "r"},
        ]

    @pytest.mark.parametrize("rollout_id", ["../../x", "/etc/x", "..", "a\\b", "x" * 256, "a b/é"])
    def test_hostile_rollout_id_stays_in_the_directory(self, rollout_id, tmp_path):
        logs = tmp_path / "logs"
        ctx = RolloutContext(request(rollout_id=rollout_id), [], Parrot(), _debug_dir=logs)
        ctx.log_event("here")
        assert [p.parent for p in tmp_path.rglob("*") if p.is_file()] == [logs]
        assert self.events(logs, rollout_id)[0]["rollout_id"] == rollout_id

    def test_directory_that_cannot_be_written_is_a_warning(self, tmp_path, caplog):
        (tmp_path / "logs").write_text("a file")
        context(_debug_dir=tmp_path / "logs").log_event("lost")
        assert "event 'lost' is not logged" in caplog.text


class TestRegistry:
    def test_loops_are_found_by_name_until_they_are_unregistered(self):
        registry, loop = AgentLoopRegistry(), Named()
        registry.register(loop)
        assert (registry.get("named"), registry.list_names()) == (loop, ["named"])
        assert (registry.unregister("named"), registry.unregister("named")) == (True, False)
        assert registry.get("named") is None

    def test_taken_name_is_a_value_error(self):
        registry = AgentLoopRegistry()
        registry.register(Named())
        with pytest.raises(ValueError, match="agent loop 'named' is registered"):
            registry.register(Named())
        registry.clear()
        assert registry.list_names() == []

    def test_global_registry_names_what_there_is(self):
        register_agent_loop(Named())
        try:
            assert (get_agent_loop("named").name, list_agent_loops()) == ("named", ["named"])
            with pytest.raises(AgentLoopNotFoundError, match="there is named") as caught:
                get_agent_loop("x")
            assert (caught.value.name, caught.value.available) == ("x", ["named"])
        finally:
            assert unregister_agent_loop("named")
