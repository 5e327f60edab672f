"""Write `rows.jsonl` beside this file: 200 arithmetic word problems, the same on every run."""

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from templates import TEMPLATES, Template, Values

ROWS = Path(__file__).with_name("rows.jsonl")
SYSTEM_PROMPT = (
    "Use the calculator tool for the arithmetic and finish with a sentence such as "
    "`The answer is 12.5.`. If a number you need is missing, answer `unanswerable`."
)
QUOTAS = {
    "addition": 16, "subtraction": 16, "multiplication": 16, "division": 16, "multi_step": 28,
    "money": 16, "percentage": 18, "unit_conversion": 12, "average": 10, "rate": 14,
    "irrelevant_number": 8, "number_words": 9, "negative_wording": 8, "order_of_operations": 7,
    "unanswerable": 6,
}  # fmt: skip
WOMEN = "Maya Noor Aiko Zuri Priya Ingrid Elena Hana Ruth Wanda"
MEN = "Liam Tomas Ben Oskar Mateo Kofi Samir Jonas Diego Felix"
PEOPLE = [
    *((name, "she", "her") for name in WOMEN.split()),
    *((name, "he", "his") for name in MEN.split()),
]
WORDS = {
    "things": "marbles stickers stamps postcards seashells buttons beads badges shells keyrings",
    "fruits": "apples pears plums oranges lemons peaches mangoes apricots",
    "town": "Porto Lyon Bergen Graz Leeds Ghent Turin Malmo",
}
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


class Shown:
    """A number as a problem spells it: `{a}` in digits, `{a:w}` in words, `{a:m}` as money."""

    def __init__(self, value: Fraction) -> None:
        """Hold the number."""
        self.value = value

    def __format__(self, style: str) -> str:
        """Spell the number in the given style."""
        if style.lower() == "w":
            words = in_words(int(self.value))
            return words.capitalize() if style == "W" else words
        if style == "m" and self.value.denominator != 1:
            return f"{float(self.value):.2f}"
        return canonical(self.value, 4) or str(self.value)


def in_words(number: int) -> str:
    """Spell a number below 100."""
    if number < 20:
        return ONES.split()[number]
    tens, ones = TENS.split()[number // 10 - 2], number % 10
    return f"{tens}-{in_words(ones)}" if ones else tens


def canonical(value: Fraction, places: int) -> str | None:
    """Return the shortest exact decimal text, or None when it needs more than `places` digits."""
    scaled = value * 10**places
    if scaled.denominator != 1:
        return None
    whole, part = divmod(scaled.numerator, 10**places)
    return f"{whole}.{part:0{places or 1}d}".rstrip("0").rstrip(".")


def draw(rng: random.Random, spec: str) -> Values:
    """Draw every `name=low..high/step` of a spec."""
    values = Values()
    for item in spec.split():
        name, _, bounds = item.partition("=")
        limits, _, step = bounds.partition("/")
        low, high = (Fraction(limit) for limit in limits.split(".."))
        size = Fraction(step or "1")
        values[name] = low + size * rng.randrange(int((high - low) / size) + 1)
    return values


def answer(template: Template, values: Values) -> str | None:
    """Return the ground truth, or None for a draw whose answer is not worth asking for."""
    if template.formula is None:
        return "unanswerable"
    result = template.formula(values)
    text = canonical(result, template.places) if result > 0 else None
    # A label that is one digit or stands in the question is found in many wrong answers.
    return text if text and len(text) > 1 and result not in values.values() else None


def cast(rng: random.Random) -> dict[str, str]:
    """Choose the people and the objects of one problem."""
    (name, she, her), (other, *_) = rng.sample(PEOPLE, 2)
    words = {key: rng.choice(choices.split()) for key, choices in WORDS.items()}
    return {"name": name, "she": she, "She": she.capitalize(), "her": her, "other": other, **words}


def make_row(rng: random.Random, template: Template, text: str) -> dict[str, object]:
    """Fill one wording with people, objects and numbers that have a clean answer."""
    while (truth := answer(template, values := draw(rng, template.spec))) is None:
        pass
    numbers = {key: Shown(value) for key, value in values.items()}
    return {
        "system_prompt": SYSTEM_PROMPT,
        "user_prompt": text.format_map({**cast(rng), **numbers}),
        "ground_truth": truth,
        "metadata": {"kind": template.kind},
    }


def make_rows(templates: list[Template]) -> Iterator[dict[str, object]]:
    """Yield the rows kind by kind, taking the wordings of a kind in turn."""
    rng = random.Random(20240611)
    seen: set[object] = set()
    for kind, quota in QUOTAS.items():
        asked = [(item, text) for item in templates if item.kind == kind for text in item.texts]
        made = 0
        while made < quota:
            row = make_row(rng, *asked[made % len(asked)])
            if row["user_prompt"] not in seen:
                seen.add(row["user_prompt"])
                made += 1
                yield row


def main() -> None:
    """Write the rows in a shuffled but fixed order."""
    rows = list(make_rows(TEMPLATES))
    random.Random(7).shuffle(rows)
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
