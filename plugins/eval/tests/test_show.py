from typing import Any

from osmosis_core.testing import ScriptedPolicy, Tool

TOOL_FLOW = """
    import httpx2
    from osmosis_core import AgentWorkflow, Grader
    from osmosis_core.policy import BASE_URL, async_client

    class Adds(AgentWorkflow):
        async def run(self, ctx):
            url, messages = f"{BASE_URL}/chat/completions", list(ctx.prompt)
            for _ in range(2):
                answer = await async_client(httpx2).post(url, json={"messages": messages})
                messages.append(answer.json()["choices"][0]["message"])
                if messages[-1].get("tool_calls"):
                    messages.append({"role": "tool", "tool_call_id": "x", "content": "three"})

    class One(Grader):
        async def grade(self, ctx):
            ctx.set_reward(1)
"""


def test_first_conversations_are_printed(workspace: Any) -> None:
    workspace.write("flow.py", TOOL_FLOW)
    workspace.rows(3)
    with ScriptedPolicy(Tool("add", {"a": 1}), "it is three", "later") as policy:
        arguments = workspace.arguments("--show", "1", "--concurrency", "1", "--no-preflight")
        ended = workspace.run(*arguments, "--base-url", policy.base_url)
    assert ended.code == 0, ended.err
    lines = [line.strip() for line in ended.out.split("\n\n")[0].splitlines()]
    assert lines == [
        "row 0, main: reward 1",
        "user: q0",
        'assistant calls add({"a": 1})',
        "tool: three",
        "assistant: it is three",
    ]


TEAM_FLOW = """
    import httpx2
    from osmosis_core import AgentWorkflow
    from osmosis_core.policy import BASE_URL, agent_scope, async_client

    class Team(AgentWorkflow):
        async def run(self, ctx):
            for name in ("boss", "aide"):
                with agent_scope(name):
                    await async_client(httpx2).post(
                        f"{BASE_URL}/chat/completions", json={"messages": ctx.prompt}
                    )
                    if name == "boss":
                        with agent_scope("scout"):
                            await async_client(httpx2).post(
                                f"{BASE_URL}/chat/completions", json={"messages": ctx.prompt}
                            )
"""


def test_tree_of_a_rollout_with_several_agents_is_printed_and_written(workspace: Any) -> None:
    workspace.write("flow.py", TEAM_FLOW)
    workspace.rows(1)
    with ScriptedPolicy(Tool("ask"), "scouted", "done") as policy:
        arguments = workspace.arguments("--show", "1", "--no-preflight")
        ended = workspace.run(*arguments, "--base-url", policy.base_url)
    assert ended.code == 0, ended.err
    tree = "row 0, who called whom:\n  boss: 1 call\n    scout: 1 call\n  aide: 1 call\n"
    assert tree in ended.out
    (result,) = workspace.lines()
    scout = {"sample": "scout", "calls": [1], "started": []}
    boss, aide = result["tree"]
    assert boss == {"sample": "boss", "calls": [0], "started": [scout]}
    assert aide["started"] == []


def test_captured_fields_are_asked_for_and_written_down(workspace: Any) -> None:
    workspace.write("flow.py", TOOL_FLOW)
    workspace.rows(1)
    with ScriptedPolicy("hi") as policy:
        capture = ["--capture", "return_token_ids", "--capture", "top_logprobs=0", "--plain"]
        ended = workspace.run(*workspace.arguments(*capture), "--base-url", policy.base_url)
    assert ended.code == 0, ended.err
    body = policy.requests[-1].body
    assert body["return_token_ids"] is True
    assert body["top_logprobs"] == 0
    assert "stream" not in body
    assert (
        '"completion_token_ids": [104, 105]' in (workspace.path / "out/samples.jsonl").read_text()
    )


def test_capture_that_is_not_json_is_a_usage_error(workspace: Any) -> None:
    workspace.rows(1)
    ended = workspace.run(*workspace.arguments("--capture", "a=b"), "--policy", "demo")
    assert ended.code == 2
    assert "'b' is not JSON" in ended.err
