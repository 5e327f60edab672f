"""Find the numbers in the text of a problem, and compute with them exactly."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
WORD_VALUES = {
    **{word: value for value, word in enumerate(ONES.split())},
    **{word: 10 * value for value, word in enumerate(TENS.split(), start=2)},
}
UNITS = {
    "mm": ("length", 1), "cm": ("length", 10), "m": ("length", 1000), "km": ("length", 1000000),
    "centimetre": ("length", 10), "metre": ("length", 1000), "kilometre": ("length", 1000000),
    "centimeter": ("length", 10), "meter": ("length", 1000), "kilometer": ("length", 1000000),
    "inch": ("imperial", 1), "foot": ("imperial", 12), "yard": ("imperial", 36),
    "mg": ("mass", 1), "g": ("mass", 1000), "gram": ("mass", 1000), "kg": ("mass", 1000000),
    "kilogram": ("mass", 1000000), "ml": ("volume", 1), "millilitre": ("volume", 1),
    "l": ("volume", 1000), "litre": ("volume", 1000), "liter": ("volume", 1000),
    "second": ("time", 1), "minute": ("time", 60), "hour": ("time", 3600),
    "day": ("time", 86400), "week": ("time", 604800),
}  # fmt: skip
IRREGULAR = {"people": "person", "children": "child", "feet": "foot", "men": "man"}
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
}
TEXT_LIMIT = 2000
EXPRESSION_LIMIT = 300

NUMBER = re.compile(
    r"(?<![a-z\d])(\$)?(\d++(?:\.\d++)?)(?!st\b|nd\b|rd\b|th\b)(\s*(?:%|percent\b))?"
)
NUMBER_WORDS = re.compile(
    rf"\b(?:({TENS.replace(' ', '|')})(?:[- ]({'|'.join(ONES.split()[1:10])}))?"
    rf"|({'|'.join(ONES.split()[2:])}))\b"
)
REPLACEMENTS = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(?<=\d),(?=\d{3}\b)", ""),
        (r"\bhalf a dozen\b", "6"),
        (r"\bhalf (?:of )?(?=(?:the )?\d)", "50% of "),
        (r"\ba quarter of (?=(?:the )?\d)", "25% of "),
        (r"\btwice\b", "2 times"),
        (r"\ba dozen\b", "1 dozen"),
        ("#", "number "),
        ("\u00d7", "*"),
        ("\u00f7", "/"),
        ("\u2212", "-"),
        ("\u2019", "'"),
    )
]
NOUN = re.compile(
    r"[\s-]*(?:(?:more|fewer|of|the|them|those|other|another|extra|single|loose|a) )*([a-z]+)"
)
CONJUNCTION = re.compile(r",|\b(?:and|but|then)\b")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in the text, with the words around it."""

    value: str
    mark: str
    noun: str
    before: str
    after: str
    sentence: int
    index: int

    @property
    def clause(self) -> str:
        """Return the words that speak of this number rather than of the next or the last one."""
        head, *rest = CONJUNCTION.split(self.after)
        is_own = rest or self.after.rstrip().endswith((".", "?", "!"))
        return f"{CONJUNCTION.split(self.before)[-1]} ~ {head if is_own else ''}"


def evaluate(expression: str) -> Fraction:
    """Compute an arithmetic expression exactly, without running it as code."""
    if len(expression) > EXPRESSION_LIMIT:
        raise ValueError(f"{len(expression)} characters are more than {EXPRESSION_LIMIT}")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic, use numbers and + - * /")


def singular(word: str) -> str:
    """Return the singular of an English noun, near enough to compare two of them."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    for ending, replacement in (("lves", "lf"), ("ies", "y"), ("xes", "x"), ("ches", "ch")):
        if word.endswith(ending):
            return word.removesuffix(ending) + replacement
    return word[:-1] if len(word) > 2 and word.endswith("s") and word[-2] != "s" else word


def _digits(match: re.Match[str]) -> str:
    tens, ones, small = match.groups()
    return str(sum(WORD_VALUES[word] for word in (tens, ones, small) if word))


def normalise(text: str) -> str:
    """Lower the case of a text and write its number words as digits."""
    text = NUMBER_WORDS.sub(_digits, " ".join(text[:TEXT_LIMIT].lower().split()))
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return re.sub(r"\b(\d{1,6}) dozen\b", lambda match: str(12 * int(match[1])), text)


def sentences(text: str) -> list[str]:
    """Split a normalised text into sentences."""
    return [part for part in re.split(r"(?<=[.?!])\s+", text) if part]


def quantities(text: str) -> list[Quantity]:
    """Return the numbers of a normalised text in order."""
    found: list[Quantity] = []
    for index, sentence in enumerate(sentences(text)):
        matches = list(NUMBER.finditer(sentence))
        starts = [0, *(match.end() for match in matches)]
        ends = [*(match.start() for match in matches[1:]), len(sentence)]
        for match, start, end in zip(matches, starts, ends, strict=False):
            money, value, percent = match.groups()
            after = sentence[match.end() : end]
            word = NOUN.match(after)
            noun = "$" if money else singular(word[1]) if word else ""
            mark = "%" if percent else money or ""
            found.append(
                Quantity(
                    value, mark, noun, sentence[start : match.start()], after, index, len(found)
                )
            )
    return found


def converted(number: Quantity, unit: str) -> str | None:
    """Return the calculation that expresses a number in another unit of the same dimension."""
    dimension, size = UNITS.get(number.noun, ("", 1))
    other_dimension, other_size = UNITS.get(unit, (None, 1))
    if dimension != other_dimension or size == other_size:
        return None
    ratio = Fraction(size, other_size)
    return f"{number.value} * {ratio}" if ratio > 1 else f"{number.value} / {1 / ratio}"
