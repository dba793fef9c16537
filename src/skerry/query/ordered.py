"""The distinct values of one key in order, for ranges over them.

Values lie in sorted blocks of some hundreds, so that one more or one less moves few. Each block
knows, once asked, all feeds that have one of its values: a range is the union of whole blocks, and
of single values at its two ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyroaring import BitMap

Posting = int | BitMap | None
"""The feeds that have something: none, one, or several."""

_FULL = 1024
"""Values of a block before it is cut in two."""


class _Block:
    __slots__ = ("feeds", "values")

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.feeds: BitMap | None = None


class Ordered:
    """The distinct values of one kind, numbers or texts, in order."""

    def __init__(self, values: Iterable[Any], atoms: Mapping[Any, int]) -> None:
        every = sorted(values)
        half = _FULL // 2
        self._atoms = atoms
        self._blocks = [_Block(every[i : i + half]) for i in range(0, len(every), half)]
        self._blocks = self._blocks or [_Block([])]
        self._starts = [block.values[0] for block in self._blocks[1:]]

    def insert(self, value: Any) -> None:
        """A value that was not there."""
        place = bisect_right(self._starts, value)
        block = self._blocks[place]
        insort(block.values, value)
        if len(block.values) > _FULL:
            half = len(block.values) // 2
            self._blocks.insert(place + 1, _Block(block.values[half:]))
            self._starts.insert(place, block.values[half])
            del block.values[half:]
            block.feeds = None

    def remove(self, value: Any) -> None:
        """A value that is there, and that no feed has."""
        place = bisect_right(self._starts, value)
        block = self._blocks[place]
        del block.values[bisect_left(block.values, value)]
        if not block.values and len(self._blocks) > 1:
            del self._blocks[place]
            del self._starts[max(0, place - 1)]

    def joined(self, value: Any, feed: int) -> None:
        """A feed has the value now."""
        feeds = self._blocks[bisect_right(self._starts, value)].feeds
        if feeds is not None:
            feeds.add(feed)

    def left(self, value: Any) -> None:
        """A feed has the value no more, though perhaps another of its block."""
        self._blocks[bisect_right(self._starts, value)].feeds = None

    def feeds(
        self, operator: str, limit: Any, postings: Sequence[Posting], until: Any = None
    ) -> BitMap:
        """The feeds that have a value on that side of the limit; with `until`, and below that."""
        starts = self._starts
        low, high = (limit, until) if operator in (">", ">=") else (None, limit)
        first = 0 if low is None else bisect_right(starts, low)
        last = len(starts) if high is None else bisect_right(starts, high)
        found: list[BitMap] = []
        single: list[int] = []
        for place in range(first, last + 1):
            block = self._blocks[place]
            values = block.values
            if place in (first, last):
                values = _within(values, operator, limit, until)
            if len(values) < len(block.values):
                gather(map(self._atoms.__getitem__, values), postings, found, single)
                continue
            if block.feeds is None:
                block.feeds = union(map(self._atoms.__getitem__, values), postings)
            found.append(block.feeds)
        return _united(found, single)


def _within(values: list[Any], operator: str, limit: Any, until: Any) -> list[Any]:
    if operator == "<":
        return values[: bisect_left(values, limit)]
    if operator == "<=":
        return values[: bisect_right(values, limit)]
    start = bisect_right(values, limit) if operator == ">" else bisect_left(values, limit)
    return values[start : len(values) if until is None else bisect_left(values, until)]


def gather(
    atoms: Iterable[int], postings: Sequence[Posting], found: list[BitMap], single: list[int]
) -> None:
    """Sort the atoms' postings into sets and single feeds."""
    for atom in atoms:
        posting = postings[atom]
        if posting is None:
            continue
        if type(posting) is int:
            single.append(posting)
        else:
            found.append(posting)  # type: ignore[arg-type]


def union(atoms: Iterable[int], postings: Sequence[Posting]) -> BitMap:
    """All feeds of the atoms."""
    found: list[BitMap] = []
    single: list[int] = []
    gather(atoms, postings, found, single)
    return _united(found, single)


def _united(found: list[BitMap], single: list[int]) -> BitMap:
    if single or not found:
        found = [*found, BitMap(single)]
    return BitMap.union(*found) if len(found) > 1 else BitMap(found[0])
