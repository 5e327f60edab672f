"""The same results as `LocalBackend`'s, byte for byte, and each event told once."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from pydantic import TypeAdapter

from osmosis_core.backend import ExecutionBackend
from osmosis_core.backends.local import LocalBackend
from osmosis_core.grader import Grader
from osmosis_core.plugins import get_plugins
from osmosis_core.testing import conformance_travellers as travellers
from osmosis_core.testing import conformance_workflows as programs
from osmosis_core.testing.backend_conformance.kit import (
    FAST_RETRY,
    BackendSuite,
    request,
    run,
    said,
)
from osmosis_core.testing.scripted import ScriptedPolicy, Status, Tool
from osmosis_core.types import ExecutionRequest, ExecutionResult
from osmosis_core.workflow import AgentWorkflow

_VOLATILE = ("call_id", "started_at", "duration_sec", "queued_sec", "grading_sec")
_SCRIPT = (Tool("multiply", {"by": 6}), "It is 42 ☃", "Nothing to report")
_RESULTS: TypeAdapter[ExecutionResult] = TypeAdapter(ExecutionResult)

type Scenario = tuple[type[AgentWorkflow[Any]], type[Grader], ExecutionRequest]


class Sameness(BackendSuite):
    """The same results as `LocalBackend`'s, byte for byte, and each event told once."""

    async def test_conversations_are_the_same_as_on_the_local_backend(self) -> None:
        """Samples, recorded calls, rewards and marks: all but times and ids of calls.

        If this fails, report what `phase.run` returns as it is, with all of its samples.
        """
        graded = travellers.Converses, travellers.RewardsByLength
        await self._check_same((*graded, request(metadata={"list": [1, 2.5, None]})))
        await self._check_same((*graded, request(metadata={"fail": True})))

    async def test_failures_are_the_same_as_on_the_local_backend(self) -> None:
        """Texts, categories and what was collected.

        If this fails, report what `phase.run` returns as it is.
        """
        raising = request(metadata={"error": "ValueError"})
        await self._check_same((programs.Raises, programs.Rewards, raising))
        graded = request(metadata={"error": "RuntimeError"})
        await self._check_same((programs.Answers, programs.GraderRaises, graded))
        for returned in ("none", "output", "a string"):
            odd = request(metadata={"returns": returned})
            await self._check_same((programs.Returns, programs.Rewards, odd))

    async def test_failing_policy_is_the_same_as_on_the_local_backend(self) -> None:
        """Tries, errors and the failed call.

        If this fails, let the policy's retry settings travel with the phase.
        """
        asking = programs.CallsPolicy, programs.Rewards, request()
        await self._check_same(asking, Status(500), Status(400, "no such model"))

    async def _check_same(self, scenario: Scenario, *script: Any) -> None:
        workflow, grader, one = scenario
        local = await _told(LocalBackend(workflow=workflow, grader=grader), one, script)
        async with self.opened(workflow, grader) as backend:
            assert await _told(backend, one, script) == local

    async def test_observers_hear_each_event_once_and_here(self) -> None:
        """Rollout, agents and policy calls, in the order of events.

        If this fails, set `is_elsewhere`, and `get_plugins().is_silent` where phases run.
        """
        with ScriptedPolicy(*_SCRIPT) as policy, policy.rollout(), _heard() as events:
            await self.ran(request(), travellers.Converses, travellers.RewardsByLength)
        names = [name.removeprefix("osmosis_") for name, _ in events]
        assert (names[0], names[-1]) == ("rollout_started", "rollout_finished")
        assert names.count("rollout_started") == names.count("rollout_finished") == 1
        agents = [told["sample_id"] for _, told in events if "sample_id" in told]
        assert agents == ["solver", "sp%C3%A4her"]
        assert [told["call"].index for _, told in events if "call" in told] == [0, 1, 2]

    async def test_observers_are_silent_in_other_processes(self) -> None:
        """Plugins are loaded there too, but whatever they observed would be observed twice.

        If this fails, say `get_plugins().is_silent = True` before the first phase runs there.
        """
        told = said((await self.ran(request(), travellers.SaysWhoListens)).workflow)
        process, is_silent = told.split()
        assert is_silent == str(process != str(os.getpid())), told


async def _told(
    backend: ExecutionBackend, request: ExecutionRequest, script: tuple[Any, ...]
) -> list[bytes]:
    """What a backend reports, without what differs from run to run."""
    with ScriptedPolicy(*(script or _SCRIPT)) as policy:
        with policy.rollout(retry=FAST_RETRY, model="same"):
            reported = await run(backend, request)
        texts = [_RESULTS.dump_json(result).decode() for result in reported.results]
        told = [json.loads(text.replace(policy.base_url, "URL")) for text in texts]
    return [json.dumps(_steady(result)).encode() for result in told]


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {name: _steady(inner) for name, inner in members if name not in _VOLATILE}
    if isinstance(value, list):
        return [_steady(inner) for inner in cast("list[Any]", value)]
    return value


@contextmanager
def _heard() -> Generator[list[tuple[str, dict[str, Any]]]]:
    """What observers of this process are told."""
    plugins, events = get_plugins(), list[tuple[str, dict[str, Any]]]()

    def notify(hook: str, **told: Any) -> None:
        events.append((hook, told))

    vars(plugins)["notify"] = notify
    try:
        yield events
    finally:
        del vars(plugins)["notify"]
