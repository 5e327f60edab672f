"""Token ids and log-probs in arrays; a prompt shares what it repeats of the call before it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

type Numbers = Sequence[Any]


class Packed(Sequence[Any]):
    """Integers (4 bytes each) or floats (8 bytes; None is kept), equal to any like sequence."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: array[Any]) -> None:
        self.pieces = pieces
        """Never changed, so that sequences may share them."""

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[Any]:
        return map(_value, chain.from_iterable(self.pieces))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        found = (self.pieces[0] if len(self.pieces) == 1 else joined(self))[index]
        return [_value(number) for number in found] if isinstance(index, slice) else _value(found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Packed) and other.pieces == self.pieces:
            return True
        return isinstance(other, Sequence) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(list(self))


def joined(*parts: Numbers | None) -> array[Any]:
    """The numbers of packed parts in one array; other parts count as empty."""
    pieces = [piece for part in parts if isinstance(part, Packed) for piece in part.pieces]
    whole: array[Any] = array(pieces[0].typecode if pieces else "i")
    for piece in pieces:
        whole.extend(piece)
    return whole


def pack_ids(ids: Numbers | None, *bases: Numbers | None) -> Numbers | None:
    """Token ids packed; what they repeat of the bases, one after the other, is shared with them.

    What is not a sequence of integers is returned as it is.
    """
    if ids is None:
        return None
    try:
        whole = array("i", ids)
    except (TypeError, OverflowError):
        return ids
    kept: list[array[Any]] = []
    at = 0
    for piece in chain.from_iterable(base.pieces for base in bases if isinstance(base, Packed)):
        same = _shared(piece, whole[at : at + len(piece)])
        kept.append(piece[:same] if same < len(piece) else piece)
        at += same
        if same < len(piece):
            break
    return Packed(*kept, whole[at:])


def pack_logprobs(logprobs: Iterable[float | None] | None) -> Numbers | None:
    """Log-probs packed; None where the endpoint gave none."""
    if logprobs is None:
        return None
    return Packed(array("d", [math.nan if value is None else value for value in logprobs]))


def shared_length(ids: Numbers | None, *bases: Numbers | None) -> int:
    """How many leading numbers `ids` stores together with the bases."""
    if not isinstance(ids, Packed):
        return 0
    theirs = chain.from_iterable(base.pieces for base in bases if isinstance(base, Packed))
    pairs = zip(ids.pieces, theirs, strict=False)
    return sum(len(mine) for mine, other in pairs if mine is other)


def _shared(one: array[Any], other: array[Any]) -> int:
    """Length of the common beginning, by halves: whole slices compare fast."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _value(number: Any) -> Any:
    return None if number != number else number
