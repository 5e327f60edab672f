"""An agent loop is a workflow: graded, recorded, pickled, mixed with other agents."""

import pickle
import sys

import pytest

from osmosis_agent_loop import (
    AgentLoopConfig,
    AgentLoopError,
    AgentLoopWorkflow,
    RolloutAgentLoop,
    agent_loop_program,
    run_agent_loop,
)
from osmosis_core import (
    AgentWorkflow,
    ConfigError,
    ExecutionRequest,
    Grader,
    LocalBackend,
    NoActiveRolloutError,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_core.testing import Delay, Say, ScriptedPolicy, Status, Tool


class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(0.25 if ctx.label in ctx.sample.messages[-1]["content"] else 0.0)


async def test_loop_is_a_sample_recorded_call_by_call(world):
    with ScriptedPolicy("42") as policy:
        result = await world.execute(world.Once(), policy)
    sample = result.samples["once"]
    assert (result.status, sample.reward) == (RolloutStatus.SUCCESS, 1.0)
    assert [message["role"] for message in sample.messages] == ["user", "assistant"]
    assert [call.sample_id for call in sample.calls] == ["once"]
    assert sample.metrics["num_llm_calls"] == 1
    assert policy.requests[0].body["tools"] == [world.ADD]
    assert policy.requests[0].sample_id == "once"


async def test_any_grader_may_grade_it(world):
    with ScriptedPolicy("it is 42") as policy:
        result = await world.execute(world.Once(), policy, grader=Right, label="42")
    assert result.samples["once"].reward == 0.25


async def test_only_what_the_loop_asks_for_is_asked_of_an_ordinary_policy(world):
    async def body(ctx):
        await ctx.chat([], stop="END", seed=3, model="mine", anything=1)
        return ctx.complete([])

    with ScriptedPolicy("42") as policy:
        await world.execute(world.Once(body, tools=()), policy)
    sent = policy.requests[0].body
    assert (sent["stop"], sent["seed"], sent["anything"]) == (["END"], 3, 1)
    assert sent["model"] == "osmosis-rollout"
    assert not {"temperature", "max_tokens", "tools", "rollout_id"} & sent.keys()


async def test_config_says_what_no_trainer_says(world):
    seen = []

    async def body(ctx):
        seen.append(ctx.request)
        return ctx.complete([])

    config = {"max_turns": 2, "max_tokens_total": 9, "completion_params": {"top_p": 0.5}}
    with ScriptedPolicy() as policy:
        await world.execute(world.Once(body), policy, metadata={"x": 1}, **config)
    assert seen[0].model_dump(include=set(config)) == config
    assert (seen[0].rollout_id, seen[0].metadata) == ("row-0", {"x": 1})
    assert seen[0].messages == world.PROMPT


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        (Status(400, "no"), RolloutErrorCategory.HTTP_ERROR),
        (Say("cut", finish_reason="length"), None),
    ],
)
async def test_policy_that_fails_is_an_http_error_and_a_cut_answer_a_truncated_sample(
    world, answer, category
):
    with ScriptedPolicy(answer) as policy:
        result = await world.execute(world.Once(), policy)
    assert result.err_category is category
    assert result.samples["once"].truncated is (category is None)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (RuntimeError("boom"), RolloutErrorCategory.AGENT_ERROR),
        (ValueError("boom"), RolloutErrorCategory.VALIDATION_ERROR),
        (TimeoutError("boom"), RolloutErrorCategory.TIMEOUT),
    ],
)
async def test_loop_that_raises_fails_with_the_kernels_categories(world, error, category):
    async def body(ctx):
        await ctx.chat(ctx.request.messages)
        raise error

    with ScriptedPolicy("42") as policy:
        result = await world.execute(world.Once(body), policy)
    assert (result.status, result.err_message) == (RolloutStatus.FAILURE, "boom")
    assert result.err_category is category
    assert result.samples["once"].messages[-1]["content"] == "42"  # told from the wire


async def test_error_result_fails_the_rollout_and_keeps_what_it_says(world):
    async def body(ctx):
        return ctx.error("no luck", final_messages=[{"role": "user", "content": "x"}])

    with ScriptedPolicy() as policy:
        result = await world.execute(world.Once(body), policy)
    assert (result.status, result.err_message) == (RolloutStatus.FAILURE, "no luck")
    said = result.samples["once"].extra_fields["agent_loop"]
    assert said == {"status": "ERROR", "finish_reason": "error", "error_message": "no luck"}


async def test_get_tools_that_returns_rubbish_fails_before_any_call(world):
    with ScriptedPolicy() as policy:
        result = await world.execute(world.Once(tools=["add"]), policy)
    assert result.status is RolloutStatus.FAILURE and policy.requests == []
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "get_tools() of agent loop 'once'" in result.err_message


async def test_loop_runs_beside_other_agents_and_starts_them_in_its_tools(world):
    class Helper(world.Once):
        name = "helper"

    async def body(ctx):
        answer = await ctx.chat(ctx.request.messages)
        inner = await run_agent_loop(Helper(), [{"role": "user", "content": "help"}])
        return ctx.complete([*ctx.request.messages, answer.message, *inner.final_messages])

    class Team(AgentWorkflow):
        async def run(self, ctx):
            await run_agent_loop(world.Once(body), ctx.prompt, max_turns=3)
            await run_agent_loop(world.Once(), ctx.prompt)

    results = []

    async def keep(result):
        results.append(result)

    with ScriptedPolicy(Tool("add"), "helped", "again") as policy, policy.rollout():
        await LocalBackend(workflow=Team).execute(ExecutionRequest("r", world.PROMPT), keep)
    samples = results[0].samples
    assert list(samples) == ["once", "helper", "once-2"]
    assert samples["helper"].calls[0].started_by == samples["once"].calls[0].index


async def test_loop_outside_a_rollout_says_what_to_do(world):
    with pytest.raises(NoActiveRolloutError, match="run_agent_loop needs an active rollout"):
        await run_agent_loop(world.Once(), [])


async def test_rewritten_history_is_in_the_sample(world):
    async def body(ctx):
        first = await ctx.chat([{"role": "user", "content": "one"}])
        await ctx.chat([{"role": "user", "content": "two"}, first.message, *world.PROMPT])
        return ctx.complete([])

    with ScriptedPolicy("a", "b") as policy:
        result = await world.execute(world.Once(body), policy)
    sample = result.samples["once"]
    assert len(sample.findings) == len(sample.extra_fields["warnings"]) == 1


async def test_deadline_of_the_rollout_ends_a_call(world):
    with ScriptedPolicy(Delay("late", before_sec=5)) as policy, policy.rollout():
        program, results = agent_loop_program(world.Once()), []

        async def keep(result):
            results.append(result)

        backend = LocalBackend(workflow=program.workflow, workflow_config=program.workflow_config)
        request = ExecutionRequest("r", world.PROMPT, agent_timeout_sec=0.2)
        await backend.execute(request, keep)
    assert results[0].err_category is RolloutErrorCategory.TIMEOUT


class TestReference:
    LOOP = """
import threading
from osmosis_agent_loop import RolloutAgentLoop

class Locked(RolloutAgentLoop):
    name = "locked"
    def __init__(self): self.lock = threading.Lock()
    def get_tools(self, request): return []
    async def run(self, ctx): return ctx.complete([])

agent_loop = Locked()
"""

    @pytest.fixture
    def locked(self, tmp_path, monkeypatch):
        (tmp_path / "locked_loop.py").write_text(self.LOOP)
        monkeypatch.syspath_prepend(tmp_path)
        yield "locked_loop:agent_loop"
        sys.modules.pop("locked_loop", None)

    def test_loop_that_cannot_be_pickled_travels_by_the_name_of_its_global(self, locked):
        config = AgentLoopConfig(loop=locked)
        again = pickle.loads(pickle.dumps(config))
        assert config.name == again.name == "locked"
        assert again.agent_loop is sys.modules["locked_loop"].agent_loop

    def test_loop_without_a_global_travels_by_value(self):
        again = pickle.loads(pickle.dumps(AgentLoopConfig(loop=Plain(7))))
        assert again.agent_loop.number == 7

    def test_one_loop_serves_all_rollouts(self, locked):
        config = AgentLoopConfig(loop=locked)
        assert config.for_rollout().agent_loop is config.agent_loop

    @pytest.mark.parametrize(
        ("loop", "text"),
        [
            (3, "3 is no agent loop"),
            ("json:dumps", "is no agent loop; give a RolloutAgentLoop"),
            ("nowhere:x", "no module 'nowhere'"),
        ],
    )
    def test_what_is_no_loop_is_refused(self, loop, text):
        with pytest.raises((ConfigError, ValueError), match=text):
            AgentLoopConfig(loop=loop)

    def test_class_that_needs_arguments_is_refused(self):
        with pytest.raises((ConfigError, ValueError), match="cannot be made without arguments"):
            AgentLoopConfig(loop=Plain)

    def test_workflow_without_its_config_is_refused(self):
        with pytest.raises(ConfigError, match=r"needs workflow_config=AgentLoopConfig\(loop="):
            AgentLoopWorkflow()


class Plain(RolloutAgentLoop):
    name = "plain"

    def __init__(self, number):
        self.number = number

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        raise AgentLoopError("not reached")
