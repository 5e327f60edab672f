"""`osmosis serve` as a process: how it starts, what it refuses, how it ends."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

OSMOSIS = Path(sys.executable).parent / "osmosis"
WORKFLOW = """
import asyncio
from osmosis_core import AgentWorkflow, Grader, LocalBackend

class Sleeps(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.sleep(float(ctx.prompt[-1]["content"]))
        return [{"role": "assistant", "content": "slept"}]

class Marks(Grader):
    async def grade(self, ctx):
        ctx.set_sample_reward("main", 1.0)

BACKEND = LocalBackend(workflow=Sleeps, grader=Marks, max_concurrent=7)
"""


@pytest.fixture
def place(tmp_path):
    """A directory with a workflow, and the environment of a stranger."""
    (tmp_path / "sleeps.py").write_text(WORKFLOW)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON"))}
    return {"cwd": tmp_path, "env": {**kept, "HOME": str(tmp_path)}}


@pytest.fixture
def refused(place):
    """Start with what cannot work; the one line that is said."""

    def run(*arguments, **env):
        done = subprocess.run(
            [OSMOSIS, "serve", "--port", "0", *arguments],
            **{**place, "env": {**place["env"], **env}},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        return line

    return run


class Process:
    """A running `osmosis serve`."""

    def __init__(self, process, controller, said):
        self.process, self.controller, self.said = process, controller, said

    async def end(self, number=signal.SIGTERM):
        """Send a signal, if any; the exit code, and what was said since the start."""
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(30):
            rest = await self.process.stderr.read()
            return await self.process.wait(), rest.decode()


@pytest.fixture
def start(place, connect):
    """Run it on any port: `async with start(*arguments) as process`."""

    @asynccontextmanager
    async def run(*arguments, api_key=None, **env):
        process = await asyncio.create_subprocess_exec(
            *(OSMOSIS, "serve", "--port", "0", *arguments),
            cwd=place["cwd"],
            env={**place["env"], **env},
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said = (await process.stderr.readline()).decode()
            assert said.startswith("serving on "), said + (await process.stderr.read()).decode()
            async with connect(re.search(r"http://[\d.:]+\d", said)[0], api_key) as controller:
                yield Process(process, controller, said)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return run


class TestStart:
    async def test_line_says_where_how_and_that_no_key_is_needed(self, start):
        async with start("sleeps.py") as process:
            token = await process.controller.lease("0")
            assert (await process.controller.result(token))["sample"]["reward"] == 1.0
        assert re.fullmatch(
            r"serving on http://127.0.0.1:\d+: polling, and multi-sample where a request has "
            r"callback URLs; no key is needed; journal .osmosis/server/journal.db\n",
            process.said,
        )

    @pytest.mark.parametrize("target", [("-m", "sleeps"), ("sleeps:Sleeps",), ("sleeps:BACKEND",)])
    async def test_target_may_be_written_in_every_form(self, start, target):
        async with start(*target) as process:
            health = (await process.controller.ask("GET", "/health")).body
        wanted = 7 if "BACKEND" in target[0] else 4
        assert health["concurrency"]["max_concurrent"] == wanted

    async def test_backend_is_given_its_limit_and_its_place(self, start, tmp_path):
        given = "--backend", "local", "--concurrency", "2", "--artifacts", str(tmp_path / "art")
        async with start("sleeps.py", *given) as process:
            health = (await process.controller.ask("GET", "/health")).body
            await process.controller.result(await process.controller.lease("0"))
        assert health["concurrency"]["max_concurrent"] == 2

    async def test_arguments_of_the_backend_come_from_options(self, start):
        given = "--backend", "local", "--local-max-concurrent", "2"
        async with start("sleeps.py", *given) as process:
            health = (await process.controller.ask("GET", "/health")).body
        assert health["concurrency"]["max_concurrent"] == 2

    async def test_settings_come_from_options_and_variables(self, start):
        env = {"OSMOSIS_SERVER_RESULT_WAIT_TIMEOUT_SEC": "7", "OSMOSIS_SERVER_ALLOW_HOSTS": "a b"}
        async with start("sleeps.py", "--polling-lease-timeout-sec", "9", **env) as process:
            answer = await process.controller.submit(process.controller.body())
            process.controller.llm_url = "http://a/v1"
            accepted = await process.controller.submit(process.controller.body())
        assert answer.status == 422
        assert accepted.body["result_wait_timeout_sec"] == 7
        assert accepted.body["polling_lease_timeout_sec"] == 9

    async def test_key_of_the_environment_is_needed_and_not_said(self, start):
        env = {"OSMOSIS_SERVER_API_KEY": "sekret-1"}
        async with start("sleeps.py", api_key="sekret-1", **env) as process:
            await process.controller.result(await process.controller.lease("0"))
            refused = await process.controller.ask("GET", "/health", Authorization="Bearer no")
            code, rest = await process.end()
        assert (refused.status, code) == (401, 0)
        assert "every request needs the key" in process.said
        assert "sekret-1" not in process.said + rest

    async def test_key_of_a_file_is_needed(self, start, tmp_path):
        (tmp_path / "key").write_text("sekret-2\n")
        async with start("sleeps.py", "--api-key-file", "key", api_key="sekret-2") as process:
            assert (await process.controller.ask("GET", "/health")).status == 200

    async def test_generated_key_is_printed_once(self, start):
        async with start("sleeps.py", "--generate-key") as process:
            line = (await process.process.stderr.readline()).decode()
            key = line.removeprefix("key: ").strip()
            process.controller.api_key = key
            assert (await process.controller.ask("GET", "/health")).status == 200
            _, rest = await process.end()
        assert key.startswith("osm_rollout_")
        assert key not in process.said + rest

    async def test_no_key_is_needed_beyond_loopback_when_that_was_said(self, start):
        async with start("sleeps.py", "--host", "0.0.0.0", "--insecure") as process:
            assert "no key is needed" in process.said


PROTOCOL = """
from osmosis_core import hookimpl
from starlette.responses import PlainTextResponse
from starlette.routing import Route

class Telepathy:
    name, open_paths = "telepathy", ("/think",)

    def __init__(self, service):
        self.service = service

    def routes(self):
        return [Route("/think", self.think)]

    async def think(self, request):
        return PlainTextResponse(f"admitted {self.service.stats().admitted}")

@hookimpl
def osmosis_register_protocols(register):
    register("telepathy", Telepathy)
"""


async def test_protocol_of_a_plugin_is_served_under_its_own_rules(start, tmp_path):
    info = tmp_path / "site/osmosis_telepathy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: osmosis-telepathy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[osmosis_core]\ntelepathy = osmosis_telepathy\n")
    (tmp_path / "site/osmosis_telepathy.py").write_text(PROTOCOL)
    env = {"PYTHONPATH": str(tmp_path / "site"), "OSMOSIS_SERVER_API_KEY": "k"}
    async with start("sleeps.py", api_key="k", **env) as process:
        await process.controller.lease("0")
        answer = await process.controller.ask("GET", "/think", Authorization="none")
    assert (answer.status, answer.body) == (200, "admitted 1")


QUITS = """
import asyncio
from osmosis_core import AgentWorkflow

class Quits(AgentWorkflow):
    async def run(self, ctx):
        if ctx.prompt[-1]["content"] == "quit":
            await asyncio.gather(asyncio.sleep(0), self.tool())
        await asyncio.sleep(0.5)
        return [{"role": "assistant", "content": "stayed"}]

    async def tool(self):
        raise SystemExit(3)
"""


async def test_tool_that_quits_the_program_ends_only_its_rollout(start, tmp_path):
    (tmp_path / "quits.py").write_text(QUITS)
    async with start("quits.py") as process:
        controller = process.controller
        stays, quits = await controller.lease("stay", "a"), await controller.lease("quit", "b")
        failed, ended = await controller.result(quits, "b"), await controller.result(stays, "a")
        code, rest = await process.end(signal.SIGINT)
    assert failed["err_message"] == "called sys.exit(3)"
    assert ended["sample"]["messages"][-1]["content"] == "stayed"
    assert code == 130 and "a task of a rollout called sys.exit" in rest


class TestRefusals:
    def test_target_that_is_not_there(self, refused):
        assert "no file 'sleep.py'; did you mean 'sleeps.py'?" in refused("sleep.py")

    def test_no_target(self, refused):
        assert "give TARGET once" in refused()

    def test_backend_that_nobody_offers(self, refused):
        assert "no backend 'moon'" in refused("sleeps.py", "--backend", "moon")

    def test_argument_that_the_backend_does_not_take(self, refused):
        assert "'moons'" in refused("sleeps.py", "--backend-option", "moons=2")

    @pytest.mark.parametrize(
        "option",
        [("--concurrency", "2"), ("--backend", "process"), ("--backend-option", "moons=2")],
    )
    def test_option_of_backends_for_a_target_that_is_one(self, refused, option):
        said = refused("sleeps:BACKEND", *option)
        assert "sleeps:BACKEND is a backend already" in said

    def test_other_machines_without_a_key(self, refused):
        assert "--insecure" in refused("sleeps.py", "--host", "0.0.0.0")

    def test_address_that_is_not_ours(self, refused):
        assert "cannot listen on" in refused("sleeps.py", "--host", "203.0.113.7", "--insecure")

    def test_blank_key(self, refused):
        assert "API key is blank" in refused("sleeps.py", OSMOSIS_SERVER_API_KEY="")

    def test_two_keys(self, refused):
        assert "give one of" in refused("sleeps.py", "--api-key", "a", "--generate-key")

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("--max-pending", "0", "settings: max_pending: "),
            ("--polling-lease-timeout-sec", "30", "more than result_wait_timeout_sec"),
            ("--drain-grace-sec", "nan", "drain_grace_sec"),
            ("--allow-host", "http://x", "allowed host 'http://x' is no pattern"),
            ("--journal", "/proc/no/journal.db", "journal"),
            (
                "--api-key-file",
                "no-such-key",
                "--api-key-file 'no-such-key' cannot be read: No such",
            ),
            ("--api-key-file", "no-text", "--api-key-file 'no-text' cannot be read: it is no text"),
            ("--host", "a" * 80 + ".example", "that is no name of a host"),
        ],
    )
    def test_setting_out_of_range(self, refused, tmp_path, option, value, said):
        (tmp_path / "no-text").write_bytes(b"\xff")
        key = () if option == "--api-key-file" else ("--api-key", "k")
        assert said in refused("sleeps.py", option, value, *key)

    @pytest.mark.parametrize("beside", ["lock", "key"])
    def test_file_beside_the_journal_that_cannot_be_had(self, refused, tmp_path, beside):
        (tmp_path / f"j.db.{beside}").mkdir()
        said = refused("sleeps.py", "--journal", "j.db")
        assert f"j.db.{beside}': Is a directory" in said

    async def test_port_that_is_taken(self, start, refused):
        async with start("sleeps.py") as process:
            port = process.controller.origin.rpartition(":")[2]
            said = await asyncio.to_thread(refused, "sleeps.py", "--port", port)
        assert said == f"error: cannot listen on 127.0.0.1:{port}: Address already in use"

    async def test_journal_that_a_live_server_holds(self, start, refused):
        async with start("sleeps.py") as process:
            said = await asyncio.to_thread(refused, "sleeps.py")
            assert f"live server with pid {process.process.pid}" in said


class TestEnd:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
    async def test_idle_server_ends_at_once(self, start, number, code):
        async with start("sleeps.py") as process:
            assert (await process.end(number))[0] == code

    async def test_while_it_drains_it_admits_nothing_and_answers_polls(self, start):
        async with start("sleeps.py") as process:
            controller = process.controller
            token = await controller.lease("1.5")
            await controller.until("running")
            process.process.send_signal(signal.SIGTERM)
            await self._refuses(controller)
            assert (await controller.result(token))["status"] == "success"
            assert (await process.end(None))[0] == 0

    async def _refuses(self, controller):
        for number in range(500):
            answer = await controller.submit(controller.body("0", f"late-{number}"))
            if answer.status == 503:
                assert answer.body == {"detail": "rollout server is shutting down"}
                return
            await asyncio.sleep(0.01)
        raise AssertionError("still admitting")

    async def test_what_outlives_the_grace_is_cancelled_and_told(self, start, receiver):
        async with start("sleeps.py", "--drain-grace-sec", "0.2") as process:
            body = process.controller.body("60", **receiver.urls())
            await process.controller.submit(body)
            await process.controller.until("running")
            code, _ = await process.end()
        assert code == 0
        assert [body["status"] for _, _, body in receiver.got] == ["failure", "failure"]

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    async def test_second_signal_ends_it_at_once(self, start, number, code):
        async with start("sleeps.py", "--drain-grace-sec", "100") as process:
            await process.controller.lease("60")
            await process.controller.until("running")
            process.process.send_signal(number)
            assert b"a second signal exits at once" in await process.process.stderr.readline()
            assert (await process.end(number))[0] == code

    async def test_ctrl_c_in_a_terminal_leaves_a_reloading_server_its_grace(self, start):
        async with start("sleeps.py", "--reload") as process:
            token = await process.controller.lease("1.5")
            await process.controller.until("running")
            os.killpg(process.process.pid, signal.SIGINT)
            assert (await process.controller.result(token))["status"] == "success"
            assert (await process.end(None))[0] == 130

    async def test_result_outlives_a_killed_server(self, start):
        async with start("sleeps.py") as process:
            token = await process.controller.lease("0")
            first = await process.controller.result(token)
            assert (await process.end(signal.SIGKILL))[0] == -signal.SIGKILL
        async with start("sleeps.py") as process:
            assert await process.controller.result(token) == first

    async def test_log_names_no_key_and_no_body(self, start, receiver):
        async with start("sleeps.py") as process:
            keys = {"controller_api_key": "sekret-3", "llm_api_key": "sekret-4"}
            body = process.controller.body("x sekret-5", **keys, **receiver.urls())
            await process.controller.submit(body)
            await receiver.wait("/grader")
            _, rest = await process.end()
        assert "sekret" not in rest
