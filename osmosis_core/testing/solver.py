"""Choose the next message of the `demo` policy: a tool call, a final answer or a polite no."""

import ast
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from osmosis_core.testing.ledger import Steps
from osmosis_core.testing.operations import Operation, next_operation, operators
from osmosis_core.testing.quantities import evaluate
from osmosis_core.testing.word_problems import plan
from osmosis_core.types import Message

RESULT = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d{1,3})?", re.IGNORECASE)
FAILURE = re.compile(
    r"\berror\b(?!\W+(?:null|none|false)\b)|exception|traceback|cannot|unsupported|invalid|failed"
    r"|not defined|unknown tool",
    re.IGNORECASE,
)
CALCULATOR = re.compile(r"calc|math|arith|eval", re.IGNORECASE)
REVIEWER = re.compile(r"check|critic|review|verif", re.IGNORECASE)
CLAIM = re.compile(r"(.+)\bthe answer is (-?\d[\d,]*(?:\.\d+)?)\.?\s*", re.IGNORECASE | re.DOTALL)
SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
ECHO_LIMIT = 80
MOST_FAILURES = 2


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that takes an expression as text."""

    name: str
    parameter: str


def solve(messages: list[Message], tools: list[Message]) -> Message:
    """Return the assistant message that comes next in a conversation about an arithmetic problem.

    A text that ends with an answer is a claim, which is held against an answer of its own. It reads
    the text by general rules, so it is wrong now and then, and it never raises.
    """
    conversation = dicts(messages)
    question, outputs = last_turn(conversation)
    problem, claimed = claim(question)
    steps = plan(problem)
    if steps is None:
        return say(polite(question))
    if not steps:
        return say("A number that is needed is missing, so the answer is unanswerable.")
    tool, reviewer = calculator(dicts(tools)), find_reviewer(dicts(tools))
    if tool is not None:
        message = with_tool(conversation, steps, outputs, tool, claimed)
    else:
        message = with_operators(conversation, steps, outputs, dicts(tools), claimed)
    if reviewer is None or "tool_calls" in message or has_asked(conversation, reviewer):
        return message
    return call(conversation, reviewer, f"{question} {message['content']}", "I have that checked.")


def claim(question: str) -> tuple[str, str | None]:
    """Return the problem of a text and the answer that the text gives to it, None if none."""
    match = CLAIM.fullmatch(question)
    return (match[1], match[2].replace(",", "")) if match else (question, None)


def conclusion(result: Fraction | str, claimed: str | None) -> str:
    """Return the last sentence: the answer, after what it says about a claim."""
    answer = f"The answer is {plain(result)}."
    if claimed is None:
        return answer
    return f"{'Correct' if plain(claimed) == plain(result) else 'Wrong'}. {answer}"


def with_tool(
    conversation: list[Message],
    steps: list[str],
    outputs: list[str],
    tool: Tool,
    claimed: str | None,
) -> Message:
    """Ask the tool for the next step, once more after an error, or give the final answer."""
    results, failures = read_outputs(outputs)
    if len(results) >= len(steps):
        return say(conclusion(results[-1], claimed))
    expression = filled(steps[len(results)], results)
    if failures >= MOST_FAILURES:
        return say(f"I cannot finish this: {tool.name} does not compute {expression}.")
    if failures:
        simple = simplified(expression)
        return call(conversation, tool, simple, f"That did not work, I try {simple}.")
    opening = "Next I need" if results else "First I need" if len(steps) > 1 else "I need"
    return call(conversation, tool, expression, f"{opening} {expression}.")


def with_operators(
    conversation: list[Message],
    steps: list[str],
    outputs: list[str],
    tools: list[Message],
    claimed: str | None,
) -> Message:
    """Compute with tools such as add and multiply, or alone where there are none."""
    found, (results, failures) = operators(tools), read_outputs(outputs)
    following = None
    if found and not failures:
        with suppress(ArithmeticError, SyntaxError, ValueError, LookupError):
            following = next_operation(steps, results, found)
    if isinstance(following, Operation):
        return called(conversation, following.tool, following.arguments, "I need a result.")
    return alone(steps, claimed) if following is None else say(conclusion(following, claimed))


def alone(steps: list[str], claimed: str | None) -> Message:
    """Compute every step without a tool and give the final answer."""
    worked = Steps()
    for step in steps:
        worked.add(step)
    return say(conclusion(worked.results[-1], claimed))


def last_turn(conversation: list[Message]) -> tuple[str, list[str]]:
    """Return the last text of the user and what the tools have said since."""
    question, outputs = "", list[str]()
    for message in conversation:
        text = text_of(message.get("content"))
        if message.get("role") == "user" and text.strip():
            question, outputs = text, []
        elif message.get("role") == "tool":
            outputs.append(text)
    return question, outputs


def text_of(content: object) -> str:
    """Return the text of a message content, given as a string or as a list of parts."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in dicts(content))
    return " ".join(text for text in texts if isinstance(text, str))


def dicts(value: object) -> list[Message]:
    """Return the dicts in a list, and none for anything else."""
    items = cast(list[object], value) if isinstance(value, list) else []
    return [cast(Message, item) for item in items if isinstance(item, dict)]


def calculator(tools: list[Message]) -> Tool | None:
    """Choose a tool that takes text, by preference one with the name of a calculator."""
    found = [tool for tool in text_tools(tools) if not REVIEWER.search(tool.name)]
    named = [tool for tool in found if CALCULATOR.search(tool.name)]
    return next(iter([*named, *found]), None)


def find_reviewer(tools: list[Message]) -> Tool | None:
    """Choose a tool with the name of one that checks an answer."""
    return next((tool for tool in text_tools(tools) if REVIEWER.search(tool.name)), None)


def has_asked(conversation: list[Message], tool: Tool) -> bool:
    """Tell whether the tool was called since the user spoke last."""
    for message in reversed(conversation):
        names = [mapping(c.get("function")).get("name") for c in dicts(message.get("tool_calls"))]
        if message.get("role") == "user" or tool.name in names:
            return tool.name in names
    return False


def text_tools(tools: list[Message]) -> list[Tool]:
    """Return the tools that take text, each with its first parameter that does."""
    found: list[Tool] = []
    for entry in tools:
        function = mapping(entry.get("function"))
        name = function.get("name")
        properties = mapping(mapping(function.get("parameters")).get("properties"))
        texts = [
            str(key)
            for key, schema in properties.items()
            if mapping(schema).get("type") == "string"
        ]
        if isinstance(name, str) and texts:
            found.append(Tool(name, texts[0]))
    return found


def mapping(value: object) -> dict[str, Any]:
    """Return a dict as it is, and an empty one for anything else."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def read_outputs(outputs: list[str]) -> tuple[list[str], int]:
    """Return the numbers the tool has computed, and how often it failed since the last one."""
    results, failures = list[str](), 0
    for output in outputs:
        numbers = RESULT.findall(output)
        if FAILURE.search(output) or not numbers:
            failures += 1
        else:
            results.append(numbers[-1].replace(",", ""))
            failures = 0
    return results, failures


def filled(expression: str, results: list[str]) -> str:
    """Put the results of earlier steps in the place of their names."""

    def result(match: re.Match[str]) -> str:
        text = results[int(match[1]) - 1]
        return f"({text})" if text.startswith("-") else text

    return re.sub(r"#(\d+)", result, expression)


def simplified(expression: str) -> str:
    """Return the last operation of an expression alone, the rest already computed."""
    try:
        match ast.parse(expression, mode="eval").body:
            case ast.BinOp(left=left, op=op, right=right):
                before, after = (plain(evaluate(ast.unparse(side))) for side in (left, right))
                return f"{before}{SIGNS[type(op)]}{after}"
            case _:
                return expression
    except (ArithmeticError, SyntaxError, ValueError):
        return expression


def plain(number: Fraction | str) -> str:
    """Write a number with at most four decimals and no zeros at the end."""
    if isinstance(number, Fraction):
        value = Decimal(number.numerator) / Decimal(number.denominator)
    else:
        value = Decimal(number)
    if value.adjusted() > 20:
        return str(number)
    text = f"{round(value, 4):.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def polite(question: str) -> str:
    """Decline what is not arithmetic by repeating what was asked."""
    words = " ".join(question[: 4 * ECHO_LIMIT].split())
    if not words:
        return "Ask me an arithmetic problem and I work it out."
    echo = words if len(words) <= ECHO_LIMIT else f"{words[:ECHO_LIMIT]}..."
    return f'I only do arithmetic, so I cannot help with "{echo}".'


def say(text: str) -> Message:
    """Return an assistant message of text."""
    return {"role": "assistant", "content": text}


def call(conversation: list[Message], tool: Tool, expression: str, text: str) -> Message:
    """Return an assistant message that calls the tool with an expression."""
    return called(conversation, tool.name, {tool.parameter: expression}, text)


def called(conversation: list[Message], name: str, arguments: dict[str, Any], text: str) -> Message:
    """Return an assistant message that calls a tool, under an id that is new."""
    ids = [
        str(item.get("id")) for message in conversation for item in dicts(message.get("tool_calls"))
    ]
    number = len(ids) + 1
    while f"call_{number}" in ids:
        number += 1
    function = {"name": name, "arguments": json.dumps(arguments)}
    entry = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [entry]}
