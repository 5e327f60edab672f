"""`osmosis test --model` and `evaluate_rubric` over LiteLLM, installed in a clean environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_core.testing import ScriptedPolicy, Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).parent / "uv"
EXAMPLE = ROOT / "examples/agent_loop"

RUBRIC = """
from osmosis_agent_loop import ModelNotFoundError, ProviderRequestError, evaluate_rubric

info = {"provider": "openai", "model": "judge"}
ask = "Is it right?", "42", info
assert evaluate_rubric(*ask) == 1.0  # clamped
assert evaluate_rubric(*ask, score_max=10, return_details=True)["explanation"] == "so so"
for kind in (ProviderRequestError, ModelNotFoundError):
    try:
        evaluate_rubric(*ask)
        raise AssertionError(kind)
    except kind as error:
        assert "sk-upstream" not in str(error) and str(error).startswith("openai/judge: ")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    run(folder, UV, "venv", "--quiet", "--python", sys.executable, folder / "venv")
    plugins = [ROOT / "plugins" / name for name in ("gateway", "server")]
    requirements = ROOT, *plugins, f"{ROOT / 'plugins/agent_loop'}[litellm]"
    python = folder / "venv/bin/python"
    run(folder, UV, "pip", "install", "--quiet", "--python", python, *requirements)
    return folder


def run(folder, *command, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON", "VIRT"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def upstream(policy):
    return {"OPENAI_API_BASE": policy.base_url, "OPENAI_API_KEY": "sk-upstream"}


@pytest.mark.parametrize("model", ["openai/big", "big"])
def test_any_model_of_litellm_is_asked(folder, model):
    with ScriptedPolicy("The answer is 42.", api_key="sk-upstream") as policy:
        options = ("-d", EXAMPLE / "rows.jsonl", "--model", model, "--row", "0")
        command = (folder / "venv/bin/osmosis", "test", "-m", f"{EXAMPLE}/server.py:agent_loop")
        done = run(folder, *command, *options, **upstream(policy))
    assert "row 0: stop, reward 1, 1 calls" in done.stderr
    assert policy.requests[0].body["model"] == "big"
    assert policy.requests[0].body["tools"]


def test_rubric_is_judged_by_a_model(folder):
    good = '{"score": 3, "explanation": "so so"}'
    script = good, good, "I like it", Status(404, "no model sk-upstream")
    with ScriptedPolicy(*script, api_key="sk-upstream") as policy:
        run(folder, folder / "venv/bin/python", "-c", RUBRIC, **upstream(policy))
    question = policy.requests[0].body["messages"][1]["content"]
    assert "Is it right?" in question and "42" in question
