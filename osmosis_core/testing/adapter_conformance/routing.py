"""Every call goes to the active rollout's policy, labelled, and outside a rollout nowhere."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref

from osmosis_core.active import agent_scope, current_scope, get_rollout_context
from osmosis_core.context import RolloutContext
from osmosis_core.errors import NoActiveRolloutError, PolicyNotBoundError
from osmosis_core.testing.adapter_conformance.kit import (
    AdapterSuite,
    causes,
    check,
    expect,
    native,
    only,
)
from osmosis_core.testing.scripted import ScriptedPolicy

_SDK_HEADERS = ("x-stainless-", "openai-", "x-osmosis-")


class Routing(AdapterSuite):
    """Where calls go, and what they carry."""

    @check("routing")
    async def test_calls_carry_rollout_and_sample(self) -> None:
        """If this fails, the adapter's client is not `osmosis_core.policy.async_client`."""
        with ScriptedPolicy("hi") as policy:
            rollout = await self.run(policy, "planner")
        labels = [(request.rollout_id, request.sample_id) for request in policy.requests]
        expect(labels == [("conformance", "planner")], f"requests are labelled {labels}")
        samples = [call.sample_id for call in rollout.calls]
        expect(samples == ["planner"], f"the rollout recorded calls of {samples}")

    @check("routing")
    async def test_final_text_reaches_the_caller(self) -> None:
        """If this fails, the answer is lost between the policy and the framework."""
        with ScriptedPolicy("the answer is 42") as policy, policy.rollout():
            text = await self.agent()
        expect("the answer is 42" in text, f"run_agent returned {text!r}")

    @check("routing")
    async def test_key_of_the_rollout_is_sent(self) -> None:
        """If this fails, the key is the adapter's own; give the SDK any key, we replace it."""
        with ScriptedPolicy("hi", api_key="rollout-key") as policy:
            await self.run(policy)
        with ScriptedPolicy("hi") as policy:
            await self.run(policy)
        keys = [request.headers.get("authorization") for request in policy.requests]
        expect(keys == [None], "a key is sent to a policy that has none")

    @check("routing")
    async def test_no_header_of_the_sdk_goes_out(self) -> None:
        """If this fails, calls bypass our transport; use `osmosis_core.policy.async_client`."""
        with ScriptedPolicy("hi") as policy:
            await self.run(policy)
        names = [n for n in policy.requests[0].headers if n.startswith(_SDK_HEADERS)]
        expect(not names, f"the request has the headers {names}")

    @check("routing")
    async def test_rollout_names_the_model(self) -> None:
        """If this fails, the adapter names a model; leave it to the rollout (`policy.MODEL`)."""
        with ScriptedPolicy("hi") as policy:
            with policy.rollout(model="step-7"):
                await self.agent()
            with policy.rollout():
                await self.agent()
        models = [request.body["model"] for request in policy.requests]
        expect(models == ["step-7", "osmosis-rollout"], f"the wire says model {models}")

    @check("routing")
    async def test_two_policies_at_once_keep_their_keys(self) -> None:
        """If this fails, URL or key is bound when the model is created; bind when it is called."""
        model = self.fixtures.create_model()
        with (
            ScriptedPolicy("of one", api_key="key-one") as one,
            ScriptedPolicy("of two", api_key="key-two") as two,
        ):

            async def ask(policy: ScriptedPolicy, wanted: str) -> None:
                with policy.rollout():
                    text = await self.agent(model=model)
                expect(wanted in text, f"the policy that says {wanted!r} answered {text!r}")

            asks = [ask(one, "of one"), ask(two, "of two")]
            await asyncio.gather(*asks, ask(one, "of one"), ask(two, "of two"))
        expect(len(one.requests) == len(two.requests) == 2, "a call went to the other policy")

    @check("routing")
    async def test_rollouts_nest(self) -> None:
        """If this fails, the rollout is kept beside the context variable; ask for it each time."""
        model = self.fixtures.create_model()
        with ScriptedPolicy("hi") as policy, policy.rollout("outer"):
            await self.agent("one", model=model)
            with policy.rollout("inner"):
                await self.agent("two", model=model)
            await self.agent("three", model=model)
        found = [(r.rollout_id, r.sample_id) for r in policy.requests]
        wanted = [("outer", "one"), ("inner", "two"), ("outer", "three")]
        expect(found == wanted, f"requests are labelled {found}")

    @check("routing")
    async def test_a_run_leaves_no_scope_behind(self) -> None:
        """If this fails, a scope stays open after the run; enter it with `with`, in the run."""
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            await self.agent("first")
            left, active = current_scope().sample_id, get_rollout_context()
        expect(left == "main", f"later calls belong to {left!r}")
        expect(active is rollout, "the active rollout changed")

    @check("routing")
    async def test_call_without_an_agent_belongs_to_the_scope(self) -> None:
        """If this fails, the model invents an owner; without an agent, leave it to the scope."""
        model = self.fixtures.create_model()
        with ScriptedPolicy("hi") as policy, policy.rollout():
            await self.fixtures.call_model(model)
            with agent_scope("judge"):
                await self.fixtures.call_model(model)
        owners = [request.sample_id for request in policy.requests]
        expect(owners == ["main", "judge"], f"the calls belong to {owners}")


class Outside(AdapterSuite):
    """A model may live anywhere; a call outside a rollout is a typed error."""

    @check("outside")
    async def test_model_lives_outside_of_rollouts(self) -> None:
        """If this fails, creating or copying the model needs a rollout; bind when called."""
        model = copy.copy(copy.deepcopy(self.fixtures.create_model()))
        with ScriptedPolicy("hi") as policy:
            for _ in range(2):
                rollout = await self.run(policy, model=model)
                expect(len(rollout.calls) == 1, f"one run made {len(rollout.calls)} calls")

    @check("outside")
    async def test_calling_the_model_outside_a_rollout_says_so(self) -> None:
        """If this fails, let PolicyNotBoundError through (or raise yours from it)."""
        await self._is_refused(self.fixtures.create_model())

    @check("outside")
    async def test_model_of_a_finished_rollout_is_not_bound_any_more(self) -> None:
        """If this fails, the model keeps the rollout it was created in; bind when it is called."""
        with ScriptedPolicy("hi") as policy:
            with policy.rollout():
                model = self.fixtures.create_model()
                await self.fixtures.call_model(model)
            await self._is_refused(model)
        expect(len(policy.requests) == 1, "a call outside a rollout reached the policy")

    async def _is_refused(self, model: object) -> None:
        try:
            await self.fixtures.call_model(model)
        except Exception as error:
            kinds = [type(link).__name__ for link in causes(error)]
            is_typed = any(isinstance(link, PolicyNotBoundError) for link in causes(error))
            expect(is_typed, f"a call outside a rollout raises {kinds}, not PolicyNotBoundError")
        else:
            expect(False, "a call outside a rollout succeeds")

    @check("outside")
    async def test_agent_outside_a_rollout_says_so(self) -> None:
        """If this fails, raise NoActiveRolloutError when an agent has no rollout to belong to."""
        typed = NoActiveRolloutError, PolicyNotBoundError
        try:
            await self.agent()
        except Exception as error:
            kinds = [type(link).__name__ for link in causes(error)]
            expect(any(isinstance(e, typed) for e in causes(error)), f"it raises {kinds}")
        else:
            expect(False, "an agent outside a rollout runs")

    @check("outside")
    async def test_model_created_in_one_rollout_serves_the_next(self) -> None:
        """If this fails, the model is bound when it is created; bind when it is called."""
        with ScriptedPolicy("hi") as policy:
            with policy.rollout("first"):
                model = self.fixtures.create_model()
            with policy.rollout("second") as rollout:
                await self.agent(model=model)
                sample = await only(rollout)
        found = [request.rollout_id for request in policy.requests]
        expect(found == ["second"], f"the call belongs to rollout {found}")
        expect("hi" in native(sample), "the answer is not in the sample")

    @check("outside")
    async def test_finished_rollouts_are_let_go(self) -> None:
        """If this fails, model or adapter keeps rollouts alive; hold them by weak reference."""
        model = self.fixtures.create_model()
        with ScriptedPolicy("hi") as policy:

            def run() -> weakref.ref[RolloutContext]:
                return weakref.ref(asyncio.run(self.run(policy, model=model)))

            kept = [await asyncio.to_thread(run) for _ in range(3)]
        gc.collect()
        alive = sum(rollout() is not None for rollout in kept)
        expect(alive == 0, f"{alive} of 3 finished rollouts are still in memory")
