"""The distinct values of one key in order, for ranges over them.

Values lie in sorted blocks of some hundreds, so that one more or one less moves few. Each block
knows, once asked, all feeds that have one of its values: a range is the union of whole blocks, and
of single values at its two ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any

from pyroaring import BitMap

Posting = int | BitMap | None
"""The feeds that have something: none, one, or several."""

_FULL = 1024
"""Values of a block before it is cut in two."""


class _Block:
    __slots__ = ("entries", "feeds")

    def __init__(self, entries: list[tuple[Any, int]]) -> None:
        self.entries = entries
        self.feeds: BitMap | None = None


class Ordered:
    """Sorted (value, atom) of one kind: numbers, or texts."""

    def __init__(self, entries: Iterable[tuple[Any, int]]) -> None:
        every = sorted(entries)
        half = _FULL // 2
        self._blocks = [_Block(every[i : i + half]) for i in range(0, len(every), half)]
        self._blocks = self._blocks or [_Block([])]
        self._starts = [block.entries[0][0] for block in self._blocks[1:]]

    def insert(self, value: Any, atom: int) -> None:
        """A value that was not there."""
        place = bisect_right(self._starts, value)
        block = self._blocks[place]
        insort(block.entries, (value, atom))
        if len(block.entries) > _FULL:
            block.feeds = None
            half = len(block.entries) // 2
            self._blocks.insert(place + 1, _Block(block.entries[half:]))
            self._starts.insert(place, block.entries[half][0])
            del block.entries[half:]

    def remove(self, value: Any, atom: int) -> None:
        """A value that is there."""
        place = bisect_right(self._starts, value)
        block = self._blocks[place]
        del block.entries[bisect_left(block.entries, (value, atom))]
        block.feeds = None
        if not block.entries and len(self._blocks) > 1:
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
        blocks, starts = self._blocks, self._starts
        low = high = None
        if operator in (">", ">="):
            low, high = limit, until
        else:
            high = limit
        first = 0 if low is None else bisect_right(starts, low)
        last = len(blocks) - 1 if high is None else bisect_right(starts, high)
        found: list[BitMap] = []
        single: list[int] = []
        for place in range(first, last + 1):
            block = blocks[place]
            if place in (first, last):
                entries = _within(block.entries, operator, limit, until)
                if len(entries) < len(block.entries):
                    gather((atom for _, atom in entries), postings, found, single)
                    continue
            if block.feeds is None:
                block.feeds = union((atom for _, atom in block.entries), postings)
            found.append(block.feeds)
        return _united(found, single)


def _within(
    entries: list[tuple[Any, int]], operator: str, limit: Any, until: Any
) -> list[tuple[Any, int]]:
    before, after = bisect_left(entries, (limit, -1)), bisect_right(entries, (limit, 1 << 62))
    if operator == "<":
        return entries[:before]
    if operator == "<=":
        return entries[:after]
    end = len(entries) if until is None else bisect_left(entries, (until, -1))
    return entries[after if operator == ">" else before : end]


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
