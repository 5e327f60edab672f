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
