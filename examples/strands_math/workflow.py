"""The documented math agent, a Strands agent with a calculator, and its grader."""

import ast
import operator
from typing import Any

from strands import tool

from osmosis_core import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, RolloutSample
from osmosis_strands import OsmosisRolloutModel, OsmosisStrandsAgent

OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


def evaluate(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
        case ast.UnaryOp(op, operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(operand))
    raise ValueError("only numbers and + - * / // % are understood")


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, parentheses and + - * / // %, for example "3 * (2 + 1.5)".
    """
    return f"{round(evaluate(ast.parse(expression, mode='eval').body), 6):g}"


class MathAgentWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisStrandsAgent(
            name="math-agent",
            model=OsmosisRolloutModel(params={"temperature": 1.0}),
            tools=[calculator],
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


def last_text(sample: RolloutSample) -> str:
    content = sample.messages[-1].get("content", "") if sample.messages else ""
    if isinstance(content, str):
        return content
    return next((block["text"] for block in content if "text" in block), "")


class MathGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            answer = last_text(sample)
            reward = 1.0 if ctx.label and ctx.label.strip() in answer else 0.0
            ctx.set_sample_reward(sample_id, reward)
