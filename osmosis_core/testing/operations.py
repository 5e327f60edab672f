"""Compute with tools of two numbers, such as add and multiply, one operation at a time."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from osmosis_core.testing.quantities import OPERATORS, evaluate
from osmosis_core.types import Message

_NAMES: dict[type[ast.operator], re.Pattern[str]] = {
    ast.Add: re.compile(r"add|plus|sum", re.IGNORECASE),
    ast.Sub: re.compile(r"minus|subtract", re.IGNORECASE),
    ast.Mult: re.compile(r"multipl|product|times", re.IGNORECASE),
    ast.Div: re.compile(r"divi|quotient", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a tool that takes two numbers."""

    tool: str
    arguments: dict[str, int | float]


type Operators = dict[type[ast.operator], tuple[str, str, str]]
"""By operator: the tool's name and those of its two parameters."""


def operators(tools: list[Message]) -> Operators:
    """The tools that take two numbers and are named like an operation."""
    found: Operators = {}
    for entry in tools:
        function: dict[str, Any] = entry.get("function") or {}
        schema: Any = function.get("parameters") or {}
        properties: dict[str, Any] = schema.get("properties") or {}
        numbers = [str(name) for name, kind in properties.items() if _is_number(kind)]
        name = str(function.get("name"))
        for operator, pattern in _NAMES.items():
            if len(numbers) == 2 and pattern.search(name):
                found.setdefault(operator, (name, numbers[0], numbers[1]))
    return found


def _is_number(schema: object) -> bool:
    kind = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    return kind in ("number", "integer")


def next_operation(
    steps: list[str], results: list[str], found: Operators
) -> Operation | Fraction | None:
    """The next call to make, or the last step's value once the tools have computed it all.

    `results` are the tools' numbers so far. None when no operation of the steps has a tool.
    """
    left, values, called = list(results), list[Fraction](), False
    for step in steps:
        tree = ast.parse(re.sub(r"#(\d+)", r"r\1", step), mode="eval").body
        value = _reduced(tree, values, left, found)
        if isinstance(value, Operation):
            return value
        values.append(value)
        called = called or len(left) < len(results)
    return values[-1] if called else None


def _reduced(
    node: ast.expr, values: list[Fraction], results: list[str], found: Operators
) -> Operation | Fraction:
    match node:
        case ast.Name(id=name):
            return values[int(name[1:]) - 1]
        case ast.BinOp(left=left, op=op, right=right):
            one = _reduced(left, values, results, found)
            other = one if isinstance(one, Operation) else _reduced(right, values, results, found)
            if isinstance(one, Operation) or isinstance(other, Operation):
                return other
            return _applied(type(op), one, other, results, found)
        case _:
            return evaluate(ast.unparse(node))


def _applied(
    op: type[ast.operator],
    one: Fraction,
    other: Fraction,
    results: list[str],
    found: Operators,
) -> Operation | Fraction:
    if op not in found:
        return OPERATORS[op](one, other)
    if results:
        return Fraction(results.pop(0))
    tool, left, right = found[op]
    return Operation(tool, {left: _number(one), right: _number(other)})


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
