"""Refused, cut, malformed and late answers: tried again in one place, never taken for success."""

from __future__ import annotations

import json
import socket
import time

from osmosis_core.context import RolloutContext
from osmosis_core.errors import categorize, describe
from osmosis_core.testing.adapter_conformance.kit import (
    FAST_RETRY,
    AdapterSuite,
    add,
    check,
    expect,
    native,
    only,
)
from osmosis_core.testing.scripted import (
    Answer,
    Cut,
    Delay,
    Malformed,
    Say,
    ScriptedPolicy,
    Status,
    Tool,
    Turn,
    Web,
)
from osmosis_core.types import RolloutErrorCategory


class Retries(AdapterSuite):
    """The transport tries again; nothing above it does."""

    @check("retries")
    async def test_nothing_above_the_transport_retries(self) -> None:
        """If this fails, the SDK or the framework retries; set its retries to 0."""
        for answer in (Status(429), Status(500), Status(503), Cut(1)):
            with ScriptedPolicy(answer) as policy:
                error, rollout = await self.failure(policy)
            expect(error is not None, f"{answer} counts as success")
            tries = len(policy.requests), len(rollout.calls)
            wanted = (FAST_RETRY.max_attempts, 1)
            expect(tries == wanted, f"{answer} took {tries[0]} requests in {tries[1]} calls")

    @check("retries")
    async def test_retried_call_is_one_call(self) -> None:
        """If this fails, attempts are counted as calls."""
        with ScriptedPolicy(Status(429, retry_after="0"), Cut(1), "hi") as policy:
            sample = await self.sample(policy)
        numbers = [[attempt.number for attempt in call.attempts] for call in sample.calls]
        expect(numbers == [[1, 2, 3]], f"the sample's calls have the attempts {numbers}")
        statuses = [attempt.status for attempt in sample.calls[0].attempts]
        expect(statuses[0] == 429 and statuses[2] == 200, f"the tries ended with {statuses}")
        expect(len(policy.requests) == 3, f"the policy saw {len(policy.requests)} requests")

    @check("retries")
    async def test_retried_call_is_one_message(self) -> None:
        """If this fails, a retry adds the turn again; leave retries to the transport."""
        with ScriptedPolicy(Status(500), Status(502), "LAST-WORD") as policy:
            sample = await self.sample(policy, text="FIRST-WORD")
        counts = {text: native(sample).count(text) for text in ("FIRST-WORD", "LAST-WORD")}
        expect(set(counts.values()) == {1}, f"the sample's messages have {counts}")

    @check("retries")
    async def test_refused_request_is_not_repeated(self) -> None:
        """If this fails, the framework repeats what cannot succeed; set its retries to 0."""
        for answer in (Status(400), Status(401), Status(404)):
            with ScriptedPolicy(answer) as policy:
                _, rollout = await self.failure(policy)
            tries = len(policy.requests), len(rollout.calls)
            expect(tries == (1, 1), f"{answer} took {tries[0]} requests in {tries[1]} calls")

    @check("retries")
    async def test_next_run_after_a_failure_works(self) -> None:
        """If this fails, the model or its client remembers a failure; keep no state between runs"""
        model = self.fixtures.create_model()
        with ScriptedPolicy(Status(400), "fine now") as policy:
            error, _ = await self.failure(policy, model=model)
            expect(error is not None, "a refused call counts as success")
            with policy.rollout():
                said = await self.agent(model=model)
        expect("fine now" in said, f"the next run answered {said!r}")


class Failures(AdapterSuite):
    """What is no answer is an error, and says why."""

    @check("failures")
    async def test_failing_policy_is_an_http_error(self) -> None:
        """If this fails, the policy's error is hidden; raise it, or PolicyError from it."""
        for answer in (Status(401), Status(404), Status(500), Cut(1), Cut(0)):
            await self._is_http_error(answer)

    @check("failures")
    async def test_malformed_answer_is_an_http_error(self) -> None:
        """If this fails, an unusable answer passes as one; raise what the client raises."""
        plain = "application/json"
        empty = json.dumps({"id": "x", "object": "chat.completion", "choices": []})
        for answer in (Malformed(), Malformed("", plain), Malformed(empty, plain), Web()):
            await self._is_http_error(answer)

    async def _is_http_error(self, answer: Answer) -> None:
        with ScriptedPolicy(answer) as policy:
            error, rollout = await self.failure(policy)
        expect(error is not None, f"{answer} counts as success")
        assert error is not None
        category = categorize(error)
        is_http = category is RolloutErrorCategory.HTTP_ERROR
        expect(is_http, f"{answer} became {type(error).__name__} of category {category}")
        expect(rollout.calls and rollout.calls[0].error, f"{answer}: no call is recorded as failed")

    @check("failures")
    async def test_unreachable_policy_is_an_http_error(self) -> None:
        """If this fails, a connection error is hidden; raise it, or PolicyError from it."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
            with RolloutContext(url, retry=FAST_RETRY):
                try:
                    await self.agent()
                except Exception as error:
                    category = categorize(error)
                    is_http = category is RolloutErrorCategory.HTTP_ERROR
                    expect(is_http, f"an unreachable policy is of category {category}")
                else:
                    expect(False, "an unreachable policy counts as success")

    @check("failures")
    async def test_error_says_what_the_policy_said(self) -> None:
        """If this fails, the reason is lost; keep the SDK's error as the cause (`from`)."""
        with ScriptedPolicy(Status(400, "the context is too long by 12")) as policy:
            error, _ = await self.failure(policy)
        expect(error is not None, "a refused call counts as success")
        assert error is not None
        expect("too long by 12" in describe(error), f"the error says {describe(error)!r}")

    @check("failures")
    async def test_deadline_ends_the_call(self) -> None:
        """If this fails, calls bypass our transport, which ends them; use its client."""
        with ScriptedPolicy(Delay("late", before_sec=20)) as policy:
            with policy.rollout(deadline=time.monotonic() + 0.3) as rollout:
                try:
                    await self.agent()
                except Exception as error:
                    expect("deadline" in describe(error), f"the error says {describe(error)!r}")
                else:
                    expect(False, "an answer after the deadline counts as success")
        expect(len(policy.requests) == 1, "the call was repeated after the deadline")
        expect("deadline" in str(rollout.calls[0].error), "the call does not say why it failed")

    @check("answers")
    async def test_truncated_answer_marks_the_sample(self) -> None:
        """If this fails, finish reason `length` is lost."""
        with ScriptedPolicy(Say("and then", finish_reason="length")) as policy:
            error, rollout = await self.failure(policy)
        said = "" if error is None else str(error).lower()
        expect(error is None or "max" in said or "length" in said, f"it raised {error!r}")
        expect((await only(rollout)).truncated, "the sample is not marked as truncated")

    @check("answers")
    async def test_truncated_answer_is_asked_for_once(self) -> None:
        """If this fails, a truncated answer is asked for again; the sample says it is truncated."""
        with ScriptedPolicy(Say("and then", finish_reason="length")) as policy:
            _, rollout = await self.failure(policy)
        expect(len(policy.requests) == 1, f"it was asked for {len(policy.requests)} times")
        answer = rollout.calls[0].answer or {}
        expect(answer.get("content") == "and then", f"the call's answer is {answer}")

    @check("answers")
    async def test_refusal_is_an_answer(self) -> None:
        """If this fails, a refusal is retried or lost; it is the policy's answer."""
        with ScriptedPolicy(Say("", refusal="I will not")) as policy:
            _, rollout = await self.failure(policy)
        expect(len(policy.requests) == 1, f"it was asked for {len(policy.requests)} times")
        sample = await only(rollout)
        answer = sample.calls[0].answer or {}
        expect(answer.get("refusal") == "I will not", f"the call's answer is {answer}")

    @check("answers")
    async def test_filtered_answer_is_an_answer(self) -> None:
        """If this fails, an empty answer is retried; record it and go on."""
        with ScriptedPolicy(Say("", finish_reason="content_filter")) as policy:
            _, rollout = await self.failure(policy)
        reasons = [call.finish_reason for call in (await only(rollout)).calls]
        expect(reasons == ["content_filter"], f"the calls ended with {reasons}")

    @check("answers")
    async def test_text_beside_a_tool_call_is_kept(self) -> None:
        """If this fails, text beside tool calls is dropped from the history; keep both."""
        turn = Turn((Tool("add", {"a": 1, "b": 2}),), text="LET-ME-ADD")
        with ScriptedPolicy(turn, "done") as policy:
            sample = await self.sample(policy, tools=[add])
        expect("LET-ME-ADD" in native(sample), "the sample's messages lack the text")
        again = json.dumps(sample.calls[1].messages)
        expect("LET-ME-ADD" in again, "the policy is not shown the text again")
