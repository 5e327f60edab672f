import os
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, sys
from agents import Agent, Runner, add_trace_processor, trace
from agents.tracing.processor_interface import TracingProcessor
from agents.tracing.processors import BackendSpanExporter, default_processor
from osmosis_core.testing import ScriptedPolicy
from osmosis_openai_agents import OsmosisRolloutModel

exported, heard = [], []
BackendSpanExporter.export = lambda self, items: exported.extend(items)
BackendSpanExporter._export_with_deadline = lambda self, items, deadline: exported.extend(items)

class Own(TracingProcessor):
    def on_trace_start(self, trace): heard.append(trace)
    def on_trace_end(self, trace): pass
    def on_span_start(self, span): pass
    def on_span_end(self, span): heard.append(span)
    def shutdown(self): pass
    def force_flush(self): pass

add_trace_processor(Own())
agent = Agent(name="a", model=OsmosisRolloutModel())

async def main():
    with ScriptedPolicy("hi") as policy, policy.rollout():
        await Runner.run(agent, "a secret")
        result = Runner.run_streamed(agent, "a secret")
        async for _ in result.stream_events(): pass
    default_processor().force_flush()
    print(len(exported), bool(heard))
    with trace("outside"): pass
    default_processor().force_flush()
    print(len(exported))

asyncio.run(main())
"""


@pytest.mark.parametrize("disabled", [False, True])
def test_rollouts_are_not_exported_and_own_processors_hear_them(disabled):
    env = {**os.environ, "OPENAI_API_KEY": "sk-x"}
    if disabled:
        env["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60
    )
    expected = "0 False\n0\n" if disabled else "0 True\n1\n"
    assert done.stdout == expected, done.stderr
    assert "Tracing" not in done.stderr


def test_finding_the_plugin_does_not_import_the_sdk():
    check = (
        "import sys, osmosis_openai_agents, osmosis_openai_agents.plugin as p; "
        "assert p.osmosis_adapt_sample_source(object()) is None; "
        "print([m for m in ('agents', 'openai', 'httpx', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
