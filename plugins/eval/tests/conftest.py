from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osmosis_core.cli import main
from osmosis_core.testing import ScriptedPolicy

OSMOSIS = Path(sys.executable).with_name("osmosis")
LIMIT_SEC = 60.0

OPENAI_FLOW = """
    import httpx2
    from openai import AsyncOpenAI
    from osmosis_core import AgentWorkflow, Grader
    from osmosis_core.policy import BASE_URL, async_client

    client = AsyncOpenAI(
        base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0
    )

    class Answer(AgentWorkflow):
        async def run(self, ctx):
            await client.chat.completions.create(model="m", messages=ctx.prompt)

    class Equal(Grader):
        async def grade(self, ctx):
            ctx.set_reward(ctx.sample.messages[-1]["content"] == ctx.label)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Workspace:
    """A directory with a workflow and rows, and commands that run there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    def rows(self, count: int = 3, **columns: Any) -> str:
        rows = [{"user_prompt": f"q{i}", "ground_truth": "ok", **columns} for i in range(count)]
        return self.write("rows.jsonl", "\n".join(map(json.dumps, rows)))

    def arguments(self, *extra: str, target: str = "flow.py") -> list[str]:
        return ["eval", "run", target, "--dataset", "rows.jsonl", "--output", "out", *extra]

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(OSMOSIS), *arguments],
            cwd=self.path,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **env: str) -> Ended:
        with self.start(*arguments, **env) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_SEC)
            finally:
                process.kill()
        return Ended(process.returncode, out, err)

    def lines(self, name: str = "results.jsonl") -> list[Any]:
        text = (self.path / "out" / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def summary(self) -> Any:
        return json.loads((self.path / "out" / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """An empty workspace that is the current directory; no policy in the environment."""
    for name in ("OSMOSIS_API_KEY", "OSMOSIS_CHAT_COMPLETIONS_URL", "OSMOSIS_ROLLOUT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield Workspace(tmp_path)
    sys.path[:] = path
    for name in ("flow", "_osmosis_entrypoint_flow"):
        sys.modules.pop(name, None)


@pytest.fixture
def flow(workspace: Workspace) -> Workspace:
    """A workspace with the workflow that asks once, and three rows whose answer is `ok`."""
    workspace.write("flow.py", OPENAI_FLOW)
    workspace.rows()
    return workspace


@pytest.fixture
def policy() -> Iterator[ScriptedPolicy]:
    """A policy that answers `ok`."""
    with ScriptedPolicy("ok") as started:
        yield started


@pytest.fixture
def osmosis(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command in this process: faster, and no less real, than one of its own."""

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Ended(int(exit_.value.code or 0), out, err)

    return run
