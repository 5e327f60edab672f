"""The documented pages' code, changed in nothing but imports, run as a backend runs it."""

from pathlib import Path

import pytest

from osmosis_core import ExecutionRequest, LocalBackend, RolloutStatus
from osmosis_core.discovery import load_entrypoint
from osmosis_core.testing import ScriptedPolicy, Tool

HERE = Path(__file__).parent
PROMPT = [{"role": "user", "content": "What is 6 * 7?"}]


async def rollout(page, policy, *, label="42"):
    program = load_entrypoint(str(HERE / f"{page}.py")).program
    backend = LocalBackend(
        workflow=program.workflow,
        workflow_config=program.workflow_config,
        grader=program.grader,
    )
    results = []

    async def keep(result):
        results.append(result)

    request = ExecutionRequest(id="row-0", prompt=PROMPT, label=label)
    with policy.rollout():
        await backend.execute(request, keep, keep if program.grader else None)
    return results[-1]


@pytest.mark.parametrize(
    ("page", "sample_id"),
    [
        ("page_001", "search-agent"),
        ("page_002_search", "search-agent"),
        ("page_003_tools", "search-agent"),
    ],
)
async def test_tool_using_workflows_call_their_tool(page, sample_id):
    with ScriptedPolicy(Tool("search", {"query": "six"}), "it is 42") as policy:
        result = await rollout(page, policy)
    assert result.status is RolloutStatus.SUCCESS, result.err_message
    sample = result.samples[sample_id]
    assert [m["role"] for m in sample.messages] == ["user", "assistant", "user", "assistant"]
    assert policy.requests[0].body["temperature"] == 1.0
    assert {r.sample_id for r in policy.requests} == {sample_id}


async def test_complete_example_is_graded():
    with ScriptedPolicy(Tool("calculator", {"expression": "6 * 7"}), "It is 42.") as policy:
        right = await rollout("page_002_math", policy)
    with ScriptedPolicy("It is 41.") as policy:
        wrong = await rollout("page_002_math", policy)
    assert right.samples["math-agent"].reward == 1.0
    assert wrong.samples["math-agent"].reward == 0.0


async def test_simple_pattern_makes_one_sample():
    with ScriptedPolicy("hello") as policy:
        result = await rollout("page_003_simple", policy)
    assert list(result.samples) == ["simple-strands-agent"]


async def test_openai_agents_pattern_makes_one_sample_of_agent_and_session():
    with ScriptedPolicy("hello") as policy:
        result = await rollout("page_003_openai_agents", policy)
    assert result.status is RolloutStatus.SUCCESS, result.err_message
    sample = result.samples["simple-openai-agent"]
    assert list(result.samples) == [sample.id]
    assert [message["role"] for message in sample.messages] == ["user", "assistant"]
    body = policy.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (1.0, 4096)
    assert body["messages"][0]["content"] == "Answer the user's request clearly."


@pytest.mark.parametrize("page", ["page_001_config", "page_003_config"])
async def test_configurable_workflows_run_without_agents(page):
    with ScriptedPolicy() as policy:
        result = await rollout(page, policy)
    assert result.status is RolloutStatus.SUCCESS
    assert result.samples == {}


def test_concurrency_is_that_of_the_config_or_four():
    with_config = load_entrypoint(str(HERE / "page_003_tools.py")).program
    backend = LocalBackend(
        workflow=with_config.workflow, workflow_config=with_config.workflow_config
    )
    assert backend.max_concurrency == 0
    page = load_entrypoint(str(HERE / "page_000.py"))
    assert page.module.backend.max_concurrency == 4
    assert page.module.backend.health()["status"] == "ok"
