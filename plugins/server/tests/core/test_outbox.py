"""Deliveries: in order, at least once, over failures and restarts."""

import asyncio
import json
import time

import pytest

from osmosis_core import RolloutStatus
from osmosis_server.journal import Ending, Journal
from osmosis_server.observer import ServiceObserver
from osmosis_server.origins import Pace
from osmosis_server.outbox import Outbox
from osmosis_server.posting import Poster
from osmosis_server.stats import Stats
from osmosis_server.submissions import Delivery, RolloutView

FAST = Pace((0.01, 0.01, 0.02, 0.03), slow=0.05, max_slow=0.1, probe=0.05, max_probe=0.1, soon=0.02)


class Reports(ServiceObserver):
    def __init__(self):
        self.got = []

    def acknowledged(self, rollout_id, delivery, trajectory):
        self.got.append((rollout_id, delivery, trajectory))


class Sender:
    """A journal and an outbox, with rollouts that owe what a test says."""

    def __init__(self, path, submission, *, deadline_sec=60.0):
        self.journal, self.stats, self.observer = Journal.open(path), Stats(), Reports()
        self.submission = submission
        self.outbox = Outbox(
            self.journal,
            Poster(self.observer, 1.0),
            self.stats,
            deadline_sec=deadline_sec,
            first_tries_sec=5.0,
            pace=FAST,
        )

    async def owe(self, url, *names, rollout_id="r1", size=0):
        """Journal deliveries and hand them over."""
        loop = asyncio.get_running_loop()
        admitted, ended = loop.create_future(), loop.create_future()
        submission = self.submission(url, rollout_id)
        seq = self.journal.admit(submission, admitted.set_result).seq
        assert await admitted is None
        body = json.dumps({"id": rollout_id, "pad": "x" * size}).encode()
        owed = [Delivery(name, f"{url}/{rollout_id}/{name}", body) for name in names]
        numbered = self.journal.number(owed)
        view = RolloutView(rollout_id, RolloutStatus.SUCCESS)
        self.journal.finish(seq, Ending(view, time.time()), numbered, ended.set_result)
        assert await ended is None
        tries = loop.create_future()
        self.outbox.put(seq, rollout_id, submission.reply_key, numbered, tries)
        return tries

    async def close(self):
        await self.outbox.close()
        await self.journal.close()


@pytest.fixture
async def sender(path, called_back):
    sender = Sender(path, called_back)
    yield sender
    await sender.close()


@pytest.mark.parametrize("failure", [429, 500, 502, 503, 504])
async def test_failures_are_tried_again_in_order_with_the_bearer_key(sender, controller, failure):
    controller.answers["/r1/completion"] = [failure, failure]
    await (await sender.owe(controller.url, "completion", "grader"))
    assert [(g["path"], g["answer"]) for g in controller.got] == [
        ("/r1/completion", failure),
        ("/r1/completion", failure),
        ("/r1/completion", 200),
        ("/r1/grader", 200),
    ]
    assert {h["Authorization"] for h in controller.headers} == {"Bearer reply-secret"}
    assert {h["Content-Type"] for h in controller.headers} == {"application/json"}
    assert sender.outbox.outstanding == 0


@pytest.mark.parametrize("refusal", [400, 401, 404, 409, 422, 501, 505, 302])
async def test_refusal_is_final_and_does_not_hold_up_the_next(sender, controller, refusal, caplog):
    headers = {"Location": f"{controller.url}/elsewhere"}
    controller.answers["/r1/completion"] = [{"data": {}, "status": refusal, "headers": headers}]
    await (await sender.owe(controller.url, "completion", "grader"))
    assert [g["path"] for g in controller.got] == ["/r1/completion", "/r1/grader"]
    assert f"completion of rollout 'r1' to {controller.url} was refused (HTTP {refusal})" in (
        caplog.text
    )


async def test_retry_after_is_obeyed(sender, controller):
    slow = {"data": {}, "status": 429, "headers": {"Retry-After": "1"}}
    controller.answers["/r1/completion"] = [slow]
    await sender.owe(controller.url, "completion")
    await controller.until(1)
    await asyncio.sleep(0.3)
    assert len(controller.got) == 1
    await controller.until(2)


async def test_answer_that_never_comes_is_tried_again(sender, controller):
    controller.answers["/r1/completion"] = [never := asyncio.Event()]
    await (await sender.owe(controller.url, "completion"))
    never.set()
    assert len(controller.got) == 2


async def test_slow_tries_follow_the_quick_ones(sender, controller):
    controller.answers["/r1/completion"] = [500] * 8
    tries = await sender.owe(controller.url, "completion")
    await tries
    assert len(controller.got) == 5
    await controller.until(9)
    assert sender.stats.deliveries_retried == 8


async def test_deadline_ends_the_tries_and_is_logged(path, called_back, controller, caplog, until):
    sender = Sender(path, called_back, deadline_sec=0.3)
    controller.answers["/r1/completion"] = [500] * 1000
    await sender.owe(controller.url, "completion", "grader")
    await until(lambda: not sender.outbox.outstanding)
    assert "was not taken before its deadline; it is given up" in caplog.text
    assert sender.stats.deliveries_expired >= 1
    await sender.close()


async def test_host_that_is_away_is_told_all_when_it_is_back(sender, controller, until):
    await controller.stop()
    for n in range(100):
        await sender.owe(controller.url, "completion", "grader", rollout_id=f"r{n}")
    away = sender.outbox._origins[controller.url]
    await until(lambda: len(away._parked) >= 99)
    assert not any(step.delivery for line in away._parked for step in list(line.steps)[:1])
    await controller.start()
    await until(lambda: not sender.outbox.outstanding)
    told = [(g["id"], g["path"].rpartition("/")[2]) for g in controller.got]
    assert sorted(told) == sorted(set(told)) and len(told) == 200
    first = {rollout_id: told.index((rollout_id, "completion")) for rollout_id, _ in told}
    assert all(first[r] < told.index((r, "grader")) for r in first)
    assert sender.outbox._origins == {}


async def test_host_that_is_away_holds_up_no_other(sender, controller):
    await sender.owe("http://127.0.0.1:9", "completion", rollout_id="lost")
    await (await sender.owe(controller.url, "completion"))
    assert sender.outbox.outstanding == 1


async def test_outstanding_deliveries_go_on_after_a_restart(path, called_back, controller, until):
    controller.answers["/r1/grader"] = [500] * 3
    sender = Sender(path, called_back)
    await sender.owe(controller.url, "completion", "grader", size=100_000)
    await controller.until(2)
    await sender.close()
    sender = Sender(path, called_back)
    await sender.outbox.start()
    await until(lambda: not sender.outbox.outstanding)
    assert [g["path"] for g in controller.got if g["answer"] == 200] == [
        "/r1/completion",
        "/r1/grader",
    ]
    assert {h["Authorization"] for h in controller.headers} == {"Bearer reply-secret"}
    assert {len(g["pad"]) for g in controller.got} == {100_000}
    await sender.close()
    sender = Sender(path, called_back)
    await sender.outbox.start()
    assert sender.outbox.outstanding == 0
    await sender.close()


async def test_trajectory_of_an_acknowledgement_is_handed_on(sender, controller):
    report = {"samples": {"main": {"llm_call_metrics": [{"prompt_tokens": 3}] * 5000}}}
    controller.answers["/r1/completion"] = [{"data": {"trajectory": report}}]
    controller.answers["/r1/grader"] = [{"text": '["trajectory"'}]
    await (await sender.owe(controller.url, "completion", "grader"))
    assert sender.observer.got == [("r1", "completion", report)]


@pytest.mark.parametrize("url", ["http://[::1", "ftp://h/x", "http://h:99999/", "nonsense"])
async def test_url_that_cannot_be_posted_to_is_given_up(sender, url, caplog):
    await (await sender.owe(url, "completion"))
    assert sender.stats.deliveries_refused == 1
    assert "it is given up" in caplog.text
