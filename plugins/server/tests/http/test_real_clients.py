"""The published SDK itself drives the server, each version in an environment of its own."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

UV = Path(sys.executable).parent / "uv"
FOREIGN = ("OSMOSIS_", "PYTHON", "VIRT")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

POLLING = """
import asyncio, sys
from osmosis_ai.rollout.client import RolloutClient, RolloutProtocolError

async def main(url, key):
    def asked(order, rollout_id, **options):
        said = [{"role": "user", "content": order}]
        options = {"label": "1", "chat_completions_url": "http://127.0.0.1:9/v1"} | options
        return {"initial_messages": said, "rollout_id": rollout_id, **options}

    client = RolloutClient(url=url, api_key=key, admission_timeout_sec=30)
    done = await client.run_rollout(**asked("speak", "r-1"))
    assert (done.rollout_id, done.status, done.sample.reward) == ("r-1", "success", 0.5), done
    assert done.sample.messages[0]["content"] == "did speak", done

    failed = await client.run_rollout(**asked("fail so", "r-2"))
    assert (failed.status, failed.err_message) == ("failure", "so"), failed
    assert failed.err_category == "validation_error", failed

    plain = await client.run_rollout(**asked("speak", "r-3", grade=False, label=None))
    assert (plain.status, plain.sample.reward) == ("success", None), plain
    ungraded = await client.run_rollout(**asked("speak", "r-4", label=None))
    assert ungraded.status == "failure" and "label" in ungraded.err_message, ungraded
    several = await client.run_rollout(**asked("samples a,b", "r-5"))
    assert several.status == "failure" and "2 samples (a, b)" in several.err_message, several
    late = await client.run_rollout(**asked("sleep", "r-6", agent_timeout_sec=0.2))
    assert late.err_category == "timeout", late

    handle = await client.run_rollout_async(**asked("sleep", "r-7"))
    await handle.wait_for_running()
    health = await client.health()
    assert health["lifecycle"]["active_rollouts"] == 1, health
    found = await client.cancel_rollout("r-7")
    assert found.dispositions == {"r-7": "cancelled_running"}, found
    assert (await handle).status == "cancelled"
    try:
        await client.run_rollout(**asked("speak", "r-1"))
        raise AssertionError("an id was taken twice")
    except RolloutProtocolError as error:
        assert error.status_code == 409, error
    many = [client.run_rollout(**asked("speak", f"m-{n}")) for n in range(50)]
    assert {done.status for done in await asyncio.gather(*many)} == {"success"}
    await client.wait_idle(timeout_sec=20, process_id=health["process_id"])
    await client.aclose()

asyncio.run(main(*sys.argv[1:]))
print("driven")
"""

CALLBACKS = """
import json, queue, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import httpx
from osmosis_ai.rollout import GraderCompleteRequest, RolloutCompleteRequest, RolloutInitRequest

URL, STATUS, IS_PLURAL = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "plural"
SEEN = {"/completion": queue.Queue(), "/grader": queue.Queue()}

class Listener(BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.headers["Authorization"] == "Bearer k-1"
        SEEN[self.path].put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass

listener = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
threading.Thread(target=listener.serve_forever, daemon=True).start()
here = f"http://127.0.0.1:{listener.server_port}"

def run(order, rollout_id, **options):
    options = {"label": "1", "chat_completions_url": "http://127.0.0.1:9/v1"} | options
    asked = RolloutInitRequest(
        rollout_id=rollout_id, initial_messages=[{"role": "user", "content": order}],
        controller_api_key="k-1", completion_callback_url=here + "/completion",
        grader_callback_url=here + "/grader", **options)
    answer = httpx.post(URL + "/rollout", json=asked.model_dump(mode="json"), trust_env=False)
    assert (answer.status_code, answer.json()) == (STATUS, {}), answer.text
    completion = RolloutCompleteRequest.model_validate_json(SEEN["/completion"].get(timeout=30))
    grader = GraderCompleteRequest.model_validate_json(SEEN["/grader"].get(timeout=30))
    assert completion.rollout_id == grader.rollout_id == rollout_id
    samples = grader.samples if IS_PLURAL else {} if grader.sample is None else {"": grader.sample}
    return completion, grader, list(samples.values())

completion, grader, (sample,) = run("speak", "r-1")
assert (completion.status.value, grader.status.value, sample.reward) == ("success", "success", 0.5)
completion, grader, samples = run("fail so", "r-2")
assert (completion.status.value, completion.err_message) == ("failure", "so")
assert completion.err_category.value == "validation_error" and grader.status.value == "failure"
completion, grader, (sample,) = run("speak", "r-3", label=None)
assert completion.status.value == "success" and "label" in grader.err_message
completion, grader, samples = run("samples a,b", "r-4")
assert (grader.status.value, len(samples)) == (("success", 2) if IS_PLURAL else ("failure", 0))
completion, grader, (sample,) = run("speak", "r-5", label="removed")
assert (grader.status.value, sample.remove_sample, sample.reward) == ("success", True, None)
completion, _, _ = run("sleep", "r-6", agent_timeout_sec=0.2)
assert completion.err_category.value == "timeout"
print("driven")
"""


@pytest.fixture
def sdk(tmp_path):
    """Run a script with a version of the SDK."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}

    def run(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    async def drive(version, script, *arguments):
        python = tmp_path / "venv/bin/python"
        wanted = f"osmosis-ai[server]=={version}"
        await asyncio.to_thread(run, UV, "venv", "-q", "-p", sys.executable, tmp_path / "venv")
        await asyncio.to_thread(run, UV, "pip", "install", "-q", "--python", python, wanted)
        return await asyncio.to_thread(run, python, "-c", script, *arguments)

    return drive


async def test_rollout_client_of_the_sdk_drives_every_case(serve, sdk):
    async with serve(api_key="server-key") as controller:
        assert "driven" in await sdk("0.3.7", POLLING, controller.origin, "server-key")


@pytest.mark.parametrize(
    ("version", "protocol", "status", "number"),
    [("0.3.0", "single-sample", "202", "singular"), ("0.2.31", "multi-sample", "200", "plural")],
)
async def test_requests_and_callbacks_are_those_of_the_sdk(
    serve, sdk, version, protocol, status, number
):
    async with serve(callback_protocol=protocol) as controller:
        said = await sdk(version, CALLBACKS, controller.origin, status, number)
    assert "driven" in said
