"""Many mixed rollouts at once, each call and message checked; prints one table.

A rollout is a chain of four agents, one of each framework and one over the bare SDK, in one of all
orders, with a word of its own that every message carries. `mixed.py 1000` rolls out fewer.
"""

import asyncio
import json
import re
import resource
import sys
import time
from dataclasses import dataclass, field

from mixed_team import KINDS, ORDERS, chain, play, speaker

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    Grader,
    LocalBackend,
    RolloutContext,
)
from osmosis_core.testing.server import PolicyServer, completion, send

ROLLOUTS = 10_000
AT_ONCE = 1_000
TEAMS = [chain(order) for order in ORDERS]
"""Shared by all rollouts, as agents at module level are."""
WORD = re.compile(r"word-\d+-")


def team(number):
    return number % len(ORDERS)


class Answers(PolicyServer):
    """Plays every agent, and holds what it is asked against the labels of the call."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong, self.calls = wrong, 0

    async def respond(self, request, body):
        self.calls += 1
        number = request.headers["x-rollout-id"].removeprefix("r")
        labels = {
            "words": set(WORD.findall(json.dumps(body))) == {f"word-{number}-"},
            "key": request.headers["authorization"] == f"Bearer key-{number}",
            "sample": request.headers["x-sample-id"] == speaker(body["messages"]),
        }
        self.wrong += [f"r{number}: wrong {what}" for what, right in labels.items() if not right]
        answer = play(body)
        message = {"role": "assistant", "content": answer if isinstance(answer, str) else ""}
        if not isinstance(answer, str):
            message["tool_calls"] = [
                {
                    "id": f"call-{number}-{self.calls}-{position}",
                    "type": "function",
                    "function": {"name": tool.name, "arguments": json.dumps(tool.arguments)},
                }
                for position, tool in enumerate(answer.tools)
            ]
        finish_reason = "tool_calls" if "tool_calls" in message else "stop"
        return await send(request, body, completion(body, message, finish_reason, f"a{number}"))


class Relay(AgentWorkflow):
    async def run(self, ctx):
        await TEAMS[team(ctx.metadata["number"])].run(ctx.prompt[0]["content"])


class Rank(Grader):
    """A reward of its own for every agent of every rollout."""

    async def grade(self, ctx):
        for position, kind in enumerate(ORDERS[team(ctx.metadata["number"])]):
            ctx.set_sample_reward(kind, float(4 * ctx.metadata["number"] + position))


@dataclass
class Figures:
    rollouts: int = 0
    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def check(number, result, figures):
    """Every call and message of a finished rollout is its own, and of the right agent."""
    order, word = ORDERS[team(number)], f"word-{number}-"
    down = [(kind, None if depth == 0 else depth - 1) for depth, kind in enumerate(order)]
    calls = sorted((c for s in result.samples.values() for c in s.calls), key=lambda c: c.index)
    claims = {
        "status": result.err_message is None and result.status == "success",
        "samples": set(result.samples) == set(KINDS),
        "rewards": [result.samples[kind].reward for kind in order]
        == [float(4 * number + position) for position in range(len(order))],
        "callers": [(c.sample_id, c.started_by) for c in calls] == [*down, *down[-2::-1]],
        "rollout": {call.rollout_id for call in calls} == {f"r{number}"},
        "messages": all(
            set(WORD.findall(str(sample.messages))) == {word} for sample in result.samples.values()
        ),
    }
    figures.rollouts += 1
    figures.calls += len(calls)
    figures.wrong += [f"r{number}: wrong {what}" for what, right in claims.items() if not right]


async def crowd(count, at_once=AT_ONCE):
    """Roll out `count` mixed rollouts, `at_once` at a time; what is wrong is in the figures."""
    figures = Figures()
    config = AgentWorkflowConfig(name="mixed", concurrency=ConcurrencyConfig(max_concurrent=None))
    backend = LocalBackend(workflow=Relay, workflow_config=config, grader=Rank)
    slots = asyncio.Semaphore(at_once)

    async def one(number):
        async def graded(result):
            check(number, result, figures)

        async def ended(result): ...

        prompt = [{"role": "user", "content": f"word-{number}-"}]
        metadata = {"number": number}
        request = ExecutionRequest(f"r{number}", prompt, "", metadata)
        async with slots, RolloutContext(policy.base_url, f"key-{number}"):
            await backend.execute(request, ended, graded)

    with Answers(figures.wrong) as policy:
        began = time.perf_counter()
        await asyncio.gather(*map(one, range(count)))
        figures.seconds = time.perf_counter() - began
        if policy.calls != figures.calls:
            figures.wrong.append(f"{policy.calls} calls came, {figures.calls} are in samples")
    return figures


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROLLOUTS
    figures = asyncio.run(crowd(count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"## Mixed rollouts: four frameworks deep, {min(count, AT_ONCE):,} at once\n")
    print("| rollouts | policy calls | mix-ups | rollouts/s | calls/s | peak memory |")
    print("|---|---|---|---|---|---|")
    rates = (figures.rollouts / figures.seconds, figures.calls / figures.seconds)
    print(
        f"| {figures.rollouts:,} | {figures.calls:,} | {len(figures.wrong)} | {rates[0]:.0f} "
        f"| {rates[1]:.0f} | {peak:.0f} MiB |"
    )
    for line in figures.wrong[:20]:
        print(f"- {line}")
    sys.exit(bool(figures.wrong))


if __name__ == "__main__":
    main()
