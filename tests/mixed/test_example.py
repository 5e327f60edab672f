"""The mixed example with the embedded policy: one tree, every agent graded for its own work."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed_research"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `make demo-mixed` writes, as (result, samples) of every row."""
    path = tmp_path_factory.mktemp("mixed")
    command = [Path(sys.executable).parent / "osmosis", "eval", "run", EXAMPLE / "workflow.py"]
    options = ["--dataset", EXAMPLE / "rows.jsonl", "--policy", "demo", "--output", path / "out"]
    subprocess.run([*command, *options], check=True, cwd=path, capture_output=True)
    files = [(path / "out" / name).read_text() for name in ("results.jsonl", "samples.jsonl")]
    results, samples = ([json.loads(line) for line in text.splitlines()] for text in files)
    return list(zip(results, (sample["samples"] for sample in samples), strict=True))


def rewards(results, agent):
    return [
        result["rewards"][sample_id]
        for result, samples in results
        for sample_id, sample in samples.items()
        if sample["extra_fields"].get("agent_name", sample_id) == agent
    ]


def test_every_row_succeeds_and_most_answers_are_right(results):
    assert len(results) == 60
    assert {result["status"] for result, _ in results} == {"success"}
    assert 0.7 < sum(rewards(results, "planner")) / 60 < 1, "the policy is good, not perfect"


def test_rewards_differ_per_agent(results):
    assert set(rewards(results, "planner")) == set(rewards(results, "critic")) == {0.0, 1.0}
    assert set(rewards(results, "calculator")) == {1.0}
    assert set(rewards(results, "helper")) == {None}
    assert all(not samples["helper"]["trainable"] for _, samples in results)


def test_tree_says_who_called_whom(results):
    for result, samples in results:
        (planner,) = result["tree"]
        *calculators, critic = planner["started"]
        names = [samples[run["sample"]]["extra_fields"]["agent_name"] for run in calculators]
        assert planner["sample"] == "planner"
        assert names and set(names) == {"calculator"}
        assert critic["sample"] == "critic"
        assert {run["sample"] for run in critic["started"]} == {"helper"}


def test_make_rows_reproduces_the_rows(tmp_path):
    shutil.copy(EXAMPLE / "make_rows.py", tmp_path)
    subprocess.run([sys.executable, tmp_path / "make_rows.py"], check=True)
    assert (tmp_path / "rows.jsonl").read_bytes() == (EXAMPLE / "rows.jsonl").read_bytes()
