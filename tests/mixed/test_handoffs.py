"""Handoffs of every framework: who was handed to, and what runs after the team is done."""

import pytest
from agents import Agent, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.tools import tool as langchain_tool
from langgraph_swarm import create_handoff_tool, create_swarm
from mixed_team import KINDS, MODELS, speaker
from strands import Agent as StrandsAgent
from strands import tool as strands_tool
from strands.multiagent import Swarm

from osmosis_core.testing import ScriptedPolicy, Tool


def look() -> str:
    """Look it up."""
    return "found"


async def openai_agents():
    options = {"model": MODELS["agents"]}
    clerk = Agent(name="clerk", instructions="You are clerk.", tools=[function_tool(look)])
    boss = Agent(name="boss", instructions="You are boss.", handoffs=[clerk], **options)
    clerk.model = MODELS["agents"]
    await Runner.run(boss, "q")


async def strands():
    def agent(name, *tools):
        options = {"system_prompt": f"You are {name}.", "callback_handler": None}
        return StrandsAgent(MODELS["strands"], name=name, tools=[*tools], **options)

    await Swarm([agent("boss"), agent("clerk", strands_tool(look))]).invoke_async("q")


async def langgraph():
    def agent(name, *tools):
        prompt = f"You are {name}."
        return create_agent(MODELS["langgraph"], [*tools], name=name, system_prompt=prompt)

    team = [agent("boss", create_handoff_tool(agent_name="clerk")), agent("clerk", TOOL)]
    await create_swarm(team, default_active_agent="boss").compile().ainvoke({"messages": "q"})


TOOL = langchain_tool(look)
HANDOFFS = {
    openai_agents: [Tool("transfer_to_clerk")],
    langgraph: [Tool("transfer_to_clerk")],
    strands: [Tool("handoff_to_agent", {"agent_name": "clerk", "message": "m"}), "over"],
}


def plays(**scripts):
    left = {name: list(answers) for name, answers in scripts.items()}
    return ScriptedPolicy(lambda received: left[speaker(received.body["messages"])].pop(0))


@pytest.mark.parametrize("team", HANDOFFS)
async def test_agent_handed_to_is_started_by_the_handoff_and_what_follows_is_not(team):
    after = KINDS["bare"]("after", [])
    script = {"boss": HANDOFFS[team], "clerk": [Tool("look"), "done"], "after": ["bye"]}
    with plays(**script) as policy, policy.rollout() as rollout:
        await team()
        await after.run("q")
    made = {(call.sample_id, call.started_by) for call in rollout.calls}
    assert made == {("boss", None), ("clerk", 0), ("after", None)}


@pytest.mark.parametrize("boss", KINDS)
@pytest.mark.parametrize("team", HANDOFFS)
async def test_team_in_a_tool_of_any_agent_is_started_by_that(boss, team):
    async def ask(question: str) -> str:
        """Ask the team, then somebody else."""
        await team()
        return await KINDS["bare"]("after", []).run(question)

    script = {"boss": HANDOFFS[team], "clerk": [Tool("look"), "done"], "after": ["bye"]}
    top = [Tool("ask", {"question": "q"}), "end"]
    with plays(**script, top=top) as policy, policy.rollout() as rollout:
        await KINDS[boss]("top", [ask]).run("q")
    made = {(call.sample_id, call.started_by) for call in rollout.calls}
    assert made == {("top", None), ("boss", 0), ("clerk", 1), ("after", 0)}
