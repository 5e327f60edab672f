"""The page on agent loops: its code, changed in nothing but imports, does what the page says."""

import sys
from pathlib import Path

import pytest

from osmosis_core import ExecutionRequest, LocalBackend
from osmosis_core.discovery import load_entrypoint, load_target
from osmosis_core.testing import DemoPolicy, ScriptedPolicy, Tool, Turn
from osmosis_core.validation import validate_target

HERE = Path(__file__).parent
TARGET = f"{HERE / 'page_004.py'}:agent_loop"


async def rollout(policy, metadata=None):
    program, results = load_entrypoint(TARGET).program, []

    async def keep(result):
        results.append(result)

    backend = LocalBackend(workflow=program.workflow, workflow_config=program.workflow_config)
    prompt = [{"role": "user", "content": "What is (2 + 3) * 4?"}]
    with policy.rollout("row-0"):
        await backend.execute(ExecutionRequest("row-0", prompt, metadata=metadata), keep)
    return results[0]


async def test_complete_example_calls_its_tools_and_gives_a_reward():
    calls = Tool("add", {"a": 2, "b": 3}), Tool("multiply", {"a": 5, "b": 4})
    with ScriptedPolicy(*calls, "It is 20.") as policy:
        result = await rollout(policy, {"ground_truth": "20"})
    sample = result.samples["calculator"]
    assert [m["content"] for m in sample.messages if m["role"] == "tool"] == ["5", "20"]
    assert (sample.reward, len(sample.calls)) == (1.0, 3)
    assert sample.metrics["num_tool_calls"] == 2
    assert sample.extra_fields["agent_loop"]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (Tool("divide"), "Error: Unknown tool: divide"),
        (Tool("add", "{broken"), "Error: the arguments are not JSON"),
        (Tool("add", {"a": 1}), "Error: add() missing 1 required positional argument"),
    ],
)
async def test_bad_tool_calls_are_told_to_the_model(bad, text):
    with ScriptedPolicy(Turn((bad,)), "sorry") as policy:
        result = await rollout(policy)
    (told,) = [m for m in result.samples["calculator"].messages if m["role"] == "tool"]
    assert told["content"].startswith(text)


async def test_turns_end_where_the_request_says():
    with ScriptedPolicy(Tool("add", {"a": 1, "b": 1})) as policy:
        result = await rollout(policy)
    sample = result.samples["calculator"]
    assert sample.extra_fields["agent_loop"]["finish_reason"] == "max_turns"
    assert len(sample.calls) == 10


async def test_it_runs_with_the_embedded_policy():
    with DemoPolicy() as policy:
        result = await rollout(policy, {"ground_truth": "20"})
    assert result.samples["calculator"].reward == 1.0
    assert len(result.samples["calculator"].calls) == 3


def test_it_is_valid():
    result = validate_target(TARGET)
    assert (result.valid, result.errors, result.warnings, result.name) == (
        True,
        [],
        [],
        "calculator",
    )


async def test_the_pages_other_blocks_run():
    sys.path.insert(0, str(HERE))
    try:
        parts, _ = load_target(str(HERE / "page_004_parts.py"))
    finally:
        sys.path.remove(str(HERE))
    assert [tool.model_dump() for tool in parts.TOOLS] == parts.SAME_TOOLS
    call = {"id": "c", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    assert (await parts.execute_tool(call))["content"] == '{"results": ["x"]}'
    said = [{"role": "assistant", "content": "42"}]
    assert parts.compute_reward_from_messages(said, "42") == 1.0
    assert parts.extract_answer("so #### 42 ") == "42"
