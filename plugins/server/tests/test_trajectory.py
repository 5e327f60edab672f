"""ATIF documents of rollouts: every framework, the calls as the truth, controllers' reports."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from agents import Agent, RunConfig, Runner, function_tool
from langchain.agents import create_agent
from langchain_core import tools as langchain
from openai import AsyncOpenAI
from strands import tool as strands_tool

from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend, RolloutSample, WireOptions
from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client
from osmosis_core.testing import Say, ScriptedPolicy, Status, Tool
from osmosis_core.types import ExecutionResult, RolloutStatus
from osmosis_langgraph import ChatOsmosis
from osmosis_openai_agents import OsmosisModelProvider
from osmosis_server.submissions import Submission
from osmosis_server.trajectory import RolloutFiles
from osmosis_strands import OsmosisStrandsAgent

SDK = AsyncOpenAI(base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0)
PROMPT = [{"role": "user", "content": "2 + 3?"}]
ASKS = Tool("add", {"a": 2, "b": 3})
LIMITS = {"max_artifact_bytes": 10**6, "max_artifact_files": 100}


@strands_tool(name="add")
def strands_add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@langchain.tool("add")
def langchain_add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@function_tool(name_override="add")
def openai_add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


class Strands(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisStrandsAgent(name="adder", tools=[strands_add], callback_handler=None)
        await agent.invoke_async("2 + 3?")


class LangGraph(AgentWorkflow):
    async def run(self, ctx):
        await create_agent(ChatOsmosis(), [langchain_add], name="adder").ainvoke(
            {"messages": ctx.prompt}
        )


class OpenAIAgents(AgentWorkflow):
    async def run(self, ctx):
        agent = Agent(name="adder", tools=[openai_add])
        config = RunConfig(model_provider=OsmosisModelProvider(), tracing_disabled=True)
        await Runner.run(agent, ctx.prompt, run_config=config)


class Asks(AgentWorkflow):
    """One bare call per list of messages in the prompt."""

    async def run(self, ctx):
        for told in ctx.prompt:
            with agent_scope(told.get("sample", "main")):
                await SDK.chat.completions.create(model=MODEL, messages=told["messages"])


@pytest.fixture
def roll_out(tmp_path):
    """Run a workflow with a scripted policy; returns its result."""

    async def run(workflow, *script, prompt=PROMPT, wire=None):
        results = []

        async def report(result):
            results.append(result)

        backend = LocalBackend(workflow=workflow, artifacts_root=tmp_path)
        with ScriptedPolicy(*script) as policy, policy.rollout(wire=wire or WireOptions()):
            await backend.execute(ExecutionRequest("r 1", prompt, label="5"), report)
        return results[0]

    return run


@pytest.fixture
def saved(tmp_path):
    """Write the files of a result; returns them as JSON by name."""

    async def save(result, *reports, early=(), **keys):
        files = RolloutFiles(tmp_path, **LIMITS)
        for report in early:
            files.acknowledged("r 1", "completion", report)
        files.rollout_ended(submission(**keys), result)
        for report in reports:
            files.acknowledged("r 1", "grader", report)
        await files.close(10)
        paths = sorted((tmp_path / "r 1").iterdir())
        return {path.name: json.loads(path.read_text()) for path in paths if path.is_file()}

    return save


def submission(**keys):
    request = ExecutionRequest("r 1", PROMPT, label="5", extra_fields={"row": 7})
    return Submission(request, "polling", "http://policy/v1", **keys)


def ok(*samples, **extra_fields):
    by_id = {sample.id: sample for sample in samples}
    return ExecutionResult(RolloutStatus.SUCCESS, by_id, extra_fields=extra_fields)


def said(*messages):
    return ok(RolloutSample(id="main", messages=list(messages)))


@pytest.mark.parametrize("workflow", [Strands, LangGraph, OpenAIAgents])
async def test_a_rollout_of_each_framework_is_three_steps(roll_out, saved, workflow):
    result = await roll_out(workflow, ASKS, "it is 5")
    assert result.err_message is None
    files = await saved(result)
    first, second, third = files["trajectory.json"]["steps"]
    assert (first["source"], first["message"]) == ("user", "2 + 3?")
    assert second["tool_calls"] == [
        {"tool_call_id": "call_1", "function_name": "add", "arguments": {"a": 2, "b": 3}}
    ]
    assert second["observation"] == {"results": [{"source_call_id": "call_1", "content": "5"}]}
    assert (third["source"], third["message"], third["step_id"]) == ("agent", "it is 5", 3)


@pytest.mark.parametrize("workflow", [Strands, LangGraph, OpenAIAgents])
async def test_messages_without_calls_tell_the_same_as_the_calls(roll_out, saved, workflow):
    result = await roll_out(workflow, ASKS, Say("it is 5", reasoning="easy"))
    from_calls = (await saved(result))["trajectory.json"]
    result.samples["adder"].calls = []
    from_messages = (await saved(result))["trajectory.json"]
    members = "source", "message", "tool_calls", "observation"
    told, also = (
        [{name: step.get(name) for name in members} for step in document["steps"]]
        for document in (from_calls, from_messages)
    )
    assert told == also


async def test_agent_steps_carry_what_the_engine_returned(roll_out, saved):
    tokens = {
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": 0}]},
    }
    wire = WireOptions(capture={"logprobs": True, "return_token_ids": True})
    answer = Say("it is 5", reasoning="easy", extra=tokens)
    document = (await saved(await roll_out(Strands, answer, wire=wire)))["trajectory.json"]
    step = document["steps"][-1]
    assert step["reasoning_content"] == "easy" and step["llm_call_count"] == 1
    assert step["metrics"]["completion_token_ids"] == [7, 8]
    assert step["metrics"]["logprobs"] == [-0.5, 0.0]
    totals = document["final_metrics"]
    assert totals["total_prompt_tokens"] == step["metrics"]["prompt_tokens"] > 0
    assert totals["total_steps"] == 2


async def test_token_ids_of_prompts_are_told_once_per_conversation(roll_out, saved):
    wire = WireOptions(capture={"return_token_ids": True})
    result = await roll_out(Strands, ASKS, "it is 5", wire=wire)
    steps = (await saved(result))["trajectory.json"]["steps"]
    assert "prompt_token_ids" not in steps[1]["metrics"]
    ids = steps[2]["metrics"]["prompt_token_ids"]
    assert ids == list(result.samples["adder"].calls[1].prompt_token_ids) != []


async def test_the_document_says_whose_it_is(roll_out, saved):
    document = (await saved(await roll_out(Strands, "5")))["trajectory.json"]
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["session_id"] == document["trajectory_id"] == "r 1"
    assert document["agent"]["name"] == "osmosis-rollout-sdk"
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "add"
    about = document["extra"]["osmosis"]
    assert (about["rollout_id"], about["label"]) == ("r 1", "5")
    assert about["request_extra_fields"] == {"row": 7} and "reward" not in about


async def test_several_samples_have_a_file_each(roll_out, saved):
    asks = [{"sample": name, "messages": PROMPT} for name in ("a b", "c")]
    files = await saved(await roll_out(Asks, "5", prompt=asks))
    assert sorted(files) == ["trajectory-a%20b.json", "trajectory-c.json"]
    document = files["trajectory-c.json"]
    assert (document["session_id"], document["trajectory_id"]) == ("r 1", "r 1:c")


async def test_a_rewritten_history_repeats_nothing_and_says_so(roll_out, saved):
    full = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
    ]
    window = [full[0], full[3], {"role": "assistant", "content": "second"}, full[1]]
    asks = [{"messages": told} for told in (full[:2], full, window)]
    result = await roll_out(Asks, "first", "second", "third", prompt=asks)
    steps = (await saved(result))["trajectory.json"]["steps"]
    assert [step["message"] for step in steps] == [
        "Be brief.", "one", "first", "two", "second", "third",
    ]  # fmt: skip
    assert steps[-1]["extra"]["osmosis"]["chain"] == 1
    assert "does not go on" in steps[-1]["extra"]["osmosis"]["findings"][0]


async def test_an_example_in_the_prompt_is_no_answer_of_the_policy(roll_out, saved):
    example = {"role": "assistant", "content": "4"}
    messages = [{"role": "user", "content": "2 + 2?"}, example, *PROMPT]
    files = await saved(await roll_out(Asks, "5", prompt=[{"messages": messages}]))
    steps = files["trajectory.json"]["steps"]
    assert [step.get("is_copied_context", False) for step in steps] == [False, True, False, False]
    assert "metrics" not in steps[1] and "metrics" in steps[3]


async def test_what_was_asked_stays_when_no_call_was_answered(roll_out, saved):
    result = await roll_out(Asks, Status(400), prompt=[{"messages": PROMPT}])
    files = await saved(result)
    assert files["trajectory.json"]["steps"][0]["message"] == "2 + 3?"
    assert files["diagnostics.json"]["status"] == "failure"
    assert files["diagnostics.json"]["err_category"] == "http_error"


async def test_the_last_results_of_tools_are_told_although_no_call_followed(saved, roll_out):
    result = await roll_out(Asks, ASKS, prompt=[{"messages": PROMPT}])
    result.samples["main"].messages.append(
        {"role": "tool", "tool_call_id": "call_1", "content": "5"}
    )
    steps = (await saved(result))["trajectory.json"]["steps"]
    assert steps[-1]["observation"]["results"] == [{"source_call_id": "call_1", "content": "5"}]


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ({"role": "developer", "content": "x"}, {"source": "system", "message": "x"}),
        (
            {"role": "critic", "content": "x"},
            {"source": "user", "message": "x", "extra": {"original_role": "critic"}},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
            {"source": "user", "message": "a\nb"},
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "u"}]},
            {"source": "user", "message": '[{"type": "image_url", "image_url": "u"}]'},
        ),
        (
            {"role": "tool", "tool_call_id": "lost", "content": "x"},
            {"source": "system", "message": "x", "extra": {"tool_call_id": "lost"}},
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            {"source": "agent", "message": "", "tool_calls": [
                {"tool_call_id": "call_0", "function_name": "f", "arguments": {"_raw": "{"}}]},
        ),
        (
            {"role": "assistant", "content": "x", "usage": {"input_tokens": 3, "output_tokens": 4,
             "input_tokens_details": {"cached_tokens": 1}}},
            {"source": "agent", "message": "x",
             "metrics": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1}},
        ),
    ],
)  # fmt: skip
async def test_a_message_becomes_a_step_as_documented(saved, message, step):
    steps = (await saved(said(message)))["trajectory.json"]["steps"]
    assert steps == [{"step_id": 1, **step}]


async def test_a_result_that_nobody_asked_for_names_its_call(saved):
    lost = {"role": "tool", "tool_call_id": "lost", "content": "x"}
    files = await saved(said({"role": "assistant", "content": "hm"}, lost))
    result = {"content": "x", "extra": {"tool_call_id": "lost"}}
    assert files["trajectory.json"]["steps"][0]["observation"]["results"] == [result]


async def test_anything_in_a_sample_is_written_somehow(saved):
    sample = RolloutSample(id="main", messages=[{"role": "user", "content": "\ud800"}])
    sample.metrics = {"loss": math.nan, "who": object(), "seen": {1, 2}}
    metrics = (await saved(ok(sample)))["trajectory.json"]["extra"]["osmosis"]["sample_metrics"]
    assert metrics["loss"] is None and metrics["who"].startswith("<object")


async def test_keys_are_blotted_out(saved, tmp_path):
    await saved(said({"role": "user", "content": "my key is sk-very-secret"}),
                llm_api_key="sk-very-secret")  # fmt: skip
    assert "my key is [redacted]" in (tmp_path / "r 1/trajectory.json").read_text()


async def test_diagnostics_are_what_a_backend_or_a_workflow_says(saved):
    assert await saved(ok(queued_sec=0.5)) == {}
    files = await saved(ok(queued_sec=0.5, info={"tries": 2}))
    assert files["diagnostics.json"] == {
        "rollout_id": "r 1",
        "status": "success",
        "extra_fields": {"queued_sec": 0.5, "info": {"tries": 2}},
    }


def report(*calls, key="main", **final):
    sample = {"llm_call_metrics": list(calls), "final_metrics": final or None}
    return {"model_name": "m-1", "samples": {key: sample}}


async def test_a_controllers_report_completes_the_steps(saved):
    answer = {"role": "assistant", "content": "5"}
    body = report({"prompt_tokens": 9, "cost_usd": 0.5}, total_cost_usd=0.75)
    document = (await saved(said(*PROMPT, answer), body))["trajectory.json"]
    assert document["steps"][1]["metrics"] == {"prompt_tokens": 9, "cost_usd": 0.5}
    assert document["final_metrics"]["total_cost_usd"] == 0.75
    assert document["agent"]["model_name"] == "m-1"


async def test_a_report_of_other_calls_is_kept_aside(saved):
    answer = {"role": "assistant", "content": "5"}
    body = report({"prompt_tokens": 9}, {"prompt_tokens": 10})
    document = (await saved(said(*PROMPT, answer), body))["trajectory.json"]
    assert "metrics" not in document["steps"][1]
    kept = document["extra"]["osmosis"]["unmatched_llm_call_metrics"]
    assert [call["prompt_tokens"] for call in kept] == [9, 10]


async def test_a_report_of_an_unknown_sample_is_kept_aside(saved):
    samples = [RolloutSample(id=name, messages=PROMPT) for name in ("a", "b")]
    files = await saved(ok(*samples), report({"prompt_tokens": 9}, key="c"))
    kept = files["trajectory-a.json"]["extra"]["osmosis"]["unmatched_sample_reports"]
    assert kept["c"]["llm_call_metrics"] == [{"prompt_tokens": 9}]


@pytest.mark.parametrize(
    "body",
    [3, None, {"samples": []}, report({"prompt_tokens": "many"}), report({"x": 1})],
)
async def test_a_malformed_report_is_ignored(saved, body):
    answer = {"role": "assistant", "content": "5"}
    document = (await saved(said(*PROMPT, answer), body))["trajectory.json"]
    assert "metrics" not in document["steps"][1] and "model_name" not in document["agent"]


async def test_a_later_report_replaces_an_earlier_one(saved):
    answer = {"role": "assistant", "content": "5"}
    first = report({"prompt_tokens": 1, "cached_tokens": 1}, total_cost_usd=1)
    later = report({"prompt_tokens": 2})
    document = (await saved(said(*PROMPT, answer), later, early=[first]))["trajectory.json"]
    assert document["steps"][1]["metrics"] == {"prompt_tokens": 2}
    assert document["final_metrics"] == {"total_steps": 2, "total_prompt_tokens": 2}


async def test_a_report_that_came_before_the_end_counts(saved):
    answer = {"role": "assistant", "content": "5"}
    files = await saved(said(*PROMPT, answer), early=[report({"prompt_tokens": 1})])
    assert files["trajectory.json"]["steps"][1]["metrics"] == {"prompt_tokens": 1}


async def test_a_place_that_cannot_be_written_is_one_line_in_the_log(tmp_path, caplog):
    (tmp_path / "r 1").write_text("a file where the directory should be")
    files = RolloutFiles(tmp_path, **LIMITS)
    files.rollout_ended(submission(), said(*PROMPT))
    files.rollout_ended(submission(), said(*PROMPT))
    await files.close(10)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("files of rollout r 1 in ") and "\n" not in line


async def test_a_link_in_the_place_of_a_document_is_not_followed(saved, tmp_path):
    other = tmp_path / "precious"
    other.write_text("{}")
    (tmp_path / "r 1").mkdir()
    (tmp_path / "r 1/trajectory.json").symlink_to(other)
    files = await saved(said(*PROMPT))
    assert files["trajectory.json"]["steps"] and other.read_text() == "{}"


@pytest.mark.slow
async def test_harbor_accepts_the_documents(roll_out, saved, tmp_path):
    body = report({"prompt_tokens": 1}, {"prompt_tokens": 2})
    await saved(await roll_out(Strands, ASKS, Say("it is 5", reasoning="easy")), body)
    text = tmp_path / "r 1/trajectory.json"
    assert await asyncio.to_thread(steps_that_harbor_reads, text, tmp_path / "harbor") == 3


def steps_that_harbor_reads(document, where):
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "-q", "--no-deps", "--target", where, "harbor==0.25.0"]
    subprocess.run(install, check=True, timeout=100)
    check = (
        f"import sys; sys.path.append({str(where)!r})\n"
        "from harbor.models.trajectories import Trajectory\n"
        f"print(len(Trajectory.model_validate_json(open({str(document)!r}).read()).steps))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    return int(done.stdout)
