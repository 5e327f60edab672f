"""What the tests share: a loop that asks once, and loops run as a backend runs them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from osmosis_agent_loop import RolloutAgentLoop, agent_loop_program, reset_settings
from osmosis_core import ExecutionRequest, LocalBackend

OSMOSIS = Path(sys.executable).parent / "osmosis"
PROMPT = [{"role": "user", "content": "What is 6 * 7?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "number", "minimum": 3}}},
    },
}


class Once(RolloutAgentLoop):
    """Asks once; what a test gives as `body` runs instead."""

    name = "once"

    def __init__(self, body=None, tools=(ADD,)):
        self.body, self.tools = body, tools

    def get_tools(self, request):
        return list(self.tools)

    async def run(self, ctx):
        if self.body is not None:
            return await self.body(ctx)
        messages = list(ctx.request.messages)
        answer = await ctx.chat(messages, **ctx.request.completion_params)
        return ctx.complete([*messages, answer.message], answer.finish_reason, reward=1.0)


async def _execute(loop, policy, *, grader=None, metadata=None, label=None, **config):
    program, results = agent_loop_program(loop, **config), []

    async def keep(result):
        results.append(result)

    backend = LocalBackend(
        workflow=program.workflow, workflow_config=program.workflow_config, grader=grader
    )
    request = ExecutionRequest("row-0", PROMPT, label=label, metadata=metadata)
    with policy.rollout():
        await backend.execute(request, keep, keep if grader else None)
    return results[-1]


@pytest.fixture
def world():
    """`Once`, `ADD`, and `execute(loop, policy, ...)`: the last result of a rollout."""
    return SimpleNamespace(Once=Once, ADD=ADD, PROMPT=PROMPT, execute=_execute)


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch, tmp_path_factory):
    """No settings of the machine's, and nothing written into the home directory."""
    root = tmp_path_factory.getbasetemp() / "artifacts"
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(root))
    for name in [name for name in os.environ if name.startswith("OSMOSIS_")]:
        monkeypatch.delenv(name)
    reset_settings()
    yield
    reset_settings()


@pytest.fixture
def osmosis(tmp_path):
    """Run `osmosis` in `tmp_path`; keywords are environment variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON"))}

    def run(*arguments, **env):
        return subprocess.run(
            [OSMOSIS, *map(str, arguments)],
            cwd=tmp_path,
            env={**kept, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
