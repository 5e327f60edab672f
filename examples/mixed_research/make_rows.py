"""Write `rows.jsonl` beside this file: 60 questions of several steps, the same on every run."""

import json
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

ROWS = Path(__file__).with_name("rows.jsonl")
PER_TEMPLATE = 5
NAMES = ["Maya", "Noor", "Aiko", "Zuri", "Priya", "Ingrid", "Elena", "Hana", "Ruth", "Wanda"]

type Formula = Callable[[int, int, int, int], int | Fraction]

TEMPLATES: list[tuple[str, Formula]] = [
    ("{name} buys {a} boxes of {b} pencils and gives {c} pencils to {other}. How many pencils does "
     "{name} have left?", lambda a, b, c, d: a * b - c),
    ("A baker fills {a} trays with {b} rolls on each tray and sells {c} of the rolls. How many "
     "rolls are left?", lambda a, b, c, d: a * b - c),
    ("{a} children collect {b} cans each, and {name} brings {c} more cans. How many cans are there "
     "in all?", lambda a, b, c, d: a * b + c),
    ("{name} has $500. She buys {a} books at ${b} each. How much money does she have left?",
     lambda a, b, c, d: 500 - a * b),
    ("A farmer picks {a} apples and {b} pears and packs the fruit into crates of 4. How many "
     "crates are that?", lambda a, b, c, d: Fraction(a + b, 4)),
    ("A cinema sells {a} tickets at $9 each and {b} tickets at $12 each. How much money does it "
     "take?", lambda a, b, c, d: 9 * a + 12 * b),
    ("{name} runs {a} km, {b} km, {c} km and {d} km. What is the average?",
     lambda a, b, c, d: Fraction(a + b + c + d, 4)),
    ("A coat costs ${c}0 and is {d}% off. How much does it cost now?",
     lambda a, b, c, d: Fraction(10 * c * (100 - d), 100)),
    ("A wall has {a} rows of {b} tiles, and another has {c} rows of {d} tiles. How many tiles are "
     "there?", lambda a, b, c, d: a * b + c * d),
    ("A pump moves {a} litres per minute. How many litres does it move in 3 hours?",
     lambda a, b, c, d: 180 * a),
    ("{name} has {c} stickers, loses {d} of them and shares the rest equally among 4 friends. How "
     "many stickers does each friend get?", lambda a, b, c, d: Fraction(c - d, 4)),
    ("Add {c} to the product of {a} and {b}.", lambda a, b, c, d: a * b + c),
]  # fmt: skip


def make_row(rng: random.Random, words: str, formula: Formula) -> dict[str, str]:
    """Draw numbers until the answer is a positive whole one."""
    while True:
        numbers = [rng.randint(*bounds) for bounds in ((12, 24), (6, 19), (31, 59), (5, 25))]
        answer = Fraction(formula(*numbers))
        if answer > 0 and answer.denominator == 1:
            break
    name, other = rng.sample(NAMES, 2)
    given = dict(zip("abcd", numbers, strict=True))
    prompt = words.format(name=name, other=other, **given)
    return {"user_prompt": prompt, "ground_truth": str(answer)}


def make_rows() -> Iterator[dict[str, str]]:
    """Yield every wording in turn, with other numbers each time."""
    rng = random.Random(20261121)
    for _ in range(PER_TEMPLATE):
        for words, formula in TEMPLATES:
            yield make_row(rng, words, formula)


if __name__ == "__main__":
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in make_rows()), encoding="utf-8")
