"""An MCP server's tools as a loop (protocol.md 2.1, "MCP mode")."""

import sys

import pytest

from osmosis_agent_loop.errors import MCPLoadError
from osmosis_agent_loop.mcp import MCPAgentLoop, load_mcp_server
from osmosis_core.testing import ScriptedPolicy, Tool, Turn

SERVER = """
from mcp.server import MCPServer
server = MCPServer("calculator")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    sys.modules.pop("main", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


@pytest.fixture
def loop(folder):
    (folder / "main.py").write_text(SERVER)
    return MCPAgentLoop(load_mcp_server(folder))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no main.py in"),
        ("x = 1", "defines no MCP servers; define one FastMCP object"),
        (SERVER + "other = MCPServer('b')", "defines 2 MCP servers"),
        (SERVER + "same = server\nraise RuntimeError('no key')", "RuntimeError: no key"),
    ],
)
def test_directory_that_holds_no_server_says_so(folder, text, said):
    if text is not None:
        (folder / "main.py").write_text(text)
    with pytest.raises(MCPLoadError, match=said):
        load_mcp_server(folder)


async def test_tools_run_one_after_the_other_until_none_is_called(loop, world):
    assert loop.name == "mcp_agent"
    calls = Turn((Tool("add", {"a": 1, "b": 2}), Tool("add", {"a": 3, "b": 4})))
    with ScriptedPolicy(calls, "done") as policy:
        result = await world.execute(loop, policy)
    sample = result.samples["mcp_agent"]
    assert [m["content"] for m in sample.messages if m["role"] == "tool"] == ["3", "7"]
    assert sample.extra_fields["agent_loop"]["finish_reason"] == "stop"
    assert sample.metrics["num_tool_calls"] == 2
    schema = policy.requests[0].body["tools"][0]["function"]["parameters"]
    assert schema["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Tool("add", "{oops"), "Error: the arguments are not JSON"),
        (Tool("add", {"a": "x"}), "Error: "),
        (Tool("divide"), "Error: "),
    ],
)
async def test_what_is_wrong_with_a_call_is_told_to_the_model(loop, world, bad, said):
    with ScriptedPolicy(bad, "sorry") as policy:
        result = await world.execute(loop, policy)
    (told,) = [m for m in result.samples["mcp_agent"].messages if m["role"] == "tool"]
    assert told["content"].startswith(said)


async def test_turns_that_are_used_up_are_the_finish_reason(loop, world):
    with ScriptedPolicy(Tool("add", {"a": 1, "b": 2})) as policy:
        result = await world.execute(loop, policy, max_turns=2)
    sample = result.samples["mcp_agent"]
    assert sample.extra_fields["agent_loop"]["finish_reason"] == "max_turns"
    assert len(sample.calls) == 2
