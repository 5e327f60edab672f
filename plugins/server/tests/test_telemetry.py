"""Metrics and traces of rollouts."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from osmosis_core import AgentWorkflow, ExecutionRequest, Grader, LocalBackend
from osmosis_core.testing import ScriptedPolicy, Status
from osmosis_server.metrics import Metrics
from osmosis_server.stats import Stats
from osmosis_server.submissions import Submission

PROMPT = [{"role": "user", "content": "2 + 3?"}]
TRACED = """
import asyncio, json, sys
import httpx2
from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from osmosis_core import AgentWorkflow, ExecutionRequest, Grader, LocalBackend
from osmosis_core.policy import BASE_URL, MODEL, async_client
from osmosis_core.testing import ScriptedPolicy, Status

SDK = AsyncOpenAI(base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0)
PROMPT = [{"role": "user", "content": "2 + 3?"}]

class Asks(AgentWorkflow):
    async def run(self, ctx):
        with trace.get_tracer("user").start_as_current_span("mine"):
            await SDK.chat.completions.create(model=MODEL, messages=PROMPT)
        if ctx.prompt[0]["content"] == "fail":
            raise ValueError("no")

class Gives(Grader):
    async def grade(self, ctx):
        ctx.set_sample_reward("main", 1.0)

async def ignore(result):
    pass

async def main():
    backend = LocalBackend(workflow=Asks, grader=Gives)
    with ScriptedPolicy("5") as policy, policy.rollout():
        jobs = [ExecutionRequest("good", PROMPT, label="5"),
                ExecutionRequest("bad", [{"role": "user", "content": "fail"}])]
        await asyncio.gather(*(backend.execute(job, ignore, ignore) for job in jobs))

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
if sys.argv[1] == "on":
    trace.set_tracer_provider(provider)
asyncio.run(main())
spans = exporter.get_finished_spans()
names = {span.context.span_id: span.name for span in spans}
print(json.dumps([{
    "name": span.name, "parent": names.get(span.parent.span_id) if span.parent else None,
    "rollout": span.attributes.get("osmosis.rollout_id"), "ok": span.status.is_ok,
    "sample": span.attributes.get("osmosis.sample_id"), "trace": span.context.trace_id,
    "ns": span.end_time - span.start_time} for span in spans]))
"""


def traced(switch):
    command = [sys.executable, "-c", TRACED, switch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def spans():
    return traced("on")


def test_a_rollout_is_a_tree_of_spans(spans):
    good = {(span["name"], span["parent"]) for span in spans if span["rollout"] == "good"}
    assert good == {
        ("rollout", None),
        ("workflow", "rollout"),
        ("chat osmosis-rollout", "workflow"),
        ("grade", "rollout"),
    }
    assert {span["parent"] for span in spans if span["name"] == "mine"} == {"rollout"}


def test_rollouts_have_traces_of_their_own(spans):
    assert len({span["trace"] for span in spans if span["rollout"] == "good"}) == 1
    assert len({span["trace"] for span in spans}) == 2


def test_a_call_names_its_sample_and_takes_its_time(spans):
    call = next(s for s in spans if s["name"] == "chat osmosis-rollout" and s["rollout"] == "good")
    workflow = next(s for s in spans if s["name"] == "workflow" and s["rollout"] == "good")
    assert call["sample"] == "main" and 0 < call["ns"] <= workflow["ns"]


def test_a_failed_rollout_is_an_error(spans):
    by_rollout = {s["rollout"]: s["ok"] for s in spans if s["name"] == "rollout"}
    assert by_rollout == {"good": True, "bad": False}


def test_nothing_is_traced_unless_the_process_has_set_it_up():
    assert traced("off") == []


class Asks(AgentWorkflow):
    async def run(self, ctx):
        import httpx2
        from openai import AsyncOpenAI

        from osmosis_core.policy import BASE_URL, MODEL, async_client

        client = AsyncOpenAI(
            base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0
        )
        await client.chat.completions.create(model=MODEL, messages=ctx.prompt)


class Gives(Grader):
    async def grade(self, ctx):
        ctx.set_sample_reward("main", 1.0)


async def test_metrics_count_rollouts_and_policy_calls():
    metrics, others = Metrics(Stats), Metrics(Stats)
    with ScriptedPolicy(Status(503, retry_after="0"), "5") as policy, policy.rollout():
        for number in range(2):
            request, results = ExecutionRequest(f"r-{number}", PROMPT, label="5"), []

            async def report(result, results=results):
                results.append(result)

            await LocalBackend(workflow=Asks, grader=Gives).execute(request, report, report)
            metrics.rollout_ended(Submission(request, "polling", policy.base_url), results[-1])
    value = metrics.registry.get_sample_value
    assert value("osmosis_workflow_seconds_count", {"status": "success"}) == 2
    assert value("osmosis_policy_call_seconds_count", {"outcome": "ok"}) == 2
    assert value("osmosis_policy_retries_total") == 1
    assert value("osmosis_policy_tokens_total", {"kind": "completion"}) > 0
    assert value("osmosis_grading_seconds_count") == 2
    assert others.registry.get_sample_value("osmosis_rollout_queued_seconds_count") == 0


async def test_metrics_are_text_that_names_no_rollout():
    stats = Stats(admitted=3, refused=Counter(Full=2), journal_bytes=7)
    body, content_type = Metrics(lambda: stats).render()
    assert content_type.startswith("text/plain") and b"osmosis_policy_retries_total 0.0" in body
    assert b"osmosis_rollouts_admitted_total 3.0" in body and b"osmosis_journal_bytes 7.0" in body
    assert b'osmosis_rollouts_refused_total{reason="Full"} 2.0' in body
