"""What a framework may offer beyond runs: streams, structured output, helpers, conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from pydantic import BaseModel

from osmosis_core.config import WireOptions
from osmosis_core.testing.adapter_conformance.kit import (
    FAST_RETRY,
    AdapterSuite,
    check,
    echo_rollout,
    expect,
    native,
    only,
    sent,
    tasks_beyond,
    user,
)
from osmosis_core.testing.scripted import (
    Answer,
    Cut,
    Endless,
    Received,
    ScriptedPolicy,
    Status,
    Tool,
)

_TEXT = "one two three four five six seven eight nine ten"


class Streaming(AdapterSuite):
    """The framework's own stream."""

    async def _streamed(self, name: str = "agent") -> str:
        return "".join([piece async for piece in self.fixtures.stream_agent(name, user("hello"))])

    @check("streaming")
    async def test_stream_says_what_the_policy_says(self) -> None:
        """If this fails, pieces are lost, doubled or out of order; yield the text deltas only."""
        with ScriptedPolicy(_TEXT) as policy:
            for is_teed in (False, True):
                with policy.rollout(wire=WireOptions(tee=is_teed)):
                    said = await self._streamed()
                expect(said == _TEXT, f"the stream says {said!r} (tee={is_teed})")

    @check("streaming")
    async def test_streamed_run_is_recorded_whole(self) -> None:
        """If this fails, a streamed run is recorded differently from one that is not."""
        with ScriptedPolicy(_TEXT) as policy, policy.rollout() as rollout:
            await self._streamed()
            sample = await only(rollout)
        expect(len(policy.requests) == 1, f"it took {len(policy.requests)} requests")
        expect(_TEXT in native(sample), "the answer is not in the sample")
        call = sample.calls[0]
        expect(call.usage and call.finish_reason == "stop", "usage or finish reason is missing")

    @check("streaming")
    async def test_stream_of_a_failing_policy_raises(self) -> None:
        """If this fails, a broken stream looks finished; raise what the client raises."""
        for answer in (Status(400), Cut(2)):
            with ScriptedPolicy(answer) as policy, policy.rollout(retry=FAST_RETRY) as rollout:
                try:
                    said = await self._streamed()
                except Exception:
                    expect(rollout.calls[0].error, "the call is not recorded as failed")
                else:
                    expect(False, f"{answer} streams {said!r} and ends well")

    @check("streaming")
    async def test_stream_that_is_closed_leaves_nothing_running(self) -> None:
        """If this fails, closing the stream leaves the call running; close it in `finally`."""
        tasks = asyncio.all_tasks()
        with ScriptedPolicy(Endless()) as policy:
            with policy.rollout(wire=WireOptions(tee=True)) as rollout:
                stream = self.fixtures.stream_agent("agent", user("hello"))
                async with aclosing(cast("Any", stream)) as pieces:
                    await anext(cast("AsyncIterator[str]", pieces))
                left = await tasks_beyond(tasks)
        expect(not left, f"these tasks are still there: {left}")
        expect(len(rollout.calls) == 1, f"one run made {len(rollout.calls)} calls")

    @check("streaming")
    async def test_streams_at_once_never_meet(self) -> None:
        """If this fails, streams share state; keep it in the run."""
        with ScriptedPolicy(echo_rollout) as policy:

            async def one(number: int) -> str:
                with policy.rollout(f"r{number}"):
                    return await self._streamed()

            said = await asyncio.gather(*(one(number) for number in range(20)))
        wrong = [text for n, text in enumerate(said) if text != f"answer to r{n}."]
        expect(not wrong, f"streams say {wrong}")


class _Booking(BaseModel):
    """A booked room."""

    city: str
    nights: int


class StructuredOutput(AdapterSuite):
    """Output as an instance of a model."""

    @check("structured_output")
    async def test_output_is_an_instance(self) -> None:
        """If this fails, the answer is not read back into the model that was asked for."""
        with ScriptedPolicy(_structured({"city": "Köln", "nights": 2})) as policy, policy.rollout():
            said = await self.fixtures.ask_structured("agent", user("book"), _Booking)
        expect(said == _Booking(city="Köln", nights=2), f"ask_structured returned {said!r}")

    @check("structured_output")
    async def test_schema_reaches_the_policy(self) -> None:
        """If this fails, the policy is not told what is wanted; send the model's schema."""
        with ScriptedPolicy(_structured({"city": "Köln", "nights": 2})) as policy, policy.rollout():
            await self.fixtures.ask_structured("agent", user("book"), _Booking)
        asked = json.dumps(policy.requests[-1].body)
        lost = [name for name in ("city", "nights") if name not in asked]
        expect(not lost, f"the request does not name {lost}")

    @check("structured_output")
    async def test_structured_answer_is_recorded(self) -> None:
        """If this fails, question or structured answer is missing from the agent's sample."""
        script = _structured({"city": "Timbuktu", "nights": 2})
        with ScriptedPolicy(script) as policy, policy.rollout() as rollout:
            await self.fixtures.ask_structured("agent", user("BOOK-IT"), _Booking)
            sample = await only(rollout)
        expect(len(sample.calls) == len(policy.requests), "calls are missing from the sample")
        lost = [text for text in ("BOOK-IT", "Timbuktu") if text not in native(sample)]
        expect(not lost, f"the sample's messages lack {lost}")

    @check("structured_output")
    async def test_wrong_answer_is_no_instance(self) -> None:
        """If this fails, an answer that does not fit is patched up; raise, or ask again."""
        unfit = _structured({"city": "Köln", "nights": "many"})

        def answer(request: Received) -> Answer:
            return unfit(request) if len(policy.requests) < 3 else Status(400)

        with ScriptedPolicy(answer) as policy, policy.rollout(retry=FAST_RETRY) as rollout:
            try:
                said = await self.fixtures.ask_structured("agent", user("book"), _Booking)
            except Exception:
                expect(rollout.calls, "the call is not recorded")
            else:
                expect(False, f"an answer with nights='many' became {said!r}")


def _structured(value: dict[str, Any]) -> Any:
    """Answer as asked: by the one tool, or by text."""

    def answer(request: Received) -> Answer:
        tools: list[dict[str, Any]] = request.body.get("tools") or []
        return Tool(tools[-1]["function"]["name"], value) if tools else json.dumps(value)

    return answer


class Conversations(AdapterSuite):
    """One agent, several user messages; helpers that are not trained on."""

    @check("conversations")
    async def test_each_turn_sees_the_ones_before(self) -> None:
        """If this fails, the agent forgets between runs; keep its history."""
        with ScriptedPolicy("ANSWER-1", "ANSWER-2", "ANSWER-3") as policy, policy.rollout():
            said = await self.fixtures.run_conversation("agent", ["ASK-1", "ASK-2", "ASK-3"])
        expect("ANSWER-3" in said, f"run_conversation returned {said!r}")
        seen = sent(policy.requests[-1])
        lost = [t for t in ("ASK-1", "ANSWER-1", "ASK-2", "ANSWER-2", "ASK-3") if t not in seen]
        expect(not lost, f"the third request lacks {lost}")

    @check("conversations")
    async def test_conversation_is_one_sample(self) -> None:
        """If this fails, a second run registers again or repeats messages; register once."""
        with ScriptedPolicy("ANSWER-1", "ANSWER-2") as policy, policy.rollout() as rollout:
            await self.fixtures.run_conversation("agent", ["ASK-1", "ASK-2"])
            sample = await only(rollout)
        words = "ASK-1", "ANSWER-1", "ASK-2", "ANSWER-2"
        counts = {word: native(sample).count(word) for word in words}
        expect(set(counts.values()) == {1}, f"the sample's messages have {counts}")
        expect(len(sample.calls) == 2, f"two turns made {len(sample.calls)} calls")

    @check("conversations")
    async def test_conversation_goes_on_from_call_to_call(self) -> None:
        """If this fails, earlier turns are shown otherwise than they were; see the finding."""
        with ScriptedPolicy("one", "two", "three") as policy, policy.rollout() as rollout:
            await self.fixtures.run_conversation("agent", ["ASK-1", "ASK-2", "ASK-3"])
            sample = await only(rollout)
        found = [str(finding) for finding in sample.findings]
        expect(not found, f"the history was rewritten: {found}")
        continued = [call.continues for call in sample.calls]
        expect(continued == [None, 0, 1], f"the calls go on from {continued}")

    @check("trimming")
    async def test_trimming_is_a_finding(self) -> None:
        """If this fails, the trimmed calls belong to another sample; keep the agent's own."""
        turns = [f"ASK-{number:02}" for number in range(8)]
        with ScriptedPolicy(_answers_turn) as policy, policy.rollout() as rollout:
            await self.fixtures.run_trimmed("agent", turns)
            sample = (await rollout.get_samples())["agent"]
        expect(sample.findings, "the rewritten history is reported by no finding of the sample")
        known = {call.index for call in sample.calls}
        named = [finding.call for finding in sample.findings]
        expect(known.issuperset(named), f"the findings name the calls {named}, not the sample's")

    @check("trimming")
    async def test_trimmed_history_is_still_in_the_sample(self) -> None:
        """If this fails, what the framework forgets is lost; keep your own record of messages."""
        turns = [f"ASK-{number:02}" for number in range(8)]
        with ScriptedPolicy(_answers_turn) as policy, policy.rollout() as rollout:
            await self.fixtures.run_trimmed("agent", turns)
            sample = (await rollout.get_samples())["agent"]
        expect("ASK-00" not in sent(policy.requests[-1]), "nothing was forgotten; trim harder")
        words = [*turns, *(f"ANSWER-{number:02}" for number in range(8))]
        lost = [word for word in words if word not in native(sample)]
        expect(not lost, f"the sample's messages lack {lost}")

    @check("helpers")
    async def test_helper_is_recorded_and_not_trained_on(self) -> None:
        """If this fails, pass `trainable` on: agent_scope and bound_headers take it."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            await self.agent("student")
            await self.fixtures.run_helper("judge", user("hello"))
            samples = await rollout.get_samples()
        found = {name: sample.trainable for name, sample in samples.items()}
        expect(found == {"student": True, "judge": False}, f"trainable is {found}")
        marks = [call.trainable for call in rollout.calls]
        expect(marks == [True, False], f"the calls are marked {marks}")


def _answers_turn(request: Received) -> Answer:
    asked = [n for n in range(8) if f"ASK-{n:02}" in json.dumps(request.body["messages"][-1])]
    return f"ANSWER-{asked[0]:02}" if asked else "a summary"
