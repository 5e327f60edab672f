"""Rollouts whose controllers are called back: order, failures, restarts."""

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest

from osmosis_core import Grader
from osmosis_server.submissions import Duplicate

SERVED = Path(__file__).with_name("served.py")


class Told(Grader):
    """Grades with the number of callbacks that the controller has taken by then."""

    controller = None

    async def grade(self, ctx):
        ctx.set_reward(float(len(self.controller.got)))


def kinds(controller):
    return [(g["kind"], g["status"]) for g in controller.got if g["answer"] == 200]


async def test_completion_is_delivered_before_grading_begins(
    serve, local, controller, called_back, until
):
    Told.controller = controller
    controller.answers["/r1/completion"] = [503]
    async with serve(local(grader=Told)) as service:
        await service.admit(called_back(controller.url))
        await controller.until(3)
    assert kinds(controller) == [("completion", "success"), ("grader", "success")]
    assert controller.got[-1]["reward"] == 2.0


async def test_grading_goes_on_when_the_controller_is_away_and_the_order_is_kept(
    serve, local, controller, called_back, until
):
    await controller.stop()
    async with serve(local(), delivery_timeout_sec=0.1) as service:
        await service.admit(called_back(controller.url))
        await until(lambda: service.stats().finished["success"])
    assert controller.got == []
    await controller.start()
    async with serve(local()):
        await controller.until(2)
    assert kinds(controller) == [("completion", "success"), ("grader", "success")]


async def test_grading_goes_on_when_the_completion_is_refused(
    serve, local, controller, called_back
):
    controller.answers["/r1/completion"] = [404]
    async with serve(local()) as service:
        await service.admit(called_back(controller.url))
        await controller.until(2)
    assert kinds(controller) == [("grader", "success")]


async def test_without_grading_the_completion_is_all(serve, local, controller, called_back):
    async with serve(local()) as service:
        await service.admit(called_back(controller.url, graded=False))
        await controller.until(1)
    assert kinds(controller) == [("completion", "success")]


async def test_finished_rollout_is_not_run_twice(serve, local, controller, called_back, until):
    async with serve(local()) as service:
        await service.admit(called_back(controller.url))
        await until(lambda: service.stats().delivered == 2)
    async with serve(local()) as service:
        with pytest.raises(Duplicate) as refused:
            await service.admit(called_back(controller.url))
    assert refused.value.is_same and len(controller.got) == 2


async def test_cancelled_rollout_tells_both(serve, local, controller, called_back, gate, until):
    async with serve(local(gate.workflow)) as service:
        await service.admit(called_back(controller.url))
        await until(lambda: gate.held)
        await service.cancel(ids=["r1"])
        await controller.until(2)
    assert kinds(controller) == [("completion", "cancelled"), ("grader", "cancelled")]


@pytest.fixture
async def server(path):
    """Start a service in a process of its own, with rollouts; it is killed in the end."""
    servers: list[asyncio.subprocess.Process] = []

    async def start(*rows, **options):
        program = [sys.executable, str(SERVED), str(path), json.dumps(options)]
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        path.parent.mkdir(exist_ok=True)
        server = await asyncio.create_subprocess_exec(*program, **pipes)
        servers.append(server)
        async with asyncio.timeout(30):
            assert await server.stdout.readline() == b"started\n"
            for row in rows:
                server.stdin.write(json.dumps(row).encode() + b"\n")
                assert (await server.stdout.readline()).startswith(b"admitted")
        return server

    yield start
    for server in servers:
        if server.returncode is None:
            await killed(server)


async def killed(server) -> None:
    server.kill()
    await server.communicate()


def row(controller, rollout_id="r1", **metadata):
    reply_to = {k: f"{controller.url}/{rollout_id}/{k}" for k in ("completion", "grader")}
    return {"id": rollout_id, "reply_to": reply_to, "request": {"metadata": metadata}}


async def graded(controller, until) -> list[tuple[str, str]]:
    """What the controller was told, once the grader's report is there; repetitions left out."""
    await until(lambda: "grader" in dict(kinds(controller)))
    return list(dict.fromkeys(kinds(controller)))


async def test_restart_while_grading_does_not_contradict_the_completion(server, controller, until):
    first = await server(row(controller, grade_sec=60))
    await controller.until(1)
    await killed(first)
    await server()
    told = await graded(controller, until)
    assert told == [("completion", "success"), ("grader", "failure")]
    assert (
        "the rollout server restarted before this rollout ended"
        in (controller.got[-1]["err_message"])
    )


async def test_rerun_tells_the_completion_once(server, controller, until):
    first = await server(row(controller, grade_sec=2))
    await controller.until(1)
    await killed(first)
    await server(on_restart="rerun")
    told = await graded(controller, until)
    assert told == [("completion", "success"), ("grader", "success")]


@pytest.mark.parametrize(("on_restart", "status"), [("fail", "failure"), ("rerun", "success")])
async def test_restart_fails_or_reruns_what_was_running(
    server, controller, until, on_restart, status
):
    await killed(await server(row(controller, work_sec=1)))
    await server(on_restart=on_restart)
    told = await graded(controller, until)
    assert told == [("completion", status), ("grader", status)]


async def test_restart_runs_what_had_not_begun(server, controller, until):
    rows = [row(controller, f"r{n}", work_sec=60 if n < 8 else 0) for n in range(12)]
    await killed(await server(*rows))
    await server()
    await until(lambda: len({body["id"] for body in controller.got}) == 12)
    await until(lambda: kinds(controller).count(("grader", "success")) >= 4)
    ended = {body["id"]: body["status"] for body in controller.got if body["kind"] == "grader"}
    assert {name for name, status in ended.items() if status == "success"} == {
        f"r{n}" for n in range(8, 12)
    }


async def test_what_began_late_is_not_taken_for_new_after_a_restart(server, controller, until):
    rows = [row(controller, f"r{n}", work_sec=0.2 + n / 20 if n < 8 else 60) for n in range(10)]
    first = await server(*rows)
    await until(lambda: kinds(controller).count(("grader", "success")) >= 8)
    await killed(first)
    await server()
    await until(lambda: kinds(controller).count(("grader", "failure")) >= 2)
    assert {body["id"] for body in controller.got if body["status"] == "failure"} == {"r8", "r9"}


async def test_protocol_that_is_served_no_more_ends_its_rollouts_untold(
    server, serve, local, controller, until, caplog
):
    await killed(await server(row(controller, work_sec=60)))
    async with serve(local(), protocols=()) as service:
        await until(lambda: service.stats().finished["failure"] == 1)
    assert "protocol 'called-back', which is not served any more" in caplog.text


async def _chaos(server, controller, *, kills: int, rollouts: int) -> None:
    """Kill the server again and again while it runs rollouts; then check what was told."""
    admitted: set[str] = set()
    for n in range(kills):
        rows = [
            row(controller, f"r{n}-{k}", work_sec=random.random() / 5, grade_sec=0.05)
            for k in range(rollouts)
        ]
        for refused in random.sample(rows, rollouts // 4):
            controller.answers[f"/{refused['id']}/completion"] = [503, 500]
        running = await server(*rows)
        admitted |= {one["id"] for one in rows}
        await asyncio.sleep(random.random() / 3)
        await killed(running)
    last = await server()
    last.stdin.write_eof()
    async with asyncio.timeout(60):
        while await last.stdout.readline() != b"closed\n":
            pass
    told: dict[str, list[tuple[str, str]]] = {}
    for got in controller.got:
        if got["answer"] == 200:
            once = told.setdefault(got["id"], [])
            if (got["kind"], got["status"]) not in once:
                once.append((got["kind"], got["status"]))
    assert set(told) == admitted
    for sequence in told.values():
        assert [kind for kind, _ in sequence] == ["completion", "grader"]
    assert {g["reward"] for g in controller.got if g["status"] == "failure"} <= {None}


async def test_killed_server_tells_every_rollout_one_end(server, controller):
    await _chaos(server, controller, kills=3, rollouts=20)


@pytest.mark.slow
async def test_often_killed_server_tells_every_rollout_one_end(server, controller):
    await _chaos(server, controller, kills=30, rollouts=60)
