"""Agents as tools: a sample each, and every call names the call that started its agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osmosis_core.testing.adapter_conformance.kit import (
    FAST_RETRY,
    AdapterSuite,
    check,
    expect,
    is_told,
    native,
    sent,
    user,
)
from osmosis_core.testing.scripted import Answer, Received, ScriptedPolicy, Status, Tool
from osmosis_core.types import ExecutionResult, RolloutSample, RolloutStatus


def _delegates(names: Sequence[str], times: int = 1) -> Any:
    """Each agent calls the one it may call so often, then says who it is."""

    def answer(request: Received) -> Answer:
        tools: list[dict[str, Any]] = request.body.get("tools") or []
        agents = [tool["function"] for tool in tools if tool["function"]["name"] in names]
        done = sum(message["role"] == "tool" for message in request.body["messages"])
        if not agents or done >= times:
            return f"{request.sample_id} is done"
        parameters: dict[str, Any] = agents[0]["parameters"]
        wanted: list[str] = parameters.get("required") or list(parameters.get("properties") or ())
        return Tool(agents[0]["name"], {name: f"TASK-{done}" for name in wanted})

    return answer


class Teams(AdapterSuite):
    """Sub-agents."""

    async def _team(self, *names: str, times: int = 1) -> dict[str, RolloutSample]:
        with ScriptedPolicy(_delegates(names, times)) as policy, policy.rollout() as rollout:
            await self.fixtures.run_team(names, user("BOSS-PROMPT"))
            return await rollout.get_samples()

    @check("sub_agents")
    async def test_sub_agent_is_its_own_sample(self) -> None:
        """If this fails, a sub-agent's calls are taken for its caller's; scope each run."""
        samples = await self._team("boss", "aide")
        counts = {name: len(sample.calls) for name, sample in samples.items()}
        expect(counts == {"boss": 2, "aide": 1}, f"the samples have the calls {counts}")
        expect("BOSS-PROMPT" not in sent(samples["aide"].calls[0]), "aide was sent boss's prompt")
        expect("TASK-0" in native(samples["aide"]), "the sub-agent's sample lacks its task")
        expect("aide is done" in native(samples["boss"]), "boss never got the aide's answer")

    @check("sub_agents")
    async def test_sub_agent_names_the_call_that_started_it(self) -> None:
        """If this fails, tools inherit nothing from the model call; see `in_tool_of`."""
        samples = await self._team("boss", "aide")
        starter = samples["aide"].calls[0].started_by
        asked = samples["boss"].calls[0].index
        expect(starter == asked, f"aide was started by call {starter}, not by call {asked}")
        roots = [call.started_by for call in samples["boss"].calls]
        expect(roots == [None, None], f"boss was started by {roots}")

    @check("sub_agents")
    async def test_sub_agents_nest_four_deep(self) -> None:
        """If this fails, a nested agent is attributed to another level; scope each run."""
        names = "one", "two", "three", "four"
        samples = await self._team(*names)
        tree = ExecutionResult(RolloutStatus.SUCCESS, samples).tree()
        found = str(tree[0]).splitlines() if len(tree) == 1 else [str(root) for root in tree]
        calls = "2 calls", "2 calls", "2 calls", "1 call"
        wanted = [f"{'  ' * n}{names[n]}: {calls[n]}" for n in range(4)]
        expect(found == wanted, f"the tree of agents is {found}")

    @check("sub_agents")
    async def test_sub_agent_called_again_keeps_both_visits(self) -> None:
        """If this fails, a second visit replaces the first; keep your own record of messages."""
        samples = await self._team("boss", "aide", times=2)
        visits = [sample for name, sample in samples.items() if name != "boss"]
        text = "".join(native(sample) for sample in visits)
        lost = [task for task in ("TASK-0", "TASK-1") if task not in text]
        expect(not lost, f"the sub-agent's samples lack {lost}")
        count = sum(len(sample.calls) for sample in visits)
        expect(count == 2, f"two visits made {count} calls")
        asked = [call.index for call in samples["boss"].calls[:2]]
        starters = sorted(call.started_by or 0 for sample in visits for call in sample.calls)
        expect(starters == asked, f"the visits were started by calls {starters}, not {asked}")

    @check("sub_agents")
    async def test_failing_sub_agent_is_told_or_raised(self) -> None:
        """If this fails, a failed sub-agent looks like an empty answer; raise or report it."""
        delegates = _delegates(("boss", "aide"))

        def answer(request: Received) -> Answer:
            return Status(400, "aide broke") if request.sample_id == "aide" else delegates(request)

        error = None
        with ScriptedPolicy(answer) as policy, policy.rollout(retry=FAST_RETRY) as rollout:
            try:
                await self.fixtures.run_team(("boss", "aide"), user("go"))
            except Exception as raised:
                error = raised
            samples = await rollout.get_samples()
        expect(
            error is not None or is_told(policy), "neither the caller nor the policy heard of it"
        )
        expect(samples["aide"].calls[0].error, "the failed call is not in the sub-agent's sample")
