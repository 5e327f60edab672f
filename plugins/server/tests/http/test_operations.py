"""Health, status, cancel, pause, keys and limits: what is the same in every protocol."""

import asyncio
import re
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest

from osmosis_core import AgentWorkflow, LocalBackend
from osmosis_server import create_rollout_server


class Idle(AgentWorkflow):
    async def run(self, ctx):
        pass


class TestHealth:
    async def test_has_what_every_generation_reads(self, serve):
        async with serve() as controller:
            answer = await controller.ask("GET", "/health")
        health = answer.body
        assert (answer.status, health["status"]) == (200, "ok")
        assert health["concurrency"] == {"max_concurrent": 4, "queued": 0, "running": 0}
        assert health["lifecycle"]["accepting_rollouts"] is True
        assert health["lifecycle"]["active_rollouts"] == 0
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", health["process_id"])
        assert health["instance_id"] == health["process_id"]

    async def test_instance_is_named_by_the_environment(self, serve, monkeypatch):
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_INSTANCE_ID", "blue")
        async with serve() as controller:
            assert (await controller.ask("GET", "/health")).body["instance_id"] == "blue"

    async def test_counts_active_rollouts(self, serve):
        async with serve() as controller:
            await controller.lease("sleep")
            health = (await controller.ask("GET", "/health")).body
        assert health["lifecycle"]["active_rollouts"] == 1


class TestStatus:
    async def test_unknown_id_is_unknown_with_200(self, serve):
        async with serve() as controller:
            answer = await controller.ask("GET", "/rollout/nobody/status")
        wanted = {"rollout_id": "nobody", "status": "unknown", "reward": None, "err_message": None}
        assert (answer.status, answer.body) == (200, wanted)

    async def test_success_has_the_reward(self, serve):
        async with serve() as controller:
            await controller.result(await controller.lease())
            status = await controller.status()
        assert (status["status"], status["reward"]) == ("success", 0.5)

    async def test_failure_has_the_message(self, serve):
        async with serve() as controller:
            await controller.result(await controller.lease("fail so"))
            status = await controller.status()
        assert (status["status"], status["err_message"]) == ("failure", "so")

    async def test_running_rollout_is_running(self, serve):
        async with serve() as controller:
            await controller.lease("sleep")
            await controller.until("running")


class TestCancel:
    @pytest.mark.parametrize(
        "selector",
        [
            {},
            {"all": False},
            {"ids": None},
            {"all": True, "prefix": "a"},
            {"ids": [], "prefix": ""},
        ],
    )
    async def test_422_unless_there_is_exactly_one_selector(self, serve, selector):
        async with serve() as controller:
            answer = await controller.cancel(**selector)
        detail = "pass exactly one selector: ids, prefix, or all"
        assert (answer.status, answer.body) == (422, {"detail": detail})

    async def test_422_for_a_selector_of_another_kind(self, serve):
        async with serve() as controller:
            assert (await controller.cancel(ids=5)).status == 422
            assert (await controller.ask("POST", "/rollout/cancel")).status == 422

    async def test_no_ids_select_nothing(self, serve):
        async with serve() as controller:
            answer = await controller.cancel(ids=[])
        assert (answer.status, answer.body) == (200, {"dispositions": {}})

    async def test_queued_rollout_is_cancelled_before_it_runs(self, serve):
        async with serve() as controller:
            for number in range(5):
                await controller.lease("sleep", f"r-{number}")
            await controller.until("running", "r-3")
            answer = await controller.cancel(ids=["r-4"])
        assert answer.body == {"dispositions": {"r-4": "cancelled_queued"}}

    @pytest.mark.parametrize("selector", [{"ids": ["r-1"]}, {"all": True}, {"prefix": "r-"}])
    async def test_finished_rollout_is_not_cancelled(self, serve, selector):
        async with serve() as controller:
            token = await controller.lease()
            await controller.result(token)
            answer = await controller.cancel(**selector)
            assert (await controller.result(token))["status"] == "success"
        wanted = {"r-1": "not_found"} if "ids" in selector else {}
        assert answer.body == {"dispositions": wanted}

    async def test_prefix_takes_its_own_only(self, serve):
        async with serve() as controller:
            await controller.lease("sleep", "a-1")
            await controller.lease("sleep", "b-1")
            answer = await controller.cancel(prefix="a-")
            assert (await controller.status("b-1"))["status"] in ("queued", "running")
        assert list(answer.body["dispositions"]) == ["a-1"]


class TestPause:
    async def test_nothing_starts_while_paused(self, serve):
        async with serve() as controller:
            paused = await controller.ask("POST", "/rollout/pause")
            token = await controller.lease()
            await asyncio.sleep(0.1)
            assert (await controller.status())["status"] == "queued"
            resumed = await controller.ask("POST", "/rollout/resume")
            assert (await controller.result(token))["status"] == "success"
        assert (paused.body["paused"], resumed.body["paused"]) == (True, False)


class TestKey:
    @pytest.mark.parametrize("key", ["k-1", "schlüssel-鍵"])
    async def test_every_route_needs_it(self, serve, key):
        async with serve(api_key=key) as controller:
            assert (await controller.ask("GET", "/health")).status == 200
            await controller.result(await controller.lease())
            for method, path in [
                ("GET", "/health"),
                ("POST", "/rollout"),
                ("GET", "/rollout/r-1/result"),
                ("GET", "/rollout/r-1/status"),
                ("POST", "/rollout/cancel"),
                ("POST", "/rollout/pause"),
                ("GET", "/nowhere"),
            ]:
                answer = await controller.ask(method, path, Authorization=f"bearer {key}")
                assert (answer.status, answer.body) == (401, {"detail": "unauthorized"}), path

    async def test_it_is_asked_for_before_the_body_is_read(self, serve):
        async with serve(api_key="k") as controller:
            answer = await controller.ask("POST", "/rollout", raw="{", Authorization="Bearer no")
        assert answer.status == 401

    @pytest.mark.parametrize("key", ["", "  ", "a b"])
    def test_blank_key_is_a_value_error_at_construction(self, key):
        with pytest.raises(ValueError, match="API key"):
            create_rollout_server(backend=LocalBackend(workflow=Idle), api_key=key)


async def test_unlisted_hosts_are_refused(receiver, serve):
    async with serve(allow_hosts=["127.0.0.1"]) as controller:
        assert (await controller.submit(controller.body(**receiver.urls()))).status == 200
        body = controller.body(rollout_id="r-2", completion_callback_url="http://10.0.0.1/")
        answer = await controller.submit(body)
    assert answer.status == 422
    assert "not among the allowed hosts" in answer.body["detail"][0]["msg"]


async def test_unknown_route_is_404_and_other_methods_405(serve):
    async with serve() as controller:
        nowhere = await controller.ask("GET", "/nowhere")
        wrong = await controller.ask("GET", "/rollout")
        assert (await controller.ask("GET", "/openapi.json")).status == 404
    assert (nowhere.status, nowhere.body) == (404, {"detail": "Not Found"})
    assert (wrong.status, wrong.body) == (405, {"detail": "Method Not Allowed"})


async def test_middleware_of_the_user_sees_rollouts_too(serve):
    seen = []

    class Watch:
        def __init__(self, app):
            self._app = app

        async def __call__(self, scope, receive, send):
            seen.append(scope.get("path"))
            await self._app(scope, receive, send)

    async with serve(change=lambda app: app.add_middleware(Watch)) as controller:
        await controller.result(await controller.lease())
    assert {"/rollout", "/rollout/r-1/result"} <= set(seen)


async def test_route_of_the_user_needs_the_key_too(serve):
    def change(app):
        app.add_api_route("/mine", lambda: {"mine": True})

    async with serve(api_key="k", change=change) as controller:
        assert (await controller.ask("GET", "/mine")).body == {"mine": True}
        assert (await controller.ask("GET", "/mine", Authorization="Bearer no")).status == 401


async def test_backend_whose_health_raises_is_an_error_and_not_a_crash(serve, tmp_path):
    class Ill(LocalBackend):
        def health(self):
            raise RuntimeError("no pulse")

    async with serve(Ill(workflow=Idle, artifacts_root=tmp_path)) as controller:
        answer = await controller.ask("GET", "/health")
    assert (answer.status, answer.body["status"], answer.body["error"]) == (
        200,
        "error",
        "no pulse",
    )


async def test_what_nobody_expected_is_500_without_its_text(serve, tmp_path, caplog):
    class Odd(LocalBackend):
        def has_capacity(self):
            raise RuntimeError("secret of the house")

    async with serve(Odd(workflow=Idle, artifacts_root=tmp_path)) as controller:
        answer = await controller.submit(controller.body())
    assert (answer.status, answer.body) == (500, {"detail": "Internal Server Error"})
    assert "secret of the house" in caplog.text


async def test_lifespan_of_the_user_is_around_every_rollout(serve):
    seen = []

    @asynccontextmanager
    async def lifespan(app):
        seen.append("begin")
        yield {"greeting": "hello"}
        seen.append("end")

    async with serve(lifespan=lifespan) as controller:
        await controller.result(await controller.lease())
        assert seen == ["begin"]
    assert seen == ["begin", "end"]


@pytest.mark.parametrize("rollout_id", ["a b", "a%2Fb", "ä-鍵", "a?b#c", "%", "x" * 256])
async def test_any_single_segment_is_an_id(serve, rollout_id):
    async with serve() as controller:
        token = await controller.lease(rollout_id=rollout_id)
        result = await controller.result(token, quote(rollout_id, safe=""))
    assert (result["status"], result["rollout_id"]) == ("success", rollout_id)
