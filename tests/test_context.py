import asyncio
import string
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_core import (
    PolicyCall,
    RetryPolicy,
    RolloutContext,
    RolloutSample,
    SampleError,
    SampleSource,
    WorkflowError,
    get_rollout_context,
)
from osmosis_core.active import current_scope, no_rollout
from osmosis_core.policy import agent_scope
from osmosis_core.sample_ids import encode_sample_id
from osmosis_core.types import RolloutErrorCategory

ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._~-%")


class Source(SampleSource):
    def __init__(self, **fields):
        self.sample = RolloutSample(id="anything", **fields)

    async def get_sample(self, sample_id):
        return self.sample


class BrokenSource(SampleSource):
    async def get_sample(self, sample_id):
        raise ValueError("no history")


def call(sample_id="main", **fields):
    message = {"role": "user", "content": "hi"}
    answer = {"role": "assistant", "content": "yes"}
    fields = {"answer": answer, "finish_reason": "stop", **fields}
    return PolicyCall("c", "r", sample_id, 0, {"messages": [message]}, 0.0, **fields)


def called(*calls):
    context = RolloutContext()
    for one in calls:
        context.begin_call(one)
    return context


def active_id():
    context = get_rollout_context()
    return context and context.rollout_id


def test_no_rollout_is_active_by_default():
    assert get_rollout_context() is None


def test_inner_context_wins_and_the_outer_one_is_restored():
    with RolloutContext(rollout_id="outer"):
        with RolloutContext(rollout_id="inner"):
            assert active_id() == "inner"
        assert active_id() == "outer"
    assert active_id() is None


async def test_context_nests_with_async_with():
    async with RolloutContext(rollout_id="outer"):
        async with RolloutContext(rollout_id="inner"):
            assert active_id() == "inner"
        assert active_id() == "outer"
    assert active_id() is None


def test_one_context_can_be_entered_again_inside_itself():
    with RolloutContext(rollout_id="r") as context:
        with context:
            pass
        assert active_id() == "r"
    assert active_id() is None


def test_outer_context_is_restored_after_an_error():
    with RolloutContext(rollout_id="outer"):
        with pytest.raises(ZeroDivisionError), RolloutContext(rollout_id="inner"):
            raise ZeroDivisionError
        assert active_id() == "outer"


async def test_tasks_inherit_the_rollout_and_keep_their_own():
    async def inner(name):
        seen = [active_id()]
        with RolloutContext(rollout_id=name):
            await asyncio.sleep(0.001)
            seen.append(active_id())
        return [*seen, active_id()]

    with RolloutContext(rollout_id="outer"):
        seen = await asyncio.gather(*(inner(f"r-{n}") for n in range(10)))
        assert active_id() == "outer"
    assert seen == [["outer", f"r-{n}", "outer"] for n in range(10)]


async def test_threads_of_the_loop_inherit_rollout_and_scope():
    with RolloutContext(rollout_id="r"), agent_scope("solver"):
        assert await asyncio.to_thread(active_id) == "r"
        assert (await asyncio.to_thread(current_scope)).sample_id == "solver"


def test_bare_threads_have_no_rollout():
    seen = []
    with RolloutContext(rollout_id="r"):
        thread = threading.Thread(target=lambda: seen.append(active_id()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_hidden_rollout_comes_back():
    with RolloutContext(rollout_id="r"):
        with no_rollout():
            assert active_id() is None
        assert active_id() == "r"


def test_calls_outside_any_scope_belong_to_main():
    with RolloutContext():
        scope = current_scope()
    assert (scope.sample_id, scope.trainable) == ("main", True)


def test_inner_scope_wins_and_the_outer_one_is_restored():
    with RolloutContext(), agent_scope("outer"):
        with agent_scope("inner", trainable=False):
            scope = current_scope()
            assert (scope.sample_id, scope.trainable) == ("inner", False)
        assert current_scope().sample_id == "outer" and current_scope().trainable


def test_inner_rollout_does_not_inherit_the_scope():
    with RolloutContext(), agent_scope("solver"):
        with RolloutContext():
            assert current_scope().sample_id == "main"
        assert current_scope().sample_id == "solver"


async def test_tasks_keep_their_own_scope():
    async def scoped(name):
        with agent_scope(name):
            await asyncio.sleep(0.001)
            return current_scope().sample_id

    with RolloutContext():
        assert await asyncio.gather(scoped("a"), scoped("b")) == ["a", "b"]
        assert current_scope().sample_id == "main"


@pytest.mark.parametrize("name", ["two words", "a" * 300, "naïve"])
def test_scope_takes_a_name_or_the_id_of_a_registered_agent(name):
    with RolloutContext() as context:
        key = context.register_sample_source(name, Source())
        for name_or_id in (name, key):
            with agent_scope(name_or_id):
                assert current_scope().sample_id == key


def test_scope_needs_a_name():
    with pytest.raises(SampleError, match="sample id is empty"), agent_scope(""):
        pass


def test_missing_values_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://env/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "env-key")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "env-id")
    context = RolloutContext()
    values = (context.chat_completions_url, context.api_key, context.rollout_id)
    assert values == ("http://env/v1", "env-key", "env-id")


def test_given_values_win_over_the_environment(monkeypatch):
    for name in ("CHAT_COMPLETIONS_URL", "API_KEY", "ROLLOUT_ID"):
        monkeypatch.setenv(f"OSMOSIS_{name}", "env")
    context = RolloutContext("http://here/v1", "key", "id")
    values = (context.chat_completions_url, context.api_key, context.rollout_id)
    assert values == ("http://here/v1", "key", "id")


def test_api_key_is_not_in_the_repr():
    context = RolloutContext("http://here/v1", "s3cret", "r-1")
    assert "s3cret" not in f"{context} {context!r}"
    assert "r-1" in repr(context)


def test_context_of_a_rollout_has_the_policy_and_nothing_else():
    retry = RetryPolicy(max_attempts=1)
    outer = RolloutContext("http://here/v1", "key", "outer", model="m", retry=retry)
    outer.register_sample_source("a", Source())
    inner = outer.for_rollout("inner", deadline=5.0)
    assert (inner.rollout_id, inner.deadline, inner.model) == ("inner", 5.0, "m")
    assert (inner.chat_completions_url, inner.api_key) == ("http://here/v1", "key")
    assert inner.retry is retry
    assert inner.register_sample_source("a", Source()) == "a"


def test_taken_explicit_id_is_an_error_that_lists_the_known_ones():
    context = RolloutContext()
    context.register_sample_source("solver", Source())
    context.register_sample_source("judge", Source())
    with pytest.raises(SampleError, match=r"'solver' is taken.*there is solver, judge"):
        context.register_sample_source("solver", Source())


def test_taken_derived_id_gets_a_number():
    context = RolloutContext()
    ids = [context.register_agent("my agent", Source(), derived=True) for _ in range(3)]
    assert ids == ["my%20agent", "my%20agent-2", "my%20agent-3"]


def test_derived_number_steps_over_an_explicit_id():
    context = RolloutContext()
    context.register_sample_source("a", Source())
    context.register_sample_source("a-2", Source())
    assert context.register_sample_source("a", Source(), derived=True) == "a-3"


def test_same_agent_registered_twice_keeps_its_id():
    context, agent = RolloutContext(), Source()
    assert context.register_agent("first", agent) == "first"
    assert context.register_agent("first", agent) == "first"
    assert context.register_agent("second", agent) == "first"


def test_object_that_nobody_adapts_is_an_error_that_says_what_to_do():
    with pytest.raises(SampleError, match=r"builtins\.dict.*osmosis plugins.*register_sample_sour"):
        RolloutContext().register_agent("a", {})


def test_refused_object_leaves_its_id_free():
    context = RolloutContext()
    with pytest.raises(SampleError):
        context.register_agent("a", object())
    assert context.register_agent("a", Source()) == "a"


def test_threads_never_get_the_same_derived_id():
    context, ids = RolloutContext(), []

    def register():
        for _ in range(50):
            ids.append(context.register_sample_source("a", Source(), derived=True))

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_never_have_the_same_id(first, second):
    assert (encode_sample_id(first) == encode_sample_id(second)) == (first == second)


@given(st.text(min_size=200, max_size=400), st.text(min_size=1, max_size=2))
def test_long_names_that_differ_at_their_end_have_different_ids(name, end):
    assert encode_sample_id(name + end) != encode_sample_id(name)


@given(st.text(min_size=1, max_size=600))
def test_ids_are_header_safe_and_short(name):
    sample_id = encode_sample_id(name)
    assert set(sample_id) <= ID_CHARACTERS and 1 <= len(sample_id) <= 256


@given(st.text(ID_CHARACTERS - {"%"}, min_size=1, max_size=256))
def test_harmless_names_are_their_own_id(name):
    assert encode_sample_id(name) == name


@given(st.text(min_size=1, max_size=400))
def test_scope_and_registration_agree_on_the_id(name):
    if encode_sample_id(name) != name and "%" in name:
        return  # such a name may itself be an id
    with RolloutContext() as context:
        key = context.register_sample_source(name, Source())
        with agent_scope(name):
            assert current_scope().sample_id == key


async def test_name_as_given_is_kept_beside_the_id():
    context = RolloutContext()
    context.register_sample_source("my agent", Source())
    sample = (await context.get_samples())["my%20agent"]
    assert (sample.id, sample.extra_fields["agent_name"]) == ("my%20agent", "my agent")


async def test_calls_join_the_history_of_their_agent():
    context = called(call("solver"), call("solver"), call())
    context.register_sample_source("solver", Source(messages=[{"role": "native"}]))
    samples = await context.get_samples()
    assert list(samples) == ["solver", "main"]
    assert samples["solver"].messages == [{"role": "native"}]
    assert [len(sample.calls) for sample in samples.values()] == [2, 1]


async def test_agent_seen_on_the_wire_only_has_what_the_wire_says():
    (sample,) = (await called(call()).get_samples()).values()
    assert [message["content"] for message in sample.messages] == ["hi", "yes"]


async def test_failed_call_is_recorded_but_is_no_conversation():
    failed = call(answer=None, finish_reason=None, error="down")
    (sample,) = (await called(failed).get_samples()).values()
    assert sample.messages == [] and sample.calls == [failed]


async def test_answer_cut_at_its_length_marks_the_sample():
    samples = await called(call("a", finish_reason="length"), call("b")).get_samples()
    assert [sample.truncated for sample in samples.values()] == [True, False]


async def test_helper_calls_make_a_sample_that_is_not_trained_on():
    samples = await called(call("helper", trainable=False), call("solver")).get_samples()
    assert [sample.trainable for sample in samples.values()] == [False, True]


async def test_collecting_twice_does_not_double_the_calls():
    context, source = called(call("solver")), Source()
    context.register_sample_source("solver", source)
    await context.get_samples()
    assert len((await context.get_samples())["solver"].calls) == 1
    assert source.sample.calls == []


async def test_error_of_a_source_names_its_sample_and_keeps_its_category():
    context = RolloutContext()
    context.register_sample_source("broken", BrokenSource())
    with pytest.raises(WorkflowError, match="'broken' failed: no history") as caught:
        await context.get_samples()
    assert caught.value.category is RolloutErrorCategory.VALIDATION_ERROR


def test_calls_are_numbered_in_the_order_in_which_they_began():
    context = called(call(), call(), call())
    assert [one.index for one in context.calls] == [0, 1, 2]


def test_scope_of_an_abandoned_generator_does_not_keep_the_rollout():
    def abandoned():
        with agent_scope("inner"):
            yield

    with RolloutContext("http://x", rollout_id="one"):
        left_open = abandoned()
        next(left_open)
    assert get_rollout_context() is None
    left_open.close()
    assert get_rollout_context() is None


def test_key_is_stripped_of_what_files_end_with():
    assert RolloutContext("http://x", "key\n").api_key == "key"


def test_source_must_be_a_source():
    with pytest.raises(SampleError, match="is not a SampleSource"):
        RolloutContext("http://x").register_sample_source("a", object())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_source_that_leaves_is_an_error_of_its_sample(error):
    class Leaves(SampleSource):
        async def get_sample(self, sample_id):
            raise error

    rollout = RolloutContext("http://x")
    rollout.register_sample_source("a", Leaves())
    with pytest.raises(WorkflowError, match="'a' failed"):
        await rollout.get_samples()
    assert await rollout.get_samples(skip_failing=True) == {}
