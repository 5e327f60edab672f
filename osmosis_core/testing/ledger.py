"""Combine the numbers of a problem: multiply rates and groups, then divide, subtract or add."""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction

from osmosis_core.testing.quantities import CONJUNCTION, Quantity, converted, evaluate, singular

SPLITS = re.compile(
    r"\b(?:shar\w+|split\w*|divid\w+|equally|evenly|same (?:length|size|number)|into [a-z]+ of)\b"
)
DIVISOR = re.compile(r"\b(?:among|between|by|into|into [a-z]+ of) (?:the |her |his |their )?$")
MINUS = re.compile(
    r"\b(?:g[ai]ves?|giving|lost|loses?|sold|sells?|ate|eats?|eaten|spent|spends?|use[sd]?|leak\w*"
    r"|away|off|broken?|taken|left|shortened|removed?|not|except|fewer|less)\b"
)
RATE_AFTER = re.compile(
    r"^(?:\s*[a-z]+\b){0,4}?\s*\b(?:(?:per|in each|on each|every) ([a-z]+)"
    r"|an? (second|minute|hour|day|week|month|year)\b|each\b|apiece\b)"
)
RATE_BEFORE = re.compile(r"\b(?:each|every|one) ([a-z]+) (?:[a-z]+ ){1,2}$")
PRICE_BEFORE = re.compile(r"\ban? ([a-z]+(?: [a-z]+){0,4}?) costs? $")
GROUP_AFTER = re.compile(r"^ (?:[a-z]+ (?:of|with|containing|holding) $|times as )")
ASKS_DIFFERENCE = re.compile(
    r"\b(?:how (?:many|much) (?:more|fewer|less|taller|longer|older|heavier|further|shorter)"
    r"|left|still|remain\w*|change|empty|need|missing)\b"
)


@dataclass(frozen=True, slots=True)
class Term:
    """An amount in the making: a number of the text, or a result computed from some of them."""

    text: str
    parts: tuple[Quantity, ...]


@dataclass(slots=True)
class Steps:
    """Calculations in order; `#1` in a later one stands for the first result."""

    expressions: list[str] = field(default_factory=list[str])
    results: list[Fraction] = field(default_factory=list[Fraction])

    def add(self, expression: str) -> str:
        """Append a calculation and return the name of its result."""
        self.results.append(self.value(expression))
        self.expressions.append(expression)
        return f"#{len(self.expressions)}"

    def value(self, expression: str) -> Fraction:
        """Compute an expression that may name earlier results."""
        named = re.sub(r"#(\d+)", lambda match: f"({self.results[int(match[1]) - 1]})", expression)
        return evaluate(named)


def ledger(text: str, question: str, numbers: list[Quantity]) -> Steps | None:
    """Return the calculations for a problem that no special rule fits."""
    steps = Steps()
    terms = [Term(number.value, (number,)) for number in same_units(numbers, steps)]
    multiply_rates(terms, steps)
    multiply_groups(terms, steps)
    terms = relevant(terms, question)
    if len(terms) < 2:
        return steps if terms else None
    if SPLITS.search(text):
        divide(terms, steps)
    elif "area" in question:
        steps.add(" * ".join(term.text for term in terms))
    else:
        add_up(terms, signs(terms, question), steps)
    return steps


def same_units(numbers: list[Quantity], steps: Steps) -> list[Quantity]:
    """Express the first of two lengths, weights or times in the unit of the second."""
    for index, number in enumerate(numbers[:-1]):
        for later in numbers[index + 1 :]:
            expression = converted(number, later.noun)
            if expression and rate_units(number) is None and rate_units(later) is None:
                changed = replace(number, value=steps.add(expression), noun=later.noun)
                return [*numbers[:index], changed, *numbers[index + 1 :]]
    return numbers


def rate_units(number: Quantity) -> set[str] | None:
    """Return what a rate counts by, as in `12 per box`, or None for a number that is no rate."""
    if match := RATE_AFTER.match(number.after):
        return {singular(word) for word in match.groups() if word}
    if match := RATE_BEFORE.search(CONJUNCTION.split(number.before)[-1]):
        return {singular(match[1])}
    if match := PRICE_BEFORE.search(number.before):
        return {singular(word) for word in match[1].split()}
    return None


def multiply_rates(terms: list[Term], steps: Steps) -> None:
    """Join every rate with the number it applies to."""
    for number in [part for term in terms for part in term.parts]:
        units = rate_units(number)
        if units is None:
            continue
        own = next(term for term in terms if number in term.parts)
        others = [term for term in terms if term is not own]
        counted = [term for term in others if any(part.noun in units for part in term.parts)]
        alike = [term for term in others if units and term.parts[0].noun == number.noun]
        if counted:
            join(terms, own, counted[0], "*", steps)
        elif alike and number.mark != "$":
            join(terms, alike[0], own, "/", steps)
        elif not PRICE_BEFORE.search(number.before):
            index = terms.index(own)
            near = [*reversed(terms[:index]), *terms[index + 1 :]]
            if near:
                join(terms, own, near[0], "*", steps)


def join(terms: list[Term], left: Term, right: Term, sign: str, steps: Steps) -> None:
    """Replace two terms with their product or quotient."""
    index = min(terms.index(left), terms.index(right))
    text = steps.add(f"{left.text} {sign} {right.text}")
    terms[:] = [term for term in terms if term not in (left, right)]
    terms.insert(index, Term(text, left.parts + right.parts))


def multiply_groups(terms: list[Term], steps: Steps) -> None:
    """Join neighbours such as `3 boxes of 12`."""
    owners = {part.index: part for term in terms for part in term.parts}
    for index, part in sorted(owners.items()):
        if index + 1 in owners and GROUP_AFTER.match(part.after):
            left = next(term for term in terms if part in term.parts)
            right = next(term for term in terms if owners[index + 1] in term.parts)
            if left is not right:
                join(terms, left, right, "*", steps)


def relevant(terms: list[Term], question: str) -> list[Term]:
    """Leave out things the question does not ask for, where it asks for two or more others."""
    asked = re.search(r"\bhow many (?:more |fewer )?([a-z]+)", question)
    noun = singular(asked[1]) if asked else ""
    alike = [term for term in terms if any(part.noun == noun for part in term.parts)]
    if len(alike) < 2:
        return terms
    return [term for term in terms if term in alike or len(term.parts) > 1]


def divide(terms: list[Term], steps: Steps) -> None:
    """Divide the sum of the other terms by the one that says into how many or how large parts."""
    marked = [term for term in terms if DIVISOR.search(term.parts[0].before)]
    counts = [term for term in terms if term.parts[0].mark != "$"]
    smallest = min(terms, key=lambda term: steps.value(term.text))
    divisor = marked[-1] if marked else counts[0] if len(counts) == 1 else smallest
    whole = [term.text for term in terms if term is not divisor]
    total = steps.add(" + ".join(whole)) if len(whole) > 1 else whole[0]
    steps.add(f"{total} / {divisor.text}")


def is_listed(number: Quantity) -> bool:
    """Tell whether a number goes on with the verb before it, as in `cut off 3 m and then 4 m`."""
    before = CONJUNCTION.split(number.before)
    return len(before) > 1 and len(before[-1].split()) < 2


def signs(terms: list[Term], question: str) -> list[bool]:
    """Return for each term whether its wording, or else the question, takes it away."""
    found: list[bool] = []
    for term in terms:
        takes = any(MINUS.search(part.clause) for part in term.parts)
        found.append(takes or (bool(found) and found[-1] and any(map(is_listed, term.parts))))
    if len(set(found)) == 1 and ASKS_DIFFERENCE.search(question):
        return [False] + [True] * (len(terms) - 1)
    return found


def add_up(terms: list[Term], taken: list[bool], steps: Steps) -> None:
    """Add the terms, or take some of them away one by one."""
    if len(terms) == 2 and any(taken) and not all(taken):
        terms = sorted(terms, key=lambda term: steps.value(term.text), reverse=True)
        taken = [False, True]
    pairs = list(zip(terms, taken, strict=True))
    kept = [term.text for term, gone in pairs if not gone]
    lost = [term.text for term, gone in pairs if gone]
    if not kept or not lost:
        steps.add(" + ".join(kept or lost))
        return
    total = steps.add(" + ".join(kept)) if len(kept) > 1 else kept[0]
    for amount in lost:
        total = steps.add(f"{total} - {amount}")
