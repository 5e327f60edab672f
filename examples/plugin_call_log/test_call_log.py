import json

from osmosis_core import AgentWorkflow, ExecutionRequest, Grader, LocalBackend
from osmosis_core.policy import BASE_URL, async_client
from osmosis_core.testing import ScriptedPolicy


class Asks(AgentWorkflow):
    async def run(self, ctx):
        import httpx2

        body = {"messages": ctx.prompt}
        await async_client(httpx2).post(f"{BASE_URL}/chat/completions", json=body)


class One(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1)


async def done(result):
    assert result.status == "success", result


async def test_every_event_is_a_line(tmp_path, monkeypatch):
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("OSMOSIS_CALL_LOG", str(log))
    with ScriptedPolicy("hi") as policy, policy.rollout():
        request = ExecutionRequest("r", [{"role": "user", "content": "q"}], label="x")
        await LocalBackend(workflow=Asks, grader=One).execute(request, done, done)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names == ["rollout_started", "policy_call_finished", "rollout_finished"]
    assert events[-1]["rewards"] == {"main": 1.0}
