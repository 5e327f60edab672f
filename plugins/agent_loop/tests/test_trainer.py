"""A training cluster of the first generation against a served loop (protocol.md 1.1 and 1.2)."""

import asyncio
import json
import sqlite3
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from osmosis_agent_loop import (
    AgentLoopConfig,
    OpenAIFunctionToolSchema,
    RolloutClientSettings,
    RolloutServerSettings,
    RolloutSettings,
    create_app,
    reset_settings,
)
from osmosis_core import ConfigError

sys.path.insert(0, str(Path(__file__).parent))
from trainer import Cluster, Trainer, tool_call

KEY = "osm_rollout_secret"


def settings(*, client=None, server=None, **more):
    quick = {"retry_base_delay": 0.1, "max_retries": 1, **(client or {})}
    limits = {"shutdown_grace_seconds": 0.0, **(server or {})}
    return RolloutSettings(
        client=RolloutClientSettings(**quick), server=RolloutServerSettings(**limits), **more
    )


@pytest.fixture
def cluster(tmp_path, world):
    """Open a Cluster of `Once(body)` and a trainer's script; closed at the end of the test."""
    opened = []

    def open_(*script, body=None, tools=(world.ADD,), loop=None, refuse=(), own=None, **options):
        options = {"journal": tmp_path / "journal.db", "settings": own or settings(), **options}
        app = create_app(loop or world.Once(body, tools), **options)
        opened.append(Cluster(app, Trainer(*script, refuse=refuse)).__enter__())
        return opened[-1]

    yield open_
    for each in opened:
        each.__exit__()


class TestHealth:
    def test_health_counts_rollouts_and_needs_no_key(self, cluster):
        served = cluster("ok", api_key=KEY)
        idle = {"agent_loop": "once", "active_rollouts": 0, "completed_rollouts": 0}
        assert served.get("/health").json() == {"status": "healthy", **idle}
        served.run(headers={"Authorization": f"Bearer {KEY}"})
        served.wait_idle()
        assert served.get("/health").json()["completed_rollouts"] == 1

    def test_platform_health_needs_the_key(self, cluster):
        served = cluster(api_key=KEY)
        refused = served.get("/platform/health")
        assert refused.status_code == 401
        assert refused.json() == {"detail": "Invalid or missing API key"}
        allowed = served.get("/platform/health", Authorization=f"Bearer {KEY}")
        assert allowed.json() == served.get("/health").json()

    def test_platform_health_is_not_found_without_a_key(self, cluster):
        missing = cluster().get("/platform/health")
        assert (missing.status_code, missing.json()) == (404, {"detail": "Not found"})


class TestInit:
    def test_init_is_answered_202_with_the_tools_as_they_are(self, cluster, world):
        answered = cluster().init()
        assert answered.status_code == 202
        assert answered.json() == {"rollout_id": "r-1", "tools": [world.ADD]}

    def test_schema_objects_and_async_get_tools_are_fine(self, cluster, world):
        class Slow(world.Once):
            async def get_tools(self, request):
                assert request.metadata == {"x": 1}
                return [OpenAIFunctionToolSchema.model_validate(world.ADD)]

        assert cluster(loop=Slow()).init(metadata={"x": 1}).json()["tools"] == [world.ADD]

    @pytest.mark.parametrize("given", [KEY, f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"])
    def test_key_is_taken_with_the_scheme_in_any_case_or_bare(self, cluster, given):
        assert cluster(api_key=KEY).init(headers={"Authorization": given}).status_code == 202

    @pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", "é"])
    def test_wrong_key_is_401_before_the_body_is_read(self, cluster, given):
        headers = {} if given is None else {"Authorization": given.encode()}
        url = cluster(api_key=KEY).url
        refused = httpx.post(f"{url}/v1/rollout/init", content=b"rubbish", headers=headers)
        assert (refused.status_code, refused.json()["detail"]) == (
            401,
            "Invalid or missing API key",
        )

    @pytest.mark.parametrize(
        ("changed", "where"),
        [
            ({"rollout_id": " "}, "rollout_id"),
            ({"rollout_id": "../x"}, "rollout_id"),
            ({"rollout_id": None}, "rollout_id"),
            ({"server_url": "ftp://x"}, "server_url"),
            ({"server_url": "http://169.254.169.254"}, "server_url"),
            ({"messages": "hello"}, "messages"),
            ({"api_key": "a\nb"}, "api_key"),
            ({"completion_params": None}, "completion_params"),
            ({"metadata": {"x": "y" * 2**20}}, "metadata"),
        ],
    )
    def test_bad_body_is_422_and_names_the_field(self, cluster, changed, where):
        refused = cluster().init(**changed)
        assert refused.status_code == 422
        assert where in [part for issue in refused.json()["detail"] for part in issue["loc"]]

    def test_unknown_fields_are_ignored(self, cluster):
        assert cluster().init(colour="red").status_code == 202

    @pytest.mark.parametrize(
        ("tools", "text"),
        [
            (None, "returned None; return a list"),
            ("tools", "returned str; return a list"),
            ([3], "see `osmosis validate`"),
            ([{"type": "function", "function": {"name": "x", "x": object()}}], "not JSON serializ"),
            (RuntimeError("tool server\nis away"), "raised RuntimeError: tool server"),
            (SystemExit(3), "raised SystemExit: called sys.exit(3)"),
            (StopIteration(), "raised StopIteration"),
            (asyncio.CancelledError(), "raised CancelledError"),
        ],
    )
    def test_get_tools_that_raises_or_returns_rubbish_is_500_and_nothing_runs(
        self, cluster, world, tools, text
    ):
        class Wrong(world.Once):
            def get_tools(self, request):
                if isinstance(tools, BaseException):
                    raise tools
                return tools

        served = cluster(loop=Wrong())
        refused = served.init()
        assert refused.status_code == 500 and text in refused.json()["detail"]
        assert "\n" not in refused.json()["detail"]
        assert served.get("/health").json()["active_rollouts"] == 0
        assert served.trainer.asked == []

    def test_get_tools_that_hangs_is_500_after_its_time(self, cluster, world):
        class Hanging(world.Once):
            async def get_tools(self, request):
                await asyncio.sleep(60)

        own = settings()
        own.server.request_timeout_seconds = 0.05
        refused = cluster(loop=Hanging(), own=own).init()
        assert refused.status_code == 500
        assert "did not return within 0.05 s" in refused.json()["detail"]


class TestIdempotency:
    def test_same_init_again_is_the_same_answer_and_runs_once(self, cluster, world):
        calls = []

        class Counting(world.Once):
            def get_tools(self, request):
                calls.append(request.rollout_id)
                return []

        served = cluster(loop=Counting())
        answers = [served.init().content for _ in range(3)]
        served.trainer.wait()
        served.wait_idle()
        answers.append(served.init().content)
        assert len(set(answers)) == 1 and calls == ["r-1"]
        assert len(served.trainer.completed) == 1

    def test_concurrent_duplicates_wait_for_the_first(self, cluster, world):
        class Slow(world.Once):
            async def get_tools(self, request):
                await asyncio.sleep(0.1)
                return []

        served, answers = cluster(loop=Slow()), []
        threads = [
            threading.Thread(target=lambda: answers.append(served.init().status_code))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [202] * 4
        assert len(served.trainer.wait()) == 1

    def test_idempotency_key_is_the_key_where_there_is_one(self, cluster):
        served = cluster()
        assert served.init(idempotency_key="k").status_code == 202
        assert served.init(idempotency_key="k").status_code == 202
        other = served.init("r-2", idempotency_key="k")
        assert (other.status_code, "another init had the key 'k'" in other.text) == (409, True)

    def test_one_rollout_id_with_two_keys_runs_once(self, cluster):
        served = cluster()
        assert served.init(idempotency_key="k").status_code == 202
        assert served.init(idempotency_key="other").status_code == 409
        served.wait_idle()
        assert len(served.trainer.completed) == 1

    def test_leader_that_fails_leaves_the_key_free(self, cluster, world):
        class Second(world.Once):
            calls = 0

            def get_tools(self, request):
                self.calls += 1
                if self.calls == 1:
                    raise RuntimeError("not yet")
                return []

        served = cluster(loop=Second())
        assert [served.init().status_code for _ in range(2)] == [500, 202]

    def test_it_is_remembered_after_a_restart(self, cluster):
        first = cluster()
        said = first.run()
        first.stop()
        second = cluster()
        assert second.init(server_url=first.trainer.url).status_code == 202
        second.wait_idle()
        assert said["status"] == "COMPLETED" and len(first.trainer.completed) == 1


class TestCompletion:
    def test_completion_has_the_documented_members(self, cluster):
        served = cluster("42", settings=settings())
        body = served.run(api_key="sk-trainer")
        assert body["rollout_id"] == "r-1"
        assert (body["status"], body["finish_reason"]) == ("COMPLETED", "stop")
        assert [m["role"] for m in body["final_messages"]] == ["user", "assistant"]
        assert body["reward"] == 1.0 and "error_message" not in body
        metrics = body["metrics"]
        assert (metrics["num_llm_calls"], metrics["prompt_tokens"]) == (1, 10)
        assert (metrics["response_tokens"], metrics["max_context_tokens"]) == (2, 12)
        headers = served.trainer.completed[0][1]
        assert headers["authorization"] == "Bearer sk-trainer"
        assert headers["content-type"] == "application/json"

    def test_model_calls_are_as_documented_and_have_no_tools(self, cluster):
        served = cluster("42")
        served.run(api_key="sk-trainer")
        body, headers = served.trainer.asked[0]
        assert body == {
            "model": "default",
            "messages": [{"role": "user", "content": "What is 6 * 7?"}],
            "rollout_id": "r-1",
            "temperature": 0.5,
            "top_p": 1.0,
            "max_tokens": 512,
            "logprobs": True,
        }
        assert headers["authorization"] == "Bearer sk-trainer"

    def test_without_a_key_the_trainer_is_not_given_the_environments(self, cluster, monkeypatch):
        monkeypatch.setenv("OSMOSIS_API_KEY", "sk-environment")
        served = cluster("42")
        served.run()
        for _, headers in (*served.trainer.asked, *served.trainer.completed):
            assert "authorization" not in headers and "sk-environment" not in str(headers)

    def test_loop_sees_the_whole_request(self, cluster):
        seen = []

        async def look(ctx):
            seen.append(ctx.request)
            return ctx.complete([])

        served = cluster(body=look)
        fields = {"max_turns": 3, "max_tokens_total": 99, "metadata": {"ground_truth": "42"}}
        served.run(**fields, tool_server_url="http://tools", api_key="sk-trainer")
        (request,) = seen
        assert request.model_dump(include=set(fields)) == fields
        assert request.completion_params == {"temperature": 0.5}
        assert (request.rollout_id, request.server_url) == ("r-1", served.trainer.url)
        assert (request.tool_server_url, request.api_key) == ("http://tools", "sk-trainer")

    @pytest.mark.parametrize(
        ("raised", "text"), [(ValueError("bad sum"), "bad sum"), (KeyError(), "KeyError")]
    )
    def test_loop_that_raises_is_an_error_completion(self, cluster, raised, text):
        async def fail(ctx):
            raise raised

        body = cluster(body=fail).run()
        body.pop("extra_fields")
        assert body == {
            "rollout_id": "r-1",
            "status": "ERROR",
            "final_messages": [],
            "finish_reason": "error",
            "error_message": text,
        }

    def test_loop_that_returns_an_error_keeps_its_messages_and_metrics(self, cluster):
        async def fail(ctx):
            return ctx.error("no luck", final_messages=ctx.request.messages)

        body = cluster(body=fail).run()
        assert (body["status"], body["error_message"]) == ("ERROR", "no luck")
        assert len(body["final_messages"]) == 1 and "metrics" in body and "reward" not in body

    @pytest.mark.parametrize(
        ("returned", "text"),
        [
            (None, "run() of agent loop 'once' returned None; return ctx.complete(...)"),
            ({"status": "COMPLETED"}, "returned dict; return ctx.complete(...)"),
        ],
    )
    def test_run_that_returns_something_else_is_an_error(self, cluster, returned, text):
        async def wrong(ctx):
            return returned

        assert text in cluster(body=wrong).run()["error_message"]

    @pytest.mark.parametrize("content", [object(), float("nan")])
    def test_final_messages_that_are_no_json_are_an_error(self, cluster, content):
        async def wrong(ctx):
            return ctx.complete([{"role": "tool", "content": content}])

        assert "unusable final messages" in cluster(body=wrong).run()["error_message"]

    def test_reward_that_is_nan_is_an_error(self, cluster):
        async def wrong(ctx):
            return ctx.complete([], reward=float("nan"))

        body = cluster(body=wrong).run()
        assert body["error_message"] == "the reward is nan; give a finite number, or None"
        assert "reward" not in body

    def test_loop_that_hangs_is_an_error_at_its_deadline(self, cluster):
        async def hang(ctx):
            await asyncio.sleep(60)

        own = settings()
        own.server.rollout_timeout_seconds = 0.1
        body = cluster(body=hang, own=own).run()
        assert body["status"] == "ERROR"
        assert "workflow exceeded its 0.1s deadline" in body["error_message"]

    @pytest.mark.parametrize(("status", "calls"), [(400, 1), (404, 1), (429, 2), (500, 2)])
    def test_trainer_that_refuses_a_call_fails_the_rollout(self, cluster, status, calls):
        served = cluster(status)
        body = served.run()
        assert body["status"] == "ERROR" and f"answered {status}" in body["error_message"]
        assert len(served.trainer.asked) == calls

    def test_trainer_that_never_answers_fails_the_rollout(self, cluster):
        own = settings(client={"max_retries": 0})
        own.client.timeout_seconds = 0.1
        assert "stopped answering" in cluster("hang", own=own).run()["error_message"]

    def test_loop_may_catch_what_a_call_raises(self, cluster):
        async def cope(ctx):
            try:
                await ctx.chat([])
            except Exception as error:
                return ctx.error(f"Agent failed: {type(error).__name__}")

        assert cluster(400, body=cope).run()["error_message"].endswith("OsmosisValidationError")

    def test_tool_call_with_broken_json_is_for_the_loop_to_answer(self, cluster):
        from osmosis_agent_loop.tools import create_tool_error_result, get_tool_call_info

        async def run(ctx):
            messages = list(ctx.request.messages)
            answer = await ctx.chat(messages)
            try:
                get_tool_call_info(answer.tool_calls[0])
            except Exception as error:
                told = create_tool_error_result(error.tool_call_id, str(error))
            messages += [answer.message, told]
            messages.append((await ctx.chat(messages)).message)
            return ctx.complete(messages)

        body = cluster(tool_call("add", "{broken"), "sorry", body=run).run()
        assert body["final_messages"][2]["content"].startswith("Error: the arguments are not JSON")
        assert body["status"] == "COMPLETED" and "warnings" not in body["extra_fields"]


class TestDelivery:
    def test_completion_is_tried_again_and_counted_once(self, cluster):
        served = cluster(refuse=[500, 503])
        served.run()
        bodies = served.trainer.wait(3)
        assert bodies[0] == bodies[1] == bodies[2]
        assert bodies[0]["status"] == "COMPLETED"

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_completion_that_is_refused_is_not_contradicted(self, cluster, status):
        served = cluster(refuse=[status])
        served.run()
        served.stop()
        assert [body["status"] for body in served.trainer.wait()] == ["COMPLETED"]

    @pytest.mark.parametrize("status", [201, 204])
    def test_any_2xx_acknowledges(self, cluster, status):
        served = cluster(refuse=[status])
        served.run()
        served.stop()
        assert len(served.trainer.completed) == 1

    def test_shutdown_sends_an_error_completion_for_each_running_rollout(self, cluster):
        served = cluster("hang")
        for number in range(3):
            served.init(f"r-{number}")
        served.trainer.wait_asked(3)
        served.stop()
        bodies = served.trainer.wait(3)
        assert {body["rollout_id"] for body in bodies} == {"r-0", "r-1", "r-2"}
        assert {body["status"] for body in bodies} == {"ERROR"}
        assert "cancelled" in bodies[0]["error_message"]
        assert len(served.trainer.completed) == 3

    def test_completion_that_was_not_taken_survives_a_restart(self, cluster):
        own = settings(client={"complete_rollout_retries": 0})
        first = cluster(refuse=[503] * 50, own=own)
        before = first.run()
        first.stop()
        tried = len(first.trainer.completed)
        first.trainer.refuse.clear()
        cluster(own=own)
        assert first.trainer.wait(tried + 1)[-1] == before

    def test_keys_are_not_readable_in_the_journal(self, cluster, tmp_path):
        served = cluster("42")
        served.run(api_key="sk-very-secret")
        served.stop()
        stored = b"".join(p.read_bytes() for p in tmp_path.glob("journal.db*"))
        assert b"sk-very-secret" not in stored and b"r-1" in stored
        assert sqlite3.connect(tmp_path / "journal.db").execute("SELECT 1").fetchone()


class TestHistory:
    async def _edit(self, ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        messages[0] = {"role": "user", "content": "What is 7 * 7?"}
        messages.append({"role": "user", "content": "Go on."})
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)

    def test_edited_history_is_a_warning_on_the_result(self, cluster):
        body = cluster("42", "43", body=self._edit).run()
        assert body["status"] == "COMPLETED"
        (warning,) = body["extra_fields"]["warnings"]
        assert "call 1 does not go on from call 0" in warning
        assert "append to the messages and never change earlier ones" in warning

    def test_edited_history_is_an_error_in_strict_mode(self, cluster):
        own = settings(strict_history=True)
        body = cluster("42", "43", body=self._edit, own=own).run()
        assert body["status"] == "ERROR" and "reward" not in body
        assert "never change earlier ones" in body["error_message"]

    def test_parameters_that_are_not_sent_are_warnings_too(self, cluster):
        body = cluster("42").run(completion_params={"colour": "red", "top_k": 3})
        (warning,) = body["extra_fields"]["warnings"]
        assert "'colour', which is not sent" in warning


class TestOptions:
    def test_no_more_run_at_once_than_max_concurrent(self, cluster):
        running, most, pair = [], [], threading.Barrier(2, timeout=20)

        async def count(ctx):
            running.append(1)
            most.append(len(running))
            await asyncio.to_thread(pair.wait)
            running.pop()
            return ctx.complete([])

        served = cluster(body=count, max_concurrent=2)
        for number in range(6):
            served.init(f"r-{number}")
        served.trainer.wait(6)
        assert max(most) == 2

    def test_without_a_limit_all_run_at_once(self, cluster):
        running, all_there = [], asyncio.Event()

        async def meet(ctx):
            running.append(1)
            if len(running) == 8:
                all_there.set()
            await all_there.wait()
            return ctx.complete([])

        served = cluster(body=meet)
        for number in range(8):
            served.init(f"r-{number}")
        assert {body["status"] for body in served.trainer.wait(8)} == {"COMPLETED"}

    def test_cap_of_the_settings_holds_once_it_was_set(self, world, monkeypatch):
        assert AgentLoopConfig(loop=world.Once()).concurrency.max_concurrent is None
        monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS", "3")
        reset_settings()
        assert AgentLoopConfig(loop=world.Once()).concurrency.max_concurrent == 3

    @pytest.mark.parametrize("wrong", [{"max_concurrent": 0}, {"record_ttl_seconds": 0}])
    def test_zero_is_refused(self, world, wrong):
        with pytest.raises(ConfigError, match="is 0; give"):
            create_app(world.Once(), **wrong)

    def test_making_an_app_touches_no_file(self, world, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        create_app(world.Once())
        assert list(tmp_path.iterdir()) == []

    def test_hooks_are_awaited_around_the_rollouts(self, cluster):
        said = []

        async def start():
            said.append("start")

        async def stop():
            said.append(len(served.trainer.completed))

        served = cluster(on_startup=start, on_shutdown=stop)
        served.init()
        served.stop()
        assert said == ["start", 1]

    def test_debug_log_is_a_file_per_rollout(self, cluster, tmp_path):
        async def tell(ctx):
            ctx.log_event("agent_start", turn=0)
            return ctx.complete([])

        cluster(body=tell, debug_dir=str(tmp_path / "logs")).run("r 1..")
        (file,) = (tmp_path / "logs").iterdir()
        assert json.loads(file.read_text())["event"] == "agent_start"

    def test_records_are_forgotten_after_their_time(self, cluster):
        served = cluster(record_ttl_seconds=0.01)
        served.run()
        served.wait_idle()
        until = time.monotonic() + 20
        while len(served.trainer.completed) < 2 and time.monotonic() < until:
            served.init()
            time.sleep(0.2)
        assert len(served.trainer.completed) >= 2
