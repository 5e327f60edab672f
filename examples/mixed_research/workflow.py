"""A LangGraph planner, Strands calculators, an OpenAI Agents critic and a bare call of the SDK.

The planner splits a question into calculations and gives each to a calculator; a critic works the
question out again, with calls of a helper that is not trained on, and says if the answer is right.
Every agent is graded for its own work.
"""

import ast
import operator
import re
from typing import Any

import httpx2
from agents import Runner, function_tool
from langchain.agents import create_agent
from langchain_core import tools as langchain
from openai import AsyncOpenAI
from strands import tool as strands_tool

from osmosis_core import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, RolloutSample
from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client
from osmosis_langgraph import ChatOsmosis
from osmosis_openai_agents import OsmosisAgent
from osmosis_strands import OsmosisStrandsAgent

OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
SDK = AsyncOpenAI(base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0)


def value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(left), value(right))
        case ast.UnaryOp(op, operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(operand))
    raise ValueError("only numbers and + - * / are understood")


def computed(expression: str) -> str:
    return f"{round(value(ast.parse(expression.strip(), mode='eval').body), 6):.12g}"


@strands_tool
def evaluate(expression: str) -> str:
    """Evaluate an arithmetic expression, such as "3 * (2 + 1.5)"."""
    return computed(expression)


@langchain.tool
async def calculate(expression: str) -> str:
    """Have a calculator work out an arithmetic expression, such as "3 * (2 + 1.5)"."""
    calculator = OsmosisStrandsAgent(
        name="calculator",
        system_prompt="Work the expression out with the tool. Answer `The answer is 4.5.`.",
        tools=[evaluate],
        callback_handler=None,
    )
    return str(await calculator.invoke_async(f"What is {expression}?"))


@function_tool
async def recalculate(expression: str) -> str:
    """Work out an arithmetic expression, such as "3 * (2 + 1.5)", in the head."""
    question = {"role": "user", "content": f"What is {expression}?"}
    with agent_scope("helper", trainable=False):
        answer = await SDK.chat.completions.create(model=MODEL, messages=[question])
    return answer.choices[0].message.content


@langchain.tool
async def review(claim: str) -> str:
    """Have a question and its answer checked, such as "What is 2 + 2? The answer is 4."."""
    critic = OsmosisAgent(
        name="critic",
        instructions="Work the question out step by step. Begin your answer with Correct or Wrong.",
        tools=[recalculate],
    )
    return (await Runner.run(critic, claim)).final_output


PLANNER = create_agent(
    ChatOsmosis(temperature=1.0),
    [calculate, review],
    name="planner",
    system_prompt="Split the question into calculations and have each one worked out. Have your "
    "answer reviewed, and finish with a sentence such as `The answer is 12.5.`.",
)


class MixedResearch(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        await PLANNER.ainvoke({"messages": ctx.prompt})


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or [])


def last_number(words: str) -> float | None:
    found = NUMBER.findall(words)
    return float(found[-1].replace(",", "")) if found else None


def task(sample: RolloutSample) -> str:
    return text(sample.calls[0].messages[-1]["content"])


def answer(sample: RolloutSample) -> str:
    return text(sample.calls[-1].answer["content"])


def is_right(sample: RolloutSample, truth: float) -> bool:
    """Whether an agent did what it was asked for, whatever came of the others' work."""
    if sample.extra_fields["agent_name"] == "calculator":
        truth = float(computed(task(sample).removeprefix("What is ").rstrip("?")))
    if sample.extra_fields["agent_name"] == "critic":
        is_claim_right = last_number(task(sample)) == truth
        return answer(sample).lower().startswith("correct" if is_claim_right else "wrong")
    return last_number(answer(sample)) == truth


class ResearchGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.label is not None
        for sample_id, sample in ctx.samples.items():
            if sample.trainable:
                ctx.set_sample_reward(sample_id, is_right(sample, float(ctx.label)))
