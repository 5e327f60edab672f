"""A rollout service in a process of its own, driven by lines of JSON on stdin; tests kill it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from osmosis_core import AgentWorkflow, ExecutionRequest, ExecutionResult, Grader, LocalBackend
from osmosis_server.journal import Journal
from osmosis_server.protocols.base import Protocol
from osmosis_server.service import RolloutService
from osmosis_server.settings import ServerSettings
from osmosis_server.submissions import Delivery, Refused, Submission


class CalledBack(Protocol):
    """One completion, and a grader's report where one is asked for."""

    name = "called-back"

    def routes(self):
        return ()

    def wants_grading(self, submission: Submission) -> bool:
        return "grader" in submission.reply_to

    def workflow_done(self, submission: Submission, result: ExecutionResult) -> list[Delivery]:
        return [self._delivery("completion", submission, result)]

    def rollout_done(self, submission: Submission, result: ExecutionResult) -> list[Delivery]:
        graded = self.wants_grading(submission)
        return [self._delivery("grader", submission, result)] if graded else []

    def _delivery(self, name: str, submission: Submission, result: ExecutionResult) -> Delivery:
        body = {
            "id": submission.request.id,
            "kind": name,
            "status": result.status,
            "reward": result.sample and result.sample.reward,
            "err_message": result.err_message,
        }
        return Delivery(name, submission.reply_to[name], json.dumps(body).encode())


class Polled(Protocol):
    """The messages are the result."""

    name = "polled"

    def routes(self):
        return ()

    def result_body(self, submission: Submission, result: ExecutionResult) -> bytes:
        return json.dumps({"messages": result.sample and result.sample.messages}).encode()


class Sleeps(AgentWorkflow):
    """Takes as many seconds as the row says."""

    async def run(self, ctx):
        await asyncio.sleep((ctx.metadata or {}).get("work_sec", 0))
        return [{"role": "assistant", "content": "4"}]


class SleepyGrader(Grader):
    """Gives the reward that the label says, after a while."""

    async def grade(self, ctx):
        await asyncio.sleep((ctx.metadata or {}).get("grade_sec", 0))
        ctx.set_reward(float(ctx.label))


def submission(row: dict[str, Any]) -> Submission:
    request = {"prompt": [{"role": "user", "content": "2+2?"}], "label": "1", **row["request"]}
    return Submission(
        ExecutionRequest(row["id"], **request),
        "called-back" if row.get("reply_to") else "polled",
        "http://127.0.0.1:9/v1",
        reply_to=row.get("reply_to", {}),
        lease_token=None if row.get("reply_to") else "t",
        fingerprint="f",
    )


async def main(path: str, options: dict[str, Any]) -> None:
    backend = LocalBackend(
        workflow=Sleeps, grader=SleepyGrader, max_concurrent=8, artifacts_root=path + ".artifacts"
    )
    settings = ServerSettings(drain_grace_sec=20, delivery_timeout_sec=2, **options)
    protocols = {protocol.name: protocol for protocol in (CalledBack(), Polled())}
    service = RolloutService(backend, Journal.open(path), settings, protocols)
    await service.start()
    say("started")
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    admissions: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(admit(service, json.loads(line)))
        admissions.add(task)
        task.add_done_callback(admissions.discard)
    await service.close()
    say("closed")


async def admit(service: RolloutService, row: dict[str, Any]) -> None:
    try:
        await service.admit(submission(row))
        say(f"admitted {row['id']}")
    except Refused as refusal:
        say(f"refused {row['id']} {type(refusal).__name__}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
