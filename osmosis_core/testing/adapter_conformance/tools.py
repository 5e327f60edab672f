"""Tools: offered as declared, called as asked, answered under the id of the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from osmosis_core.active import get_rollout_context
from osmosis_core.context import RolloutContext
from osmosis_core.testing.adapter_conformance.kit import (
    AdapterSuite,
    add,
    check,
    expect,
    is_told,
    native,
    only,
    sent,
    tool_then,
)
from osmosis_core.testing.scripted import ScriptedPolicy, Status, Tool, Turn


def book_room(
    city: str, nights: int, price: float, breakfast: bool = False, tags: list[str] | None = None
) -> str:
    """Book a room in a hotel."""
    return f"{city}/{nights!r}/{price!r}/{breakfast!r}/{tags!r}"


class Tools(AdapterSuite):
    """What every adapter must do with tools."""

    @check("tools")
    async def test_tool_is_called_and_its_result_goes_back(self) -> None:
        """If this fails, arguments or results are lost between policy, framework and tool."""
        seen: list[tuple[int, int]] = []

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            seen.append((a, b))
            return a + b + 1000

        with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "done") as policy:
            sample = await self.sample(policy, tools=[add])
        expect(seen == [(1, 2)], f"add was called with {seen}")
        made = (sample.calls[0].answer or {})["tool_calls"][0]["id"]
        results = [m for m in sample.calls[1].messages if m["role"] == "tool"]
        ids = [message["tool_call_id"] for message in results]
        expect(ids == [made], f"the call {made} was answered under {ids}")
        expect("1003" in str(results), f"the tool's result 1003 became {results}")

    @check("tools")
    async def test_several_calls_of_one_answer_are_all_answered(self) -> None:
        """If this fails, only one of several tool calls is run or answered; answer each by id."""
        turn = Turn((Tool("add", {"a": 100, "b": 1}), Tool("add", {"a": 200, "b": 2})))
        with ScriptedPolicy(turn, "done") as policy:
            sample = await self.sample(policy, tools=[add])
        made = [call["id"] for call in (sample.calls[0].answer or {})["tool_calls"]]
        results = {
            m["tool_call_id"]: str(m["content"])
            for m in sample.calls[1].messages
            if m["role"] == "tool"
        }
        expect(sorted(results) == sorted(made), f"calls {made} were answered as {list(results)}")
        is_right = "101" in results[made[0]] and "202" in results[made[1]]
        expect(is_right, f"the results 101 and 202 became {results}")

    @check("tools")
    async def test_no_tools_means_none_on_the_wire(self) -> None:
        """If this fails, an empty tools list is sent, which engines refuse; leave it out."""
        with ScriptedPolicy("hi") as policy:
            await self.run(policy)
        body = policy.requests[0].body
        expect("tools" not in body or body["tools"], "the request has an empty tools list")

    @check("tools")
    async def test_error_of_a_tool_is_not_swallowed(self) -> None:
        """If this fails, a tool that raises looks fine; tell the policy, or let it raise."""

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            raise ValueError("the tool is broken")

        with ScriptedPolicy(Tool("add", {"a": 1, "b": 2}), "done") as policy:
            error, rollout = await self.failure(policy, tools=[add])
        expect(
            error is not None or is_told(policy), "neither the caller nor the policy heard of it"
        )
        expect("add" in native(await only(rollout)), "the turn that called it is not in the sample")

    @check("tools")
    async def test_unknown_tool_keeps_the_turn(self) -> None:
        """If this fails, an answer that names an unknown tool is lost with its turn; keep both."""
        with ScriptedPolicy(Tool("no_such_tool", {"a": 1}), "done") as policy:
            error, rollout = await self.failure(policy, tools=[add])
        sample = await only(rollout)
        expect(sample.calls[0].error is None, "the policy's answer counts as failed")
        expect("no_such_tool" in native(sample), "the answer is not in the sample's messages")
        expect(
            error is not None or is_told(policy), "neither the caller nor the policy heard of it"
        )

    @check("tools")
    async def test_arguments_that_are_not_json_call_nothing(self) -> None:
        """If this fails, broken arguments are repaired into a call; report them instead."""
        seen: list[Any] = []

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            seen.append((a, b))
            return 0

        with ScriptedPolicy(Tool("add", '{"a": 1, "b"'), "done") as policy:
            _, rollout = await self.failure(policy, tools=[add])
        expect(not seen, f"the tool was called with {seen}")
        made = (rollout.calls[0].answer or {})["tool_calls"][0]["function"]["arguments"]
        expect(made == '{"a": 1, "b"', f"the call's record says {made!r}")

    @check("tools")
    async def test_tool_runs_once_when_the_next_call_is_retried(self) -> None:
        """If this fails, a retry repeats the turn; leave retries to the transport."""
        seen: list[int] = []

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            seen.append(a)
            return a + b

        script = Tool("add", {"a": 1, "b": 2}), Status(500), Status(429, retry_after="0"), "done"
        with ScriptedPolicy(*script) as policy:
            sample = await self.sample(policy, tools=[add])
        expect(seen == [1], f"the tool ran {len(seen)} times")
        tries = [len(call.attempts) for call in sample.calls]
        expect(tries == [1, 3], f"the calls took {tries} tries")

    @check("tools")
    async def test_tool_sees_the_rollout(self) -> None:
        """If this fails, tools run where context variables are lost; copy the context there."""
        seen: list[RolloutContext | None] = []

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            seen.append(get_rollout_context())
            return a + b

        with ScriptedPolicy(tool_then("done")) as policy:
            rollout = await self.run(policy, tools=[add])
        expect(seen == [rollout], f"inside the tool the active rollout is {seen}")


class ToolSchemas(AdapterSuite):
    """Tools of any signature."""

    @check("tool_schemas")
    async def test_schema_arrives_as_declared(self) -> None:
        """If this fails, parameters or the description are lost; send the framework's schema."""
        function = (await self._offered(book_room))[0]
        expect(function["name"] == "book_room", f"the tool is called {function['name']!r}")
        about = str(function.get("description"))
        expect("Book a room in a hotel" in about, f"its description is {about!r}")
        names = set(function["parameters"]["properties"])
        wanted = {"city", "nights", "price", "breakfast", "tags"}
        expect(names == wanted, f"its parameters are {sorted(names)}")

    @check("tool_schemas")
    async def test_parameter_types_arrive(self) -> None:
        """If this fails, annotations are not turned into JSON types; send the whole schema."""
        function = (await self._offered(book_room))[0]
        properties = function["parameters"]["properties"]
        wanted = {"city": "string", "nights": "integer", "price": "number", "breakfast": "boolean"}
        found = {name: properties[name].get("type") for name in wanted}
        expect(found == wanted, f"the parameter types are {found}")
        expect("array" in str(properties["tags"]), f"the list became {properties['tags']}")

    @check("tool_schemas")
    async def test_required_parameters_arrive(self) -> None:
        """If this fails, the schema's `required` is dropped; the policy may leave arguments out."""
        parameters = (await self._offered(book_room))[0]["parameters"]
        required: set[str] = set(parameters.get("required") or [])
        missing = sorted({"city", "nights", "price"} - required)
        expect(not missing, f"{missing} are not required")

    @check("tool_schemas")
    async def test_arguments_keep_their_types(self) -> None:
        """If this fails, arguments are rebuilt from text; parse the call's JSON once."""
        arguments = {"city": "Köln", "nights": 2, "price": 99.5, "breakfast": True, "tags": ["a"]}
        with ScriptedPolicy(Tool("book_room", arguments), "done") as policy:
            sample = await self.sample(policy, tools=[book_room])
        text = native(sample)
        expect("Köln/2/99.5/True/['a']" in text, "the tool did not get the arguments as they were")

    @check("tool_schemas")
    async def test_many_tools_arrive_once_each(self) -> None:
        """If this fails, tools are dropped or repeated when an agent has many."""
        offered = await self._offered(*(_numbered(number) for number in range(20)))
        names = [function["name"] for function in offered]
        wanted = [f"tool_{number}" for number in range(20)]
        expect(sorted(names) == sorted(wanted), f"the request offers {names}")

    @check("parallel_tools")
    async def test_tool_calls_of_one_answer_run_at_once(self) -> None:
        """If this fails, tools run one after the other; withdraw `parallel_tools`."""
        gate = threading.Barrier(2)

        def add(a: int, b: int) -> str:
            """Add two numbers."""
            gate.wait(timeout=3)
            return f"met {a}"

        turn = Turn((Tool("add", {"a": 1, "b": 0}), Tool("add", {"a": 2, "b": 0})))
        with ScriptedPolicy(turn, "done") as policy:
            sample = await self.sample(policy, tools=[add])
        text = sent(sample.calls[1])
        expect("met 1" in text and "met 2" in text, "the two calls never ran at the same time")

    async def _offered(self, *tools: Callable[..., Any]) -> list[dict[str, Any]]:
        with ScriptedPolicy("hi") as policy:
            await self.run(policy, tools=list(tools))
        expect(policy.requests[0].body.get("tools"), "the request offers no tools")
        return [tool["function"] for tool in policy.requests[0].body["tools"]]


def _numbered(number: int) -> Callable[..., Any]:
    def tool(a: int) -> int:
        """Do something with a number."""
        return a

    tool.__name__ = tool.__qualname__ = f"tool_{number}"
    return tool
