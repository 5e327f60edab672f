"""Turn the text of an arithmetic problem into calculations, by general rules about wording."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from osmosis_core.testing.ledger import Steps, ledger, rate_units
from osmosis_core.testing.quantities import (
    Quantity,
    converted,
    normalise,
    quantities,
    sentences,
    singular,
)

MOST_NUMBERS = 40

ASKS = re.compile(r"\b(?:how|what|what's|find|calculate|compute|evaluate|solve|convert|work out)\b")
ORDERS = re.compile(r"\b(?:add|subtract|multiply|divide|double) \d|^[\d\s.()+*/x-]+[=?]?$")
ASKS_AMOUNT = re.compile(r"\bhow (?:many|much|far|long)\b")
ASKS_RATE = re.compile(r"\b(?:per|average speed|how fast)\b")
ASKS_AVERAGE = re.compile(r"\b(?:averaged?|mean)\b(?! speed)")
ASKS_PERCENT = re.compile(r"\bwhat per ?cent(?:age)?\b")
ASIDE = re.compile(
    r"\b\d+ years? old|\b(?:in|since|by) (?:19|20)\d\d\b|\d+ (?:o'clock|[ap]m\b)"
    r"|\b(?:room|number|page|chapter|platform) \d+"
)
VAGUE = re.compile(r"\b(?:some|several|a few)\b(?! of)")
LOSS = re.compile(r"\b(?:off|discount|reduc\w+|decreas\w+|lost|left|remain\w*|missing|empty|not)\b")
GAIN = re.compile(r"\b(?:tip|tax|raise|grew|grow\w*|increas\w+|interest|rose)\b")
WRITTEN = re.compile(r"[-(\d.][\d\s.()+*/x^-]*[\d)]")
SPOKEN = [
    (re.compile(pattern.replace("E", r"(#\d+|\d+(?:\.\d+)?)")), expression)
    for pattern, expression in (
        (r"(?:the )?sum of E and E", "{} + {}"),
        (r"(?:the )?product of E and E", "{} * {}"),
        (r"(?:the )?difference (?:between|of) E and E", "{} - {}"),
        (r"E (?:times|multiplied by) E", "{} * {}"),
        (r"E divided by E", "{} / {}"),
        (r"E plus E", "{} + {}"),
        (r"E minus E", "{} - {}"),
        (r"\badds? E (?:to|and) E", "{} + {}"),
        (r"\b(?:subtract|take)s? E (?:away )?from E", "{1} - {0}"),
        (r"\bmultipl(?:y|ies) E by E", "{} * {}"),
        (r"\bdivides? E by E", "{} / {}"),
        (r"\bdoubles? E", "2 * {}"),
        (r"(#\d+)\b[^#\d]*\badds? E", "{} + {}"),
        (r"(#\d+)\b[^#\d]*\b(?:subtracts?|takes? away) E", "{} - {}"),
        (r"(#\d+)\b[^#\d]*\bmultipl(?:y|ies) [^#\d]*by E", "{} * {}"),
        (r"(#\d+)\b[^#\d]*\bdivides? [^#\d]*by E", "{} / {}"),
    )
]


@dataclass(frozen=True, slots=True)
class Problem:
    """A text as the rules see it."""

    text: str
    question: str
    numbers: list[Quantity]


def plan(text: str) -> list[str] | None:
    """Return the calculations a text asks for: none if a number is missing, None if no problem."""
    problem = read(text)
    if not problem.question or len(problem.numbers) > MOST_NUMBERS:
        return None
    try:
        answers = (rule(problem) for rule in RULES)
        steps = next((steps for steps in answers if steps is not None), None)
    except (ArithmeticError, SyntaxError, ValueError):
        return None
    return None if steps is None else steps.expressions


def read(text: str) -> Problem:
    """Normalise a text, leave out the numbers that count nothing, and find the question."""
    plain = ASIDE.sub("", normalise(text)).replace("all but", "except")
    asking = [part for part in sentences(plain) if ASKS.search(part) or ORDERS.search(part)]
    return Problem(plain, asking[-1] if asking else "", quantities(plain))


def written(problem: Problem) -> Steps | None:
    """Take an expression that stands in the text, as in `what is 2 + 3 * 4`."""
    found = max(WRITTEN.findall(problem.text), key=len, default="").replace("x", "*")
    if not re.search(r"\d\)*\s*[-+*/^]+\s*[-(]*\d", found):
        return None
    steps = Steps()
    steps.add(found)
    return steps


def spoken(problem: Problem) -> Steps | None:
    """Take an expression in words, as in `add 3 to the product of 4 and 5`, innermost first."""
    steps, text = Steps(), problem.text
    while found := first_spoken(text):
        match, expression = found
        name = steps.add(expression.format(*match.groups()))
        text = f"{text[: match.start()]}{name}{text[match.end() :]}"
    return steps if steps.expressions and not re.search(r"(?<![#\d])\d", text) else None


def first_spoken(text: str) -> tuple[re.Match[str], str] | None:
    """Find the calculation in words that has to be done before the others."""
    for pattern, expression in SPOKEN:
        if match := pattern.search(text):
            return match, expression
    return None


def vague(problem: Problem) -> Steps | None:
    """Refuse a problem that leaves an amount open, as in `finds some more`."""
    return Steps() if VAGUE.search(problem.text) and ASKS_AMOUNT.search(problem.question) else None


def conversion(problem: Problem) -> Steps | None:
    """Change the one number of a problem into the other unit its text names."""
    if len(problem.numbers) != 1 or rate_units(problem.numbers[0]) is not None:
        return None
    number, steps = problem.numbers[0], Steps()
    for word in re.findall(r"[a-z]+", problem.question):
        if expression := converted(number, singular(word)):
            steps.add(expression)
            return steps
    return None


def average(problem: Problem) -> Steps | None:
    """Add the numbers up and divide, leaving out a number that only says how many there are."""
    if not ASKS_AVERAGE.search(problem.text):
        return None
    values, steps = [number.value for number in problem.numbers], Steps()
    count = str(len(values) - 1)
    if len(values) > 2 and count in (values[0], values[-1]):
        values.remove(count)
    if len(values) > 1:
        steps.add(f"{steps.add(' + '.join(values))} / {len(values)}")
    return steps


def percentage(problem: Problem) -> Steps | None:
    """Take a percentage of a number, and add or subtract it where the wording says so."""
    shares = [number for number in problem.numbers if number.mark == "%"]
    amounts = [number.value for number in problem.numbers if number.mark != "%"]
    steps = Steps()
    if ASKS_PERCENT.search(problem.question) and len(amounts) == 2 and not shares:
        part, whole = sorted(amounts, key=Fraction)
        steps.add(f"{part} * 100 / {whole}")
        return steps
    if len(shares) != 1:
        return None
    if amounts:
        part = steps.add(f"{amounts[0]} * {shares[0].value} / 100")
        if GAIN.search(problem.text):
            steps.add(f"{amounts[0]} + {part}")
        elif LOSS.search(problem.text):
            steps.add(f"{amounts[0]} - {part}")
    return steps


def rate(problem: Problem) -> Steps | None:
    """Divide the first number by the second when the question wants so much per unit."""
    numbers, steps = problem.numbers, Steps()
    if len(numbers) != 2 or not ASKS_RATE.search(problem.question):
        return None
    if any(rate_units(number) is not None for number in numbers):
        return None
    steps.add(f"{numbers[0].value} / {numbers[1].value}")
    return steps


def proportion(problem: Problem) -> Steps | None:
    """Scale a known pair, as in `3 pens cost $6, how much do 5 pens cost`."""
    if len(problem.numbers) != 3:
        return None
    first, second, third = problem.numbers
    known = [number for number in (first, second) if number.noun == third.noun]
    if "how" not in third.before.split() or len(known) != 1:
        return None
    other = second if known[0] is first else first
    steps = Steps()
    steps.add(f"{steps.add(f'{other.value} / {known[0].value}')} * {third.value}")
    return steps


def remaining(problem: Problem) -> Steps | None:
    """Treat everything else as terms to multiply, divide, subtract or add."""
    steps = ledger(problem.text, problem.question, problem.numbers)
    if steps is not None and not steps.expressions and not ASKS_AMOUNT.search(problem.question):
        return None
    return steps


RULES: tuple[Callable[[Problem], Steps | None], ...] = (
    written,
    spoken,
    vague,
    conversion,
    average,
    percentage,
    rate,
    proportion,
    remaining,
)
