import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_core.testing.quantities import evaluate
from osmosis_core.testing.solver import solve

EXAMPLE = Path(__file__).parents[2] / "examples" / "strands_math"
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": PARAMETERS}}
TWO_STEPS = "Ann has $50. She buys 3 pens at $4.25 each. How much money does she have left?"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def expression(message: dict[str, Any]) -> str:
    return json.loads(message["tool_calls"][0]["function"]["arguments"])["expression"]


def chat(text: Any, *outputs: str) -> list[dict[str, Any]]:
    """Play the calculator, with the given outputs first, until the solver gives an answer."""
    messages, scripted = [user(text), solve([user(text)], [CALCULATOR])], list(outputs)
    while requests := messages[-1].get("tool_calls"):
        output = scripted.pop(0) if scripted else str(float(evaluate(expression(messages[-1]))))
        messages.append({"role": "tool", "tool_call_id": requests[0]["id"], "content": output})
        messages.append(solve(messages, [CALCULATOR]))
    return messages


def calls(messages: list[dict[str, Any]]) -> list[str]:
    return [expression(message) for message in messages if message.get("tool_calls")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Ann has 12 plums and Bob has 30. How many plums do they have together?", "42"),
        ("A shop had 90 lamps and sold 25. How many lamps were left?", "65"),
        ("Every crate holds 14 melons. How many melons are in 6 crates?", "84"),
        ("Ann shares 45 sweets equally among 6 children. How many does each child get?", "7.5"),
        ("A coat costs $80 and is sold at 15% off. What does it cost now?", "68"),
        ("How many seconds are there in 2.5 minutes?", "150"),
        ("Find the average of 10, 20 and 33.", "21"),
        ("If 4 tiles cost $10, how much do 14 tiles cost?", "35"),
        ("Bob eats three of a dozen eggs. How many eggs are left?", "9"),
        ("Multiply 6 by the difference between 20 and 8.", "72"),
        ("What is 2 + 3 * (4 - 1)?", "11"),
        ("0.1 + 0.2 =", "0.3"),
    ],
)
def test_each_operation_is_solved_with_the_tool(text: str, answer: str) -> None:
    messages = chat(text)
    assert messages[-1]["content"] == f"The answer is {answer}."
    assert calls(messages)


def test_two_step_problem_puts_the_first_result_into_the_second_call() -> None:
    messages = chat([{"type": "text", "text": TWO_STEPS}], "Result: 13.0")
    assert calls(messages) == ["4.25 * 3", "50 - 13.0"]
    assert messages[-1]["content"] == "The answer is 37."


def test_call_ids_are_unique_across_questions() -> None:
    history = chat(TWO_STEPS)
    reply = solve([*history, user("What is 7 * 6?")], [CALCULATOR])
    ids = [call["id"] for m in [*history, reply] for call in m.get("tool_calls", [])]
    assert ids == ["call_1", "call_2", "call_3"]


def test_answer_is_rounded_and_has_no_zeros_at_the_end() -> None:
    assert chat("What is 1 / 3?", "0.30000000000000004")[-1]["content"] == "The answer is 0.3."


def test_error_is_tried_again_once_in_a_simpler_form() -> None:
    messages = chat("What is 5% of 40?", "Error: no", "Error: no")
    assert calls(messages) == ["40 * 5 / 100", "200/100"]
    assert messages[-1]["content"].startswith("I cannot finish this")


def test_without_a_tool_it_answers_directly() -> None:
    assert solve([user(TWO_STEPS)], [])["content"] == "The answer is 37.25."


def test_missing_number_is_called_unanswerable() -> None:
    messages = chat("Ann has 3 cups and buys some more. How many cups has she now?")
    assert "unanswerable" in messages[-1]["content"]


NOTHINGS: list[Any] = [[], None, "text", [None, 3], [{}], [{"role": "tool", "content": "5"}]]
CONTENTS: list[Any] = [None, 7, "", "Hello!", "What is 1/0?", "#9 plus #8", "9" * 9000, "(" * 900]
PARTS: list[Any] = [[{"type": "image"}], [{"text": 3}], ["a"], {"text": "hi"}, "1+" * 900 + "1"]


@pytest.mark.parametrize("messages", NOTHINGS + [[user(c)] for c in CONTENTS + PARTS])
@pytest.mark.parametrize("tools", [[], None, [1, {"function": None}], [CALCULATOR]])
def test_odd_input_gets_a_polite_answer(messages: Any, tools: Any) -> None:
    reply = solve(messages, tools)
    assert reply["role"] == "assistant"
    assert reply["content"] and "tool_calls" not in reply


def test_most_of_the_example_rows_are_solved_and_some_are_not() -> None:
    rows = [json.loads(line) for line in (EXAMPLE / "rows.jsonl").read_text().splitlines()]
    solved = [row["ground_truth"] in chat(row["user_prompt"])[-1]["content"] for row in rows]
    assert len({row["user_prompt"] for row in rows}) == 200
    assert 0.75 <= sum(solved) / len(rows) <= 0.95


def text_tool(name: str, parameter: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    [("37.25", "Correct"), ("37.250", "Correct"), ("37", "Wrong"), ("-37.25", "Wrong")],
)
def test_claim_is_held_against_an_answer_of_its_own(claimed: str, verdict: str) -> None:
    question = f"{TWO_STEPS} The answer is {claimed}."
    assert solve([user(question)], [])["content"] == f"{verdict}. The answer is 37.25."
    assert chat(question)[-1]["content"] == f"{verdict}. The answer is 37.25."


def test_answer_is_given_to_a_reviewer_once_and_its_correction_taken() -> None:
    tools = [text_tool("review", "claim"), CALCULATOR]
    messages = [user("What is 2 + 3?")]
    for output in ("5", "Wrong. The answer is 6."):
        messages.append(solve(messages, tools))
        (request,) = messages[-1]["tool_calls"]
        messages.append({"role": "tool", "tool_call_id": request["id"], "content": output})
    arguments = json.loads(messages[3]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"claim": "What is 2 + 3? The answer is 5."}
    assert solve(messages, tools)["content"] == "The answer is 6."
    again = [*messages, solve(messages, tools), user("What is 4 + 4?")]
    assert solve(again, tools[:1])["tool_calls"][0]["function"]["name"] == "review"


def test_make_rows_reproduces_the_rows(tmp_path: Path) -> None:
    for script in (EXAMPLE / "make_rows.py", EXAMPLE / "templates.py"):
        shutil.copy(script, tmp_path)
    subprocess.run([sys.executable, tmp_path / "make_rows.py"], check=True)
    assert (tmp_path / "rows.jsonl").read_bytes() == (EXAMPLE / "rows.jsonl").read_bytes()


NUMBERS = {"a": {"type": "number"}, "b": {"type": "number"}}


def operator_tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"properties": NUMBERS}}}


@pytest.mark.parametrize(
    ("question", "calls", "answer"),
    [
        ("What is 6 * 7?", [("multiply", 6, 7)], "42"),
        ("What is (2 + 3) * 4?", [("add", 2, 3), ("multiply", 5, 4)], "20"),
        ("What is 12 - 4?", [], "8"),
        ("What is 1.5 + 2?", [("add", 1.5, 2)], "3.5"),
    ],
)
def test_tools_of_two_numbers_compute_one_operation_each(question, calls, answer):
    tools = [operator_tool("add"), operator_tool("multiply")]
    messages, made = [{"role": "user", "content": question}], []
    for _ in range(5):
        message = solve(messages, tools)
        messages.append(message)
        if "tool_calls" not in message:
            break
        (call,) = message["tool_calls"]
        given = json.loads(call["function"]["arguments"])
        name, a, b = call["function"]["name"], given["a"], given["b"]
        made.append((name, a, b))
        result = a + b if name == "add" else a * b
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})
    assert made == calls
    assert message["content"].endswith(f"The answer is {answer}.")


def test_tool_of_two_numbers_that_fails_is_done_without():
    messages = [{"role": "user", "content": "What is 6 * 7?"}]
    messages.append(solve(messages, [operator_tool("multiply")]))
    messages.append({"role": "tool", "content": "Error: out of order"})
    assert solve(messages, [operator_tool("multiply")])["content"].endswith("The answer is 42.")
