"""Conversations are rebuilt from the wire; rewritten histories are named, answers replayed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_failed_call_leaves_its_place_to_nobody_else(wire):
    failed = wire.call(user("q"), answer=None, sample="a")
    assert wire.call(user("other"), answer=said("x"), sample="b").chain == failed.chain + 1


def test_parallel_agents_that_say_the_same_each_go_on_from_an_answer_of_its_own(wire):
    both = [wire.begin(user("q")), wire.begin(user("q"))]
    both = [wire.end(call, said("same")) for call in both]
    on = [wire.call(user("q"), said("same"), user(text), answer=said("x")) for text in "lr"]
    assert {call.continues for call in on} == {0, 1}
    assert sorted(call.chain for call in on) == [0, 1] and not any(c.findings for c in on)


def test_agent_whose_history_another_took_over_goes_on_without_a_finding(wire):
    messages, last = wire.tool_loop(2)
    wire.call(*messages, answer=said("inner"), sample="tool")
    on = wire.call(*messages, user("more"), answer=said("x"))
    assert on.continues == last.index and not on.findings


def test_examples_are_not_taken_for_answers(wire):
    example = [user("2 + 2?"), asks("call_0"), result("call_0", "4"), said("4")]
    wire.call(SYSTEM, *example, user("1 + 3?"), answer=asks("call_0"))
    wire.call(SYSTEM, *example, user("3 + 1?"), answer=said("4"))
    again = wire.call(SYSTEM, *example, user("0 + 4?"), answer=said("4"))
    other = wire.call(user("Hi"), *example, user("0 + 4?"), answer=said("4"), sample="b")
    assert not again.findings and not other.findings


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


FUNCTION = {"name": "f", "arguments": "[" * 100_000}


@pytest.mark.parametrize(
    "odd",
    [
        "text",
        None,
        5,
        {"content": {"a": [1]}},
        {"tool_calls": [3]},
        {"tool_calls": 3},
        {"tool_calls": [{"id": {"a": 1}, "function": {"name": ["f"], "arguments": "{}"}}]},
        {"tool_calls": [{"id": "c", "function": FUNCTION}]},
    ],
)
def test_odd_messages_are_passed_on(wire, odd):
    call = wire.call(odd, user("q"), answer=said("a"))
    assert call.messages[0] == odd and call.answer == said("a")


@pytest.mark.parametrize("messages", [5, "text", {"a": 1}, None])
def test_what_are_no_messages_is_passed_on(wire, messages):
    for _ in range(2):
        call = begin_call(wire.context, Scope(), {"messages": messages})
        assert wire.end(call, said("a")).request == {"messages": messages}


def test_tools_that_are_none_stay_none(wire):
    wire.call(user("q"), answer=said("a"))
    assert wire.call(user("q"), answer=said("a"), tools=None).request["tools"] is None


@pytest.mark.parametrize(
    "added",
    [
        {"name": "solver"},
        {"reasoning_content": "shortened"},
        {"reasoning_details": [{"text": "hm"}]},
        {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    ],
)
def test_what_a_framework_adds_to_an_answer_is_sent(wire, added):
    wire.call(user("q"), answer={**said("a"), "reasoning_content": "long"})
    copy = {**said("a"), **added}
    for _ in range(2):
        call = wire.call(user("q"), copy, user("on"), answer=said("b"))
        assert call.messages[1] == {"reasoning_content": "long", **copy}


def test_moved_answer_is_sent_as_generated_only_after_what_it_answered(wire):
    told = [SYSTEM]
    for number in range(3):
        told.append(user(f"q{number}"))
        wire.call(*told, answer={**said("ok"), "reasoning": f"{number}"})
        told.append(said("ok"))
    call = wire.call(SYSTEM, said("ok"), *told[3:], user("on"), answer=said("x"))
    assert [m.get("reasoning") for m in call.messages] == [None, None, None, "1", None, "2", None]
    assert kinds(call) == [("window", 2)]


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


async def test_refusal_that_speaks_of_reasoning_takes_none_away(ask):
    refusal = Status(400, "temperature is not supported by reasoning models")
    with ScriptedPolicy(refusal, Say("3", reasoning="hm"), "bye") as policy, policy.rollout():
        assert (await ask(messages=[user("q")])).status_code == 400
        await ask(messages=[user("q")])
        await ask(messages=[user("q"), said("3"), user("thanks")])
    assert policy.requests[2].body["messages"][1]["reasoning_content"] == "hm"


async def test_samples_tell_their_findings(ask):
    with ScriptedPolicy("a", "b") as policy, policy.rollout() as rollout:
        with agent_scope("solver"):
            await ask(messages=[user("q")])
            await ask(messages=[user("q")])
        samples = await rollout.get_samples()
    assert [finding.kind for finding in samples["solver"].findings] == ["duplicate"]


class Agent:
    """An honest framework: it keeps all turns, writes them anew, and asks again what failed."""

    def __init__(self, wire, number, sample):
        self.wire, self.sample, self.last = wire, sample, None
        self.messages = [{"role": "system", "content": "Be brief."}, user(f"task {number}")]

    def begin(self):
        self.call = self.wire.begin(*self.messages, sample=self.sample)
        assert self.call.continues == self.last and not self.call.findings

    def end(self, answer, results):
        self.wire.end(self.call, answer)
        if answer is not None:
            copy = {name: value for name, value in answer.items() if name != "reasoning"}
            self.messages = [*self.messages, copy, *results]
            self.last = self.call.index
        self.call = None

    call = None


def tools(number):
    ids = [f"call_{i}" for i in range(number)]
    return asks(*ids), [result(i, "3") for i in ids]


ANSWERS = [
    (None, []),
    (said("ok"), [user("on")]),
    ({**said("ok"), "reasoning": "hm"}, [user("on")]),
    tools(1),
    tools(25),
]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ANSWERS)), max_size=60), st.booleans())
def test_each_call_goes_on_from_its_agents_last(steps, is_one_sample):
    wire = Wire()
    agents = [Agent(wire, n, "main" if is_one_sample else f"agent-{n}") for n in range(5)]
    for number, (answer, results) in steps:
        agent = agents[number]
        if agent.call is None:
            agent.begin()
        else:
            agent.end(json.loads(json.dumps(answer)), results)
    for chain in range(len(agents)):
        calls = [call for call in wire.context.calls if call.chain == chain]
        answered = [None, *(call.index for call in calls if call.answer is not None)]
        assert {call.continues for call in calls} <= set(answered)
        assert len({call.messages[1]["content"] for call in calls}) <= 1
