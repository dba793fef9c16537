"""Queries at their places (see `access`), and the way from a feed's change to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from skerry.query.access import pairs, places
from skerry.query.catalogue import Catalogue, Key
from skerry.query.terms import Node

Bucket = int | set[int]
"""The queries kept at one place: mostly one."""

_LAST = 1 << 62
"""Above every query's number."""


class Turn(NamedTuple):
    """One key of one feed changes."""

    key: Key
    before: tuple[int, ...]
    """The atoms of its values; none also for an empty list."""
    after: tuple[int, ...]
    appears: bool
    """The key was not there, or will not be."""


class _Thresholds:
    """The queries beneath one order trigger and cover, by the limit that they compare with."""

    __slots__ = ("numbers", "texts")

    def __init__(self) -> None:
        self.numbers: list[tuple[Any, int]] = []
        self.texts: list[tuple[Any, int]] = []

    def of(self, limit: Any) -> list[tuple[Any, int]]:
        return self.texts if type(limit) is str else self.numbers


class QueryTable:
    """Keeps queries by number."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._changes: dict[int, dict[int, Bucket]] = {}
        """Trigger → cover → queries, but for orders."""
        self._orders: dict[int, dict[int, _Thresholds]] = {}
        """Key's order → cover → queries by threshold."""
        self._arrivals: dict[int, dict[int, Bucket]] = {}
        """Atom → atom → queries."""
        self._kept: dict[int, tuple[tuple[Any, ...], tuple[int, ...]]] = {}

    def link(self, number: int, node: Node) -> None:
        """Keep a query at the places that suit the feeds there are now."""
        catalogue = self._catalogue
        changes, arrivals = places(catalogue, node), pairs(catalogue, node)
        # Flat, for there are many: three numbers for each place, two for each pair.
        kept = [part for trigger, cover in changes for part in (*trigger, cover)]
        self._kept[number] = tuple(kept), tuple(chain.from_iterable(arrivals))
        for (atom, threshold), cover in changes:
            catalogue.use(atom)
            catalogue.use(cover)
            if threshold is None:
                _put(self._changes.setdefault(atom, {}), cover, number)
            else:
                covers = self._orders.setdefault(atom, {})
                if cover not in covers:
                    covers[cover] = _Thresholds()
                insort(covers[cover].of(threshold), (threshold, number))
        for one, other in arrivals:
            catalogue.use(one)
            catalogue.use(other)
            _put(self._arrivals.setdefault(one, {}), other, number)

    def unlink(self, number: int) -> None:
        """Take a query from its places."""
        changes, arrivals = self._kept.pop(number)
        for atom, threshold, cover in zip(changes[0::3], changes[1::3], changes[2::3], strict=True):
            if threshold is None:
                _take(self._changes, atom, cover, number)
            else:
                self._forget(atom, cover, threshold, number)
        for one, other in zip(arrivals[0::2], arrivals[1::2], strict=True):
            _take(self._arrivals, one, other, number)
        for atom in _used(changes, arrivals):
            self._catalogue.unuse(atom)

    def relink(self, number: int, node: Node) -> None:
        """Keep a query at the places that suit now."""
        used = _used(*self._kept[number])
        for atom in used:  # what nobody else uses must outlive the moment
            self._catalogue.use(atom)
        self.unlink(number)
        self.link(number, node)
        for atom in used:
            self._catalogue.unuse(atom)

    def arriving(self, held: Iterable[int]) -> set[int]:
        """The queries that may match a feed with these atoms."""
        found: set[int] = set()
        if self._arrivals:
            atoms = set(held)
            for atom in atoms:
                if (others := self._arrivals.get(atom)) is not None:
                    _gather(others, atoms, found)
        return found

    def affected(self, turns: Sequence[Turn], held: Iterable[int]) -> set[int]:
        """The queries whose answer may differ for a feed whose keys turn so; `held` are the atoms
        that it has before or after."""
        catalogue, changes = self._catalogue, self._changes
        met: list[dict[int, Bucket]] = []
        orders: list[tuple[dict[int, _Thresholds], Turn]] = []
        for turn in turns:
            key = turn.key
            flipped = set(turn.before).symmetric_difference(turn.after)
            met += [changes[atom] for atom in flipped if atom in changes]
            if turn.appears and key.present in changes:
                met.append(changes[key.present])
            if flipped and key.text in changes:
                met.append(changes[key.text])
            if key.lengths:
                prefixes = {p for atom in flipped for p in catalogue.prefixes(atom)}
                met += [changes[atom] for atom in prefixes if atom in changes]
            if flipped and key.order in self._orders:
                orders.append((self._orders[key.order], turn))
        found: set[int] = set()
        if not met and not orders:
            return found
        covers = set(held)
        for others in met:
            _gather(others, covers, found)
        for limits, turn in orders:
            self._crossed(limits, turn, covers, found)
        return found

    def _crossed(
        self, limits: dict[int, _Thresholds], turn: Turn, covers: Collection[int], found: set[int]
    ) -> None:
        """Add the queries with a threshold that some value of the key passes.

        Where a number became another, those from the lowest to the highest of all before and after
        can differ; where there was none before or is none after, all can. The same for texts."""
        value = self._catalogue.value
        before = [value(atom) for atom in turn.before]
        after = [value(atom) for atom in turn.after]
        numbers = _reach(before, after, (int, float))
        texts = _reach(before, after, (str,))
        for cover in [c for c in covers if c in limits] if len(covers) < len(limits) else limits:
            if cover not in covers:
                continue
            thresholds = limits[cover]
            for entries, reach in ((thresholds.numbers, numbers), (thresholds.texts, texts)):
                if reach is None or not entries:
                    continue
                if reach == ():
                    found.update(query for _, query in entries)
                    continue
                low, high = reach
                start = bisect_left(entries, (low, -1))
                end = bisect_right(entries, (high, _LAST))
                found.update(query for _, query in entries[start:end])

    def _forget(self, atom: int, cover: int, threshold: Any, number: int) -> None:
        covers = self._orders[atom]
        entries = covers[cover].of(threshold)
        del entries[bisect_left(entries, (threshold, number))]
        if not covers[cover].numbers and not covers[cover].texts:
            del covers[cover]
            if not covers:
                del self._orders[atom]


def _used(changes: tuple[Any, ...], arrivals: tuple[int, ...]) -> list[int]:
    """The atoms of a query's places, one for each time."""
    return [*changes[0::3], *changes[2::3], *arrivals]


def _reach(before: list[Any], after: list[Any], kinds: tuple[type, ...]) -> tuple[Any, ...] | None:
    """(lowest, highest) of the values of a kind; () where only one side has some; None for none."""
    one = [value for value in before if type(value) in kinds]
    other = [value for value in after if type(value) in kinds]
    if one and other:
        return min(*one, *other), max(*one, *other)
    return () if one or other else None


def _gather(others: dict[int, Bucket], atoms: Collection[int], found: set[int]) -> None:
    """Add the queries that are kept under one of the atoms."""
    for atom in atoms if len(atoms) < len(others) else list(others):
        if atom in atoms and (bucket := others.get(atom)) is not None:
            if isinstance(bucket, int):
                found.add(bucket)
            else:
                found |= bucket


def _put(others: dict[int, Bucket], atom: int, number: int) -> None:
    bucket = others.get(atom)
    if bucket is None:
        others[atom] = number
    elif isinstance(bucket, int):
        others[atom] = {bucket, number}
    else:
        bucket.add(number)


def _take(table: dict[int, dict[int, Bucket]], first: int, atom: int, number: int) -> None:
    others = table[first]
    bucket = others[atom]
    if isinstance(bucket, int):
        del others[atom]
        if not others:
            del table[first]
    else:
        bucket.discard(number)
        if len(bucket) == 1:
            others[atom] = bucket.pop()
