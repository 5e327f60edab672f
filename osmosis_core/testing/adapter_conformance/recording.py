"""One sample per agent, with its id, its own messages and every call of the wire."""

from __future__ import annotations

import copy
import json
from typing import Any

from osmosis_core.sample_ids import encode_sample_id
from osmosis_core.testing.adapter_conformance.kit import (
    CAPTURE,
    AdapterSuite,
    add,
    check,
    expect,
    native,
    only,
    tool_then,
)
from osmosis_core.testing.scripted import Say, ScriptedPolicy, Status, Tool
from osmosis_core.types import RolloutSample


class SampleIds(AdapterSuite):
    """Which sample a call belongs to."""

    @check("sample_ids")
    async def test_sample_id_is_the_encoded_name(self) -> None:
        """If this fails, ids derived from names are not header-safe; use register_agent."""
        for name in ("plain", "with space", "ünïcode ☃", "line\nbreak", "a/b"):
            with ScriptedPolicy("hi") as policy:
                sample = await self.sample(policy, name=name)
            expect(sample.id == encode_sample_id(name), f"{name!r} became sample {sample.id!r}")
            kept = sample.extra_fields["agent_name"]
            expect(kept == name, f"agent_name of {name!r} is {kept!r}")
            found = policy.requests[0].sample_id
            expect(found == sample.id, f"calls of {name!r} are labelled {found!r}")

    @check("sample_ids")
    async def test_second_agent_of_a_name_gets_its_own_sample(self) -> None:
        """If this fails, pass `derived=True` when the id comes from the agent's name."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            for text in ("one", "two", "three"):
                await self.agent("twin", text)
            samples = await rollout.get_samples()
        expect(sorted(samples) == ["twin", "twin-2", "twin-3"], f"there is {sorted(samples)}")
        expect("two" in native(samples["twin-2"]), "twin-2 has not the second agent's messages")
        counts = [len(sample.calls) for sample in samples.values()]
        expect(counts == [1, 1, 1], f"the twins have {counts} calls")

    @check("sample_ids")
    async def test_a_long_name_is_cut_not_refused(self) -> None:
        """If this fails, the id is made by hand; take what register_agent returns."""
        with ScriptedPolicy("hi") as policy:
            sample = await self.sample(policy, name="n" * 400)
        expect(len(sample.id) <= 256, f"the sample id has {len(sample.id)} characters")
        expect(policy.requests[0].sample_id == sample.id, "call and sample have different ids")


class Recording(AdapterSuite):
    """What the sample holds, against what went over the wire."""

    @check("recording")
    async def test_tool_loop_is_recorded_whole(self) -> None:
        """If this fails, native messages or calls are missing from the sample."""
        with ScriptedPolicy(Tool("add", {"a": 1, "b": 1002}), "it is 1003") as policy:
            sample = await self.sample(policy, tools=[add])
        missing = [t for t in ("hello", "add", "1003", "it is 1003") if t not in native(sample)]
        expect(not missing, f"the sample's messages lack {missing}")
        reasons = [call.finish_reason for call in sample.calls]
        expect(reasons == ["tool_calls", "stop"], f"the calls ended with {reasons}")
        expect(all(call.usage for call in sample.calls), "a call has no usage")
        expect(len(policy.requests) == 2, f"two turns took {len(policy.requests)} requests")

    @check("recording")
    async def test_every_message_is_there_once(self) -> None:
        """If this fails, the sample source adds a message twice or drops one; read the history."""
        with ScriptedPolicy(tool_then("FINAL-WORD")) as policy:
            sample = await self.sample(policy, text="FIRST-WORD", tools=[add])
        counts = {text: native(sample).count(text) for text in ("FIRST-WORD", "FINAL-WORD")}
        expect(set(counts.values()) == {1}, f"the sample's messages have {counts}")
        made = sample.calls[0].answer or {}
        call_id: str = made["tool_calls"][0]["id"]
        expect(call_id in native(sample), f"the tool call {call_id} is not in the sample")

    @check("recording")
    async def test_messages_are_in_order(self) -> None:
        """If this fails, the sample source sorts or rebuilds messages; keep the framework's own."""
        with ScriptedPolicy(tool_then("FINAL-WORD", a=1000, b=234)) as policy:
            sample = await self.sample(policy, text="FIRST-WORD", tools=[add])
        text = native(sample)
        found = [text.find(word) for word in ("FIRST-WORD", '"add"', "1234", "FINAL-WORD")]
        expect(found == sorted(found) and found[0] >= 0, "prompt, call, result, answer are mixed")

    @check("recording")
    async def test_messages_are_json(self) -> None:
        """If this fails, hand over plain dicts: convert the framework's message objects."""
        with ScriptedPolicy(tool_then("done")) as policy:
            sample = await self.sample(policy, tools=[add])
        expect(sample.messages, "the sample has no messages")
        again = json.loads(json.dumps(sample.messages))
        expect(again == sample.messages, "messages change when they are written as JSON")

    @check("recording")
    async def test_tool_loop_is_one_conversation(self) -> None:
        """If this fails, a turn is shown to the policy otherwise than it was; see the finding."""
        spaced = Tool("add", '{"b":2,   "a": 1}')
        with ScriptedPolicy(spaced, "done") as policy:
            sample = await self.sample(policy, tools=[add])
        found = [str(finding) for finding in sample.findings]
        expect(not found, f"the history was rewritten: {found}")
        continued = [call.continues for call in sample.calls]
        expect(continued == [None, 0], f"the calls go on from {continued}")

    @check("recording")
    async def test_sample_survives_being_written(self) -> None:
        """If this fails, messages hold what JSON cannot; convert them in the sample source."""
        with ScriptedPolicy(tool_then("done")) as policy:
            sample = await self.sample(policy, tools=[add])
        again = RolloutSample.model_validate_json(sample.model_dump_json())
        expect(again.messages == sample.messages, "messages change when a sample is stored")
        expect(len(again.calls) == len(sample.calls), "calls are lost when a sample is stored")

    @check("recording")
    async def test_samples_are_copies(self) -> None:
        """If this fails, get_sample hands out the live history; return a deep copy."""
        with ScriptedPolicy(tool_then("done")) as policy:
            rollout = await self.run(policy, tools=[add])
        first = await only(rollout)
        before = copy.deepcopy(first.messages)
        _empty(first.messages)
        expect((await only(rollout)).messages == before, "changing a sample changes the agent")

    @check("recording")
    async def test_text_of_any_script_survives(self) -> None:
        """If this fails, text is encoded by hand on the way; pass str through."""
        text = 'ünï ☃ 😀 "quoted" \\ <|im_end|>\u2028end'
        with ScriptedPolicy(text) as policy, policy.rollout() as rollout:
            said = await self.agent(text=text)
            sample = await only(rollout)
        expect(text in said, f"{text!r} came back as {said!r}")
        expect(
            text
            in json.dumps(sample.calls[0].messages, ensure_ascii=False)
            .replace('\\"', '"')
            .replace("\\\\", "\\"),
            "the prompt's text was changed on its way out",
        )

    @check("recording")
    async def test_token_fields_are_recorded_and_kept_from_the_framework(self) -> None:
        """If this fails, token fields leak into messages; store what the framework parsed only."""
        with ScriptedPolicy(tool_then("done")) as policy:
            with policy.rollout(wire=CAPTURE) as rollout:
                await self.agent(tools=[add])
            sample = await only(rollout)
        for call in sample.calls:
            has_all = call.prompt_token_ids and call.completion_token_ids and call.logprobs
            expect(has_all, f"call {call.index} has no token ids or log-probs")
        leaked = [name for name in ('token_ids"', '"logprob"') if name in native(sample)]
        expect(not leaked, f"the sample's messages hold {leaked}")

    @check("recording")
    async def test_reasoning_is_recorded(self) -> None:
        """If this fails, an answer with reasoning_content is lost; only its text is the answer."""
        with ScriptedPolicy(Say("seven", reasoning="3 + 4")) as policy:
            with policy.rollout() as rollout:
                said = await self.agent()
        expect("seven" in said, f"run_agent returned {said!r}")
        answer = rollout.calls[0].answer or {}
        expect(answer.get("reasoning_content") == "3 + 4", "the call has no reasoning")

    @check("recording")
    async def test_long_answer_arrives_whole(self) -> None:
        """If this fails, the answer is cut or joined wrongly on its way through the framework."""
        text = " ".join(map(str, range(4000)))
        with ScriptedPolicy(text) as policy, policy.rollout():
            said = await self.agent()
        expect(text in said, f"{len(said)} of {len(text)} characters arrived")

    @check("recording")
    async def test_error_mid_run_keeps_what_was_said(self) -> None:
        """If this fails, a run that raises loses its turns; register before the run, not after."""
        with ScriptedPolicy(Tool("add", {"a": 1000, "b": 234}), Status(400)) as policy:
            error, rollout = await self.failure(policy, text="FIRST-WORD", tools=[add])
        expect(error is not None, "the second call failed and the run did not")
        sample = await only(rollout)
        missing = [text for text in ("FIRST-WORD", "1234") if text not in native(sample)]
        expect(not missing, f"the sample's messages lack {missing}")
        errors = [bool(call.error) for call in sample.calls]
        expect(errors == [False, True], f"errors of the calls: {errors}")


def _empty(value: Any) -> None:
    """Clear lists and mappings, the innermost first."""
    if isinstance(value, dict | list):
        members: list[Any] = list(value.values() if isinstance(value, dict) else value)  # pyright: ignore[reportUnknownArgumentType]
        for member in members:
            _empty(member)
        value.clear()
