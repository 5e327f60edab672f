"""Conversations are rebuilt from the wire; rewritten histories are named, answers replayed."""

import json

import pytest

from osmosis_core import RolloutContext, WireOptions
from osmosis_core.active import Scope
from osmosis_core.policy import agent_scope
from osmosis_core.policy.calls import begin_call, complete_call, end_call
from osmosis_core.policy.rewrites import message_key
from osmosis_core.testing import Say, ScriptedPolicy, Status, Tool

SYSTEM = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def asks(*ids, arguments='{"a": 1, "b": 2}'):
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": i, "type": "function", "function": function} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class Wire:
    """A rollout whose calls are put in by hand."""

    def __init__(self):
        self.context = RolloutContext("http://127.0.0.1:9/v1", rollout_id="r")

    def begin(self, *messages, sample="main", **request):
        body = json.loads(json.dumps({"messages": messages, **request}))
        return begin_call(self.context, Scope(sample), body)

    def end(self, call, answer):
        if answer is not None:
            choice = {"message": answer, "finish_reason": "stop"}
            complete_call(call, {"choices": [choice]})
        end_call(self.context, call)
        return call

    def call(self, *messages, answer, **request):
        return self.end(self.begin(*messages, **request), answer)

    def tool_loop(self, turns, sample="main"):
        """A conversation of so many tool calls; returns its messages and its last call."""
        messages = [SYSTEM, user("go")]
        for turn in range(turns):
            answer = asks(f"c{turn}")
            call = self.call(*messages, answer=answer, sample=sample)
            messages += [answer, result(f"c{turn}", f"value {turn}")]
        return messages, call


@pytest.fixture
def wire():
    return Wire()


def kinds(call):
    return [(finding.kind, finding.of) for finding in call.findings]


def test_tool_loop_is_one_chain(wire):
    messages, _ = wire.tool_loop(4)
    last = wire.call(*messages, answer=said("done"))
    assert [call.continues for call in wire.context.calls] == [None, 0, 1, 2, 3]
    assert {call.chain for call in wire.context.calls} == {0} and not last.findings


def test_conversations_of_sub_agents_are_chains_of_their_own(wire):
    messages, outer = wire.tool_loop(1)
    inner = wire.call(user("sub"), answer=said("x"), sample="sub")
    again = wire.call(user("sub"), said("x"), user("more"), answer=said("y"), sample="sub")
    on = wire.call(*messages, answer=said("done"))
    assert [call.chain for call in (outer, inner, again, on)] == [0, 1, 1, 0]
    assert (again.continues, on.continues) == (inner.index, outer.index)


def test_parallel_branches_part_without_a_finding(wire):
    base = wire.call(user("q"), answer=said("a"))
    left = wire.begin(user("q"), said("a"), user("left"))
    right = wire.begin(user("q"), said("a"), user("right"))
    wire.end(left, said("l")), wire.end(right, said("r"))
    assert (left.continues, right.continues) == (base.index, base.index)
    assert (left.chain, right.chain) == (0, 1)
    assert not left.findings and not right.findings


def test_agents_with_equal_conversations_keep_to_their_own(wire):
    for sample in ("a", "b"):
        wire.call(user("q"), answer=said("x"), sample=sample)
    on = [wire.call(user("q"), said("x"), user("y"), answer=said("z"), sample=s) for s in "ab"]
    assert [call.continues for call in on] == [0, 1]


def test_failed_call_leaves_its_place_to_the_next_try(wire):
    failed = wire.call(user("q"), answer=None)
    tried = wire.call(user("q"), answer=said("a"))
    wire.call(user("q"), said("a"), user("on"), answer=None)
    on = wire.call(user("q"), said("a"), user("on"), answer=said("b"))
    assert (failed.chain, tried.chain, on.chain) == (0, 0, 0) and on.continues == tried.index
    assert not tried.findings and not on.findings


def test_history_taken_over_whole_goes_on_in_the_other_sample(wire):
    messages, last = wire.tool_loop(2, sample="triage")
    call = wire.call(*messages, answer=said("hello"), sample="billing")
    assert call.continues == last.index and not call.findings


def rewrites():
    cleared = [result("c0", "[cleared]"), result("c1", "[cleared]")]
    return {
        "window": lambda m: [m[0], *m[6:]],
        "summary": lambda m: [m[0], user("So far: c0 and c1."), *m[6:]],
        "dropped": lambda m: [*m[:4], *m[6:]],
        "edited": lambda m: [*m[:2], asks("c0", arguments="{}"), *m[3:]],
        "tool_results": lambda m: [*m[:3], cleared[0], m[4], cleared[1], *m[6:]],
    }


@pytest.mark.parametrize("kind", rewrites())
@pytest.mark.parametrize("tail", [[], [user("and now?")]])
def test_rewritten_history_is_a_finding_that_names_the_call(wire, kind, tail):
    messages, last = wire.tool_loop(5)
    call = wire.call(*rewrites()[kind](messages), *tail, answer=said("done"))
    assert kinds(call) == [(kind, last.index)]
    assert call.chain == 1 and f"call {last.index}" in call.findings[0].text
    assert call.findings[0].call == call.index


def test_what_follows_a_rewrite_goes_on_without_a_finding(wire):
    messages, _ = wire.tool_loop(5)
    shorter = [messages[0], *messages[6:]]
    rewritten = wire.call(*shorter, answer=said("done"))
    on = wire.call(*shorter, said("done"), user("more"), answer=said("bye"))
    assert on.continues == rewritten.index and on.chain == rewritten.chain and not on.findings


def test_dropped_last_turn_is_a_finding(wire):
    messages, last = wire.tool_loop(3)
    call = wire.call(*messages[:4], user("something else"), answer=said("ok"))
    assert kinds(call) == [("dropped", last.index)] and call.continues == 0


def test_changed_instructions_are_an_edit(wire):
    messages, last = wire.tool_loop(2)
    changed = {"role": "system", "content": "Be verbose."}
    assert kinds(wire.call(changed, *messages[1:], answer=said("x"))) == [("edited", last.index)]


def test_other_tools_are_a_finding(wire):
    tools = [[{"type": "function", "function": {"name": name}}] for name in ("add", "mul")]
    first = wire.call(user("q"), answer=said("a"), tools=tools[0])
    more = wire.call(user("q"), said("a"), user("b"), answer=said("c"), tools=tools[1])
    assert kinds(more) == [("tools", first.index)] and more.continues is None


def test_filtered_handoff_is_a_finding_and_other_instructions_are_not(wire):
    messages, last = wire.tool_loop(3, sample="triage")
    other = {"role": "system", "content": "You do billing."}
    whole = wire.call(other, *messages[1:], answer=said("x"), sample="billing")
    part = wire.call(other, messages[1], *messages[6:], answer=said("y"), sample="audit")
    assert not whole.findings and kinds(part) == [("handoff", last.index)]


def test_question_asked_again_is_a_duplicate_unless_both_are_under_way(wire):
    both = [wire.begin(user("q")), wire.begin(user("q"))]
    first, second = (wire.end(call, said("a")) for call in both)
    third = wire.call(user("q"), answer=said("b"))
    assert not first.findings and not second.findings
    assert kinds(third) == [("duplicate", 0)]


@pytest.mark.parametrize(
    "one, other",
    [
        (said("ab"), {"role": "assistant", "content": [{"type": "text", "text": "ab"}]}),
        (asks("c"), asks("c", arguments='{"b":2,"a":1}')),
        (asks("c"), {**asks("c"), "content": ""}),
        (asks("c", arguments=""), asks("c", arguments="{}")),
        (said("x"), {**said("x"), "reasoning_content": "hm", "refusal": None}),
    ],
)
def test_messages_a_model_reads_alike_are_equal(one, other):
    assert message_key(one) == message_key(other)


@pytest.mark.parametrize(
    "one, other",
    [
        (said("x"), user("x")),
        (asks("c"), asks("d")),
        (asks("c"), asks("c", arguments='{"a": 2}')),
        (asks("c", arguments="{broken"), asks("c", arguments="{}")),
        (result("c", "1"), result("d", "1")),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), user([])),
    ],
)
def test_messages_a_model_reads_differently_are_not(one, other):
    assert message_key(one) != message_key(other)


@pytest.mark.parametrize("odd", ["text", None, 5, {"content": {"a": [1]}}, {"tool_calls": [3]}])
def test_odd_messages_are_passed_on(wire, odd):
    call = wire.call(odd, user("q"), answer=said("a"))
    assert call.messages[0] == odd and call.answer == said("a")


async def test_answers_are_sent_again_as_they_were_generated(ask):
    spaced = Tool("add", '{"a": 1,  "b": 2}')
    with ScriptedPolicy(spaced, Say("3", reasoning="hm"), "bye") as policy:
        with policy.rollout() as rollout:
            answer = (await ask(messages=[user("q")])).json()["choices"][0]["message"]
            call_id = answer["tool_calls"][0]["id"]
            copy = asks(call_id, arguments='{"a":1,"b":2}')
            told = [user("q"), copy, result(call_id, "3")]
            await ask(messages=told)
            await ask(messages=[*told, said("3"), user("thanks")])
    sent = policy.requests[2].body["messages"]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1,  "b": 2}'
    assert sent[3] == {"role": "assistant", "content": "3", "reasoning_content": "hm"}
    assert sent == rollout.calls[2].messages and [c.chain for c in rollout.calls] == [0, 0, 0]


async def test_replay_can_be_switched_off(ask):
    with ScriptedPolicy(Say("3", reasoning="hm"), "bye") as policy:
        with policy.rollout(wire=WireOptions(replay=False)) as rollout:
            await ask(messages=[user("q")])
            await ask(messages=[user("q"), said("3"), user("thanks")])
    assert policy.requests[1].body["messages"][1] == said("3")
    assert rollout.calls[1].continues == 0


async def test_endpoint_that_refuses_reasoning_is_sent_none(ask):
    refusal = Status(400, "Unknown field: reasoning_content")
    with ScriptedPolicy(Say("3", reasoning="hm"), refusal, "bye") as policy:
        with policy.rollout() as rollout:
            await ask(messages=[user("q")])
            await ask(messages=[user("q"), said("3"), user("thanks")])
    assert [m.get("reasoning_content") for m in policy.requests[1].body["messages"]].count(
        "hm"
    ) == 1
    assert policy.requests[2].body["messages"][1] == said("3")
    assert rollout.calls[1].received


async def test_samples_tell_their_findings(ask):
    with ScriptedPolicy("a", "b") as policy, policy.rollout() as rollout:
        with agent_scope("solver"):
            await ask(messages=[user("q")])
            await ask(messages=[user("q")])
        samples = await rollout.get_samples()
    assert [finding.kind for finding in samples["solver"].findings] == ["duplicate"]
