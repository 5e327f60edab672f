"""Is an integration of an agent framework right? Subclass `AdapterConformance` and run pytest."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

from osmosis_core import (
    Message,
    PolicyNotBoundError,
    RetryPolicy,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
)
from osmosis_core.errors import categorize
from osmosis_core.sample_ids import encode_sample_id
from osmosis_core.testing.adapter_conformance.fixtures import AdapterFixtures
from osmosis_core.testing.scripted import (
    Answer,
    Cut,
    Delay,
    Received,
    Say,
    ScriptedPolicy,
    Status,
    Tool,
)

_FAST = RetryPolicy(max_attempts=3, base_delay_sec=0.01)


class AdapterConformance:
    """The suite: set `fixtures`, and run it with pytest and pytest-asyncio in auto mode."""

    fixtures: AdapterFixtures

    async def run(
        self, policy: ScriptedPolicy, name: str = "agent", **options: Any
    ) -> RolloutContext:
        """One agent in one rollout of its own; returns the rollout."""
        with policy.rollout("conformance", retry=_FAST) as rollout:
            await self.fixtures.run_agent(name, _prompt("hello"), **options)
        return rollout

    async def failure(self, policy: ScriptedPolicy) -> tuple[BaseException | None, RolloutContext]:
        """What an agent raises when the policy fails."""
        with policy.rollout("conformance", retry=_FAST) as rollout:
            try:
                await self.fixtures.run_agent("agent", _prompt("hello"))
            except Exception as error:
                return error, rollout
        return None, rollout

    async def test_calls_carry_rollout_and_sample(self) -> None:
        """If this fails, the adapter's client is not `osmosis_core.policy.async_client`."""
        with ScriptedPolicy("hi", api_key="secret") as policy:
            rollout = await self.run(policy, "planner")
        assert [(r.rollout_id, r.sample_id) for r in policy.requests] == [
            ("conformance", "planner")
        ]
        assert [call.sample_id for call in rollout.calls] == ["planner"]
        assert "secret" not in repr(rollout.calls)

    async def test_final_text_reaches_the_caller(self) -> None:
        """If this fails, the answer is lost between the policy and the framework."""
        with ScriptedPolicy("the answer is 42") as policy, policy.rollout():
            assert "the answer is 42" in await self.fixtures.run_agent("agent", _prompt("hello"))

    async def test_sample_id_is_the_encoded_name(self) -> None:
        """If this fails, ids derived from names are not header-safe; use register_agent."""
        for name in ("plain", "with space", "ünïcode ☃", "line\nbreak"):
            with ScriptedPolicy("hi") as policy:
                sample = await _only(await self.run(policy, name))
            assert sample.id == encode_sample_id(name)
            assert sample.extra_fields["agent_name"] == name

    async def test_second_agent_of_a_name_gets_its_own_sample(self) -> None:
        """If this fails, pass `derived=True` when the id comes from the agent's name."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            await self.fixtures.run_agent("twin", _prompt("one"))
            await self.fixtures.run_agent("twin", _prompt("two"))
            samples = await rollout.get_samples()
        assert sorted(samples) == ["twin", "twin-2"]
        assert "two" in json.dumps(samples["twin-2"].messages)

    async def test_tool_loop_is_recorded_whole(self) -> None:
        """If this fails, native messages or calls are missing from the sample."""
        seen: list[tuple[int, int]] = []

        def add(a: int, b: int) -> int:
            seen.append((a, b))
            return a + b + 1000

        with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "it is 1003") as policy:
            sample = await _only(await self.run(policy, tools=[add]))
        assert seen == [(1, 2)]
        native = json.dumps(sample.messages)
        assert all(text in native for text in ("hello", "add", "1003", "it is 1003"))
        assert [call.finish_reason for call in sample.calls] == ["tool_calls", "stop"]
        assert sample.calls[0].tools[0]["function"]["name"] == "add"
        assert all(call.usage for call in sample.calls)

    async def test_whole_prompt_reaches_the_policy(self) -> None:
        """If this fails, prompt conversion drops roles, tool calls or tool results."""
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1}'},
        }
        prompt: list[Message] = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "first question"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "tool said 7"},
            {"role": "user", "content": "second question"},
        ]
        before = copy.deepcopy(prompt)
        with ScriptedPolicy("hi") as policy, policy.rollout():
            await self.fixtures.run_agent("agent", prompt)
        assert prompt == before, "the prompt was changed"
        sent = policy.requests[0].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "user"]
        assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"] == "c1"
        texts = ("be brief", "first question", "tool said 7", "second question")
        assert all(text in json.dumps(sent) for text in texts)

    async def test_concurrent_rollouts_never_meet(self) -> None:
        """If this fails, something is bound when the model is created, not when it is called."""
        model = self.fixtures.create_model()
        with ScriptedPolicy(_echo_rollout) as policy:

            async def one(number: int) -> RolloutSample:
                with policy.rollout(f"r{number}") as rollout:
                    await self.fixtures.run_agent(
                        "agent", _prompt(f"prompt of r{number}."), model=model
                    )
                    return await _only(rollout)

            samples = await asyncio.gather(*(one(number) for number in range(16)))
        for number, sample in enumerate(samples):
            native = json.dumps(sample.messages)
            assert f"prompt of r{number}." in native
            assert f"answer to r{number}." in native
            assert {call.rollout_id for call in sample.calls} == {f"r{number}"}

    async def test_parallel_agents_of_one_rollout_are_told_apart(self) -> None:
        """If this fails, the calling agent is guessed; use agent_scope or bound_headers."""
        with ScriptedPolicy(_echo_prompt) as policy, policy.rollout() as rollout:
            names = [f"agent{number}" for number in range(8)]
            await asyncio.gather(
                *(self.fixtures.run_agent(n, _prompt(f"I am {n}.")) for n in names)
            )
            samples = await rollout.get_samples()
        assert sorted(samples) == names
        for name, sample in samples.items():
            assert f"I am {name}." in json.dumps([call.messages for call in sample.calls])

    async def test_agent_in_a_thread_with_its_own_loop(self) -> None:
        """If this fails, a client is tied to the event loop that first used it."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            for name in ("first", "second"):
                task = self.fixtures.run_agent(name, _prompt("hello"))
                await asyncio.to_thread(asyncio.run, task)
            assert sorted(await rollout.get_samples()) == ["first", "second"]

    async def test_model_lives_outside_of_rollouts(self) -> None:
        """If this fails, creating or copying the model needs a rollout; bind when called."""
        model = copy.deepcopy(self.fixtures.create_model())
        with ScriptedPolicy("hi") as policy:
            for _ in range(2):
                rollout = await self.run(policy, model=model)
                assert len(rollout.calls) == 1

    async def test_calling_the_model_outside_a_rollout_says_so(self) -> None:
        """If this fails, raise PolicyNotBoundError when no rollout is active."""
        try:
            await self.fixtures.call_model(self.fixtures.create_model())
        except Exception as error:
            assert _in_chain(error, PolicyNotBoundError), repr(error)
        else:
            raise AssertionError("the call outside a rollout succeeded")

    async def test_nothing_above_the_transport_retries(self) -> None:
        """If this fails, the SDK or the framework retries; set its retries to 0."""
        for answer in (Status(429), Status(500), Status(503)):
            with ScriptedPolicy(answer) as policy:
                error, rollout = await self.failure(policy)
            assert error is not None
            assert len(policy.requests) == _FAST.max_attempts
            assert len(rollout.calls) == 1

    async def test_retried_call_is_one_call(self) -> None:
        """If this fails, attempts are counted as calls."""
        with ScriptedPolicy(Status(429, retry_after="0"), Cut(1), "hi") as policy:
            sample = await _only(await self.run(policy))
        assert [[a.number for a in call.attempts] for call in sample.calls] == [[1, 2, 3]]

    async def test_failing_policy_is_an_http_error(self) -> None:
        """If this fails, the policy's error is hidden; raise it, or PolicyError from it."""
        for answer in (Status(401), Status(404), Status(500), Cut(1)):
            with ScriptedPolicy(answer) as policy:
                error, rollout = await self.failure(policy)
            assert error is not None, f"{answer} counted as success"
            assert categorize(error) is RolloutErrorCategory.HTTP_ERROR
            assert rollout.calls[0].error

    async def test_truncated_answer_marks_the_sample(self) -> None:
        """If this fails, finish reason `length` is lost."""
        with ScriptedPolicy(Say("and then", finish_reason="length")) as policy:
            with policy.rollout(retry=_FAST) as rollout:
                try:
                    await self.fixtures.run_agent("agent", _prompt("hello"))
                except Exception as error:
                    assert "max" in str(error).lower() or "length" in str(error).lower(), error
            assert (await _only(rollout)).truncated

    async def test_cancelled_agent_leaves_its_sample(self) -> None:
        """If this fails, a cancelled run loses what was said so far, or leaks a task."""
        tasks = asyncio.all_tasks()
        with ScriptedPolicy(Delay("late", before_sec=30)) as policy, policy.rollout() as rollout:
            run = asyncio.ensure_future(self.fixtures.run_agent("agent", _prompt("hello")))
            await asyncio.to_thread(policy.wait_for_requests, 1)
            run.cancel()
            await asyncio.wait([run])
            sample = await _only(rollout)
        assert sample.calls[0].error
        assert asyncio.all_tasks() <= tasks


def _prompt(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


async def _only(rollout: RolloutContext) -> RolloutSample:
    samples = await rollout.get_samples()
    assert len(samples) == 1, f"expected one sample, there is {list(samples)}"
    return next(iter(samples.values()))


def _echo_rollout(request: Received) -> Answer:
    return Delay(f"answer to {request.rollout_id}.", before_sec=0.02)


def _echo_prompt(request: Received) -> Answer:
    return Delay(json.dumps(request.body["messages"][-1]["content"]), before_sec=0.02)


def _in_chain(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False
