import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import anthropic
import httpx2
import openai
import pytest
from starlette.testclient import TestClient

from osmosis_core import ConfigError, RolloutContext
from osmosis_core.cli import main
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.testing import ScriptedPolicy, Status
from osmosis_gateway import Caller, by_headers, create_app
from osmosis_gateway.serving import listen
from osmosis_gateway.standalone import standalone_app

OSMOSIS = Path(sys.executable).with_name("osmosis")
ASK = [{"role": "user", "content": "What is 2 + 3?"}]


@contextmanager
def served(*arguments, **env):
    """A running `osmosis gateway`; yields the variables that it prints, and the process."""
    command = [OSMOSIS, "gateway", "--port", "0", *arguments]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OSMOSIS_")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**kept, **env}, **pipes) as process:
        try:
            count = 2 if "OSMOSIS_GATEWAY_KEY" in env else 4
            lines = [process.stdout.readline().strip() for _ in range(count)]
            yield dict(line.split("=", 1) for line in lines if line), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def client_of(said):
    return openai.OpenAI(base_url=said["OPENAI_BASE_URL"], api_key=said["OPENAI_API_KEY"])


def test_upstream_is_answered_for_and_recorded(tmp_path):
    record = tmp_path / "calls.jsonl"
    with ScriptedPolicy("one", "two", Status(400, "no"), api_key="sk-up") as policy:
        arguments = ("--upstream", policy.base_url, "--record", str(record))
        with served(*arguments, OSMOSIS_API_KEY="sk-up") as (said, _):
            routing = {"x-rollout-id": "r-7", "x-sample-id": "critic"}
            with client_of(said) as client:
                ask = client.chat.completions.create
                assert ask(model="big", messages=ASK).choices[0].message.content == "one"
                chunks = ask(model="big", messages=ASK, stream=True, extra_headers=routing)
                assert "".join(c.choices[0].delta.content or "" for c in chunks) == "two"
                with pytest.raises(openai.BadRequestError, match="no"):
                    ask(model="big", messages=ASK)
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    assert ["error" in call for call in calls] == [False, False, True]
    assert [call["request"]["model"] for call in calls] == ["big"] * 3
    assert calls[1]["answer"]["content"] == "two"
    assert (calls[1]["rollout_id"], calls[1]["sample_id"]) == ("r-7", "critic")
    assert "sk-up" not in record.read_text()


def test_model_of_the_command_line_comes_before_the_callers():
    with ScriptedPolicy("ok") as policy:
        with served("--upstream", policy.base_url, "--model", "fixed") as (said, _):
            with client_of(said) as client:
                client.chat.completions.create(model="other", messages=ASK)
                assert [model.id for model in client.models.list()] == ["fixed"]
        assert policy.requests[0].body["model"] == "fixed"


def test_registered_policy_speaks_anthropics_dialect():
    with served("--policy", "demo", OSMOSIS_GATEWAY_KEY="sk-mine") as (said, _):
        url = said["ANTHROPIC_BASE_URL"]
        with anthropic.Anthropic(base_url=url, api_key="sk-mine") as client:
            answer = client.messages.create(model="m", max_tokens=99, messages=ASK)
        assert "5" in answer.content[0].text
        assert said.keys() == {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}
        other = httpx2.post(f"{said['OPENAI_BASE_URL']}/chat/completions", json={})
        assert other.status_code == 401


def test_interrupt_ends_the_command():
    with served("--policy", "demo") as (_, process):
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert (process.returncode, told.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --upstream URL, --policy NAME and --litellm MODEL"),
        (["--policy", "demo", "--upstream", "http://x/v1"], "give one of --upstream URL"),
        (["--policy", "demo", "--model", "m"], "--model goes with --upstream"),
        (["--policy", "none-such"], "none-such"),
        (["--upstream", "ftp://x"], "--upstream needs the form http://host:port/v1"),
        (["--upstream", "http://u:p@x/v1"], "without a password"),
        (["--upstream", "http://x/v1", "--api-key-env", "sk-1"], "name of an environment variable"),
        (["--litellm", "openai/x"], "pip install 'osmosis-gateway[litellm]'"),
        (["--policy", "demo", "--host", "0.0.0.0"], "'0.0.0.0' is not loopback"),
        (["--policy", "demo", "--record", "/no/such/dir/x.jsonl"], "No such file or directory"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(arguments, said, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["gateway", "--port", "0", *arguments])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err and err.count("\n") == 1


@pytest.fixture
def mounted():
    """An app that knows the rollout r-1, and its policy."""
    with ScriptedPolicy("ok") as policy:
        known = {"r-1": RolloutContext(policy.base_url, rollout_id="r-1")}

        def find(rollout_id, sample_id):
            found = known.get(rollout_id)
            return found and Caller(found, sample_id)

        with TestClient(create_app(by_headers(find, "sk-ours"))) as client:
            client.headers["authorization"] = "Bearer sk-ours"
            yield client, known["r-1"]


def test_routing_headers_say_whose_call_it_is(mounted):
    client, rollout = mounted
    headers = {"x-rollout-id": "r-1", "x-sample-id": "solver"}
    body = {"model": "m", "messages": ASK}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    assert [call.sample_id for call in rollout.calls] == ["solver"]


@pytest.mark.parametrize("headers", [{}, {"x-rollout-id": "r-2"}])
def test_unknown_rollouts_are_not_found(mounted, headers):
    client, rollout = mounted
    body = {"model": "m", "messages": ASK}
    answer = client.post("/v1/messages", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert rollout.calls == ()


def test_environment_leaks_no_key_to_an_upstream_without_one(monkeypatch):
    monkeypatch.setenv("OSMOSIS_API_KEY", "sk-other")
    with ScriptedPolicy("ok") as policy:
        with TestClient(standalone_app(PolicyEndpoint(policy.base_url), "k")) as client:
            body = {"model": "m", "messages": ASK}
            client.post("/v1/chat/completions", json=body, headers={"x-api-key": "k"})
        assert "authorization" not in policy.requests[0].headers


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_answers_are_not_held_back_by_nagles_algorithm(host):
    with listen(host, 0, allow_remote=False) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_port_that_is_taken_is_a_config_error():
    with listen("127.0.0.1", 0, allow_remote=False) as listener:
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address"):
            listen("127.0.0.1", listener.getsockname()[1], allow_remote=False)


def test_finding_the_plugin_imports_no_web_server():
    code = "import sys, osmosis_gateway.plugin; print({'starlette', 'uvicorn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()"


async def test_caller_that_goes_away_within_its_body_raises_nothing():
    app, sent = standalone_app(PolicyEndpoint("http://127.0.0.1:9/v1"), "key"), []
    path = {"path": "/v1/chat/completions", "root_path": "", "query_string": b""}
    headers = [(b"authorization", b"Bearer key")]

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": "POST", "headers": headers, **path}, receive, send)
    assert sent[0]["status"] == 400


def test_empty_key_is_refused():
    with pytest.raises(ConfigError, match="API key is empty"):
        standalone_app(PolicyEndpoint("http://127.0.0.1:9/v1"), "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_full_disk_is_one_line_and_callers_are_answered():
    with served("--policy", "demo", "--record", "/dev/full") as (said, process):
        with client_of(said) as client:
            assert client.chat.completions.create(model="m", messages=ASK).choices
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert "--record '/dev/full': No space left on device" in errors
    assert "Traceback" not in errors
