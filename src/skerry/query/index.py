"""Feeds and queries, and which feeds join and leave which result when either changes.

Results are not stored. A feed's change leads, through the places of `access`, to the few queries
whose answer for that feed may differ; each is asked with the metadata before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from skerry.errors import UnknownFeed
from skerry.model.feeds import Change, Metadata
from skerry.query.catalogue import Catalogue, Row
from skerry.query.evaluate import evaluate
from skerry.query.language import Query
from skerry.query.table import QueryTable, Turn


class Difference(NamedTuple):
    """A feed joined the result of a query, or left it."""

    query: str
    """The query's key."""
    feed: str
    joined: bool


class _Entry(msgspec.Struct):
    """A query that is held, and by how many."""

    query: Query
    holders: int = 1


class QueryIndex:
    """Holds feeds' metadata and continuous queries. Nothing in it waits or blocks.

    Metadata is taken as it comes: check it first with `skerry.model.feeds`. Differences are exact:
    one for each query whose result changed, sorted by the query's key.
    """

    def __init__(self) -> None:
        self._catalogue = Catalogue()
        self._table = QueryTable(self._catalogue)
        self._numbers: dict[str, int] = {}
        self._entries: list[_Entry | None] = []
        self._spare: list[int] = []

    # Queries

    def add(self, query: Query) -> frozenset[str]:
        """Hold the query; return the feeds that match now. Equal queries share one entry, which
        lasts until each was removed."""
        number = self._numbers.get(query.key)
        if number is None:
            self._hold(query)
        else:
            self._entry(number).holders += 1
        return self.evaluate(query)

    def remove(self, query: Query | str) -> bool:
        """Let go of the query, or of one of several equal ones; True when it was the last."""
        key = query if isinstance(query, str) else query.key
        number = self._numbers.get(key)
        if number is None:
            return False
        entry = self._entry(number)
        entry.holders -= 1
        if entry.holders:
            return False
        self._table.unlink(number)
        del self._numbers[key]
        self._entries[number] = None
        self._spare.append(number)
        return True

    def result(self, key: str) -> frozenset[str]:
        """The feeds that a held query matches now. Raises `KeyError` for one that is not held."""
        return self.evaluate(self._entry(self._numbers[key]).query)

    def evaluate(self, query: Query) -> frozenset[str]:
        """The feeds that match now, without holding the query."""
        return frozenset(self._catalogue.ids(evaluate(self._catalogue, query.feeds)))

    def behind(self, query: Query | None, feed: str = "") -> Iterator[str]:
        """The feeds that match now, or all, in an order of our own, behind that of `feed`; from the
        beginning if that one is gone. What is not taken costs nothing. Nothing may change
        meanwhile."""
        catalogue = self._catalogue
        found = catalogue.all if query is None else evaluate(catalogue, query.feeds)
        number = catalogue.number(feed)
        return catalogue.ids(found if number is None else found.iter_equal_or_larger(number + 1))

    def query(self, key: str) -> Query | None:
        """The held query of that key."""
        number = self._numbers.get(key)
        return None if number is None else self._entry(number).query

    @property
    def queries(self) -> int:
        """How many distinct queries are held."""
        return len(self._numbers)

    def rebalance(self) -> None:
        """Choose the places of all queries again by the feeds there are now: worth it when most
        feeds came after most queries."""
        for number in self._numbers.values():
            self._table.relink(number, self._entry(number).query.feeds)

    # Feeds

    def register(self, feed: str, metadata: Metadata) -> list[Difference]:
        """Hold a feed, or replace its metadata. Registering twice changes nothing."""
        catalogue = self._catalogue
        number = catalogue.number(feed)
        if number is not None:
            gone: Change = dict.fromkeys(catalogue.metadata(catalogue.row(number)))
            return self.change(feed, {**gone, **metadata})
        row = catalogue.pack(metadata)
        catalogue.put(feed, row)
        return self._matching(feed, row, True)

    def change(self, feed: str, change: Change) -> list[Difference]:
        """Apply a difference to a feed's metadata; None deletes a key. Raises `UnknownFeed`."""
        catalogue = self._catalogue
        number = catalogue.number(feed)
        if number is None:
            raise _unknown(feed)
        row = catalogue.row(number)
        atoms = catalogue.atoms(row)
        turns = []
        for name, value in change.items():
            old = atoms.get(name)
            new = None if value is None else catalogue.intern(name, value)
            if old == new:
                continue
            key = catalogue.keys[name]
            if new is None:
                del atoms[name]
            else:
                atoms[name] = new
            before, after = catalogue.parts(old), catalogue.parts(new)
            turns.append(Turn(key, before, after, old is None or new is None))
        if not turns:
            return []
        new_row = catalogue.join(atoms.values())
        held = chain(catalogue.covers(row), catalogue.covers(new_row))
        found = []
        if affected := self._table.affected(turns, held):
            was, now = catalogue.metadata(row), catalogue.metadata(new_row)
            for query in affected:
                asked = self._entry(query).query
                joined = asked.feeds.holds(now)
                if joined is not asked.feeds.holds(was):
                    found.append(Difference(asked.key, feed, joined))
        catalogue.move(number, new_row)
        return sorted(found)

    def remove_feed(self, feed: str) -> list[Difference]:
        """Forget a feed. An unknown one changes nothing."""
        number = self._catalogue.number(feed)
        if number is None:
            return []
        found = self._matching(feed, self._catalogue.row(number), False)
        self._catalogue.drop(feed)
        return found

    def metadata(self, feed: str) -> Metadata:
        """A feed's metadata, as a dict of the caller's own. Raises `UnknownFeed`."""
        number = self._catalogue.number(feed)
        if number is None:
            raise _unknown(feed)
        held = self._catalogue.metadata(self._catalogue.row(number))
        return {k: list(v) if isinstance(v, list) else v for k, v in held.items()}

    def feeds(self) -> Iterable[str]:
        """The ids of all feeds."""
        return self._catalogue.ids(self._catalogue.all)

    def __contains__(self, feed: str) -> bool:
        return self._catalogue.number(feed) is not None

    def __len__(self) -> int:
        """How many feeds there are."""
        return len(self._catalogue.all)

    def _matching(self, feed: str, row: Row, joined: bool) -> list[Difference]:
        """The differences of a feed that comes or goes: one for each query that it matches."""
        found = self._table.arriving(self._catalogue.covers(row))
        if not found:
            return []
        metadata = self._catalogue.metadata(row)
        asked = (self._entry(number).query for number in found)
        return sorted(Difference(q.key, feed, joined) for q in asked if q.feeds.holds(metadata))

    def _hold(self, query: Query) -> None:
        number = self._spare.pop() if self._spare else len(self._entries)
        if number == len(self._entries):
            self._entries.append(None)
        self._entries[number] = _Entry(query)
        self._numbers[query.key] = number
        self._table.link(number, query.feeds)

    def _entry(self, number: int) -> _Entry:
        entry = self._entries[number]
        assert entry is not None
        return entry


def _unknown(feed: str) -> UnknownFeed:
    return UnknownFeed(f"no feed {feed} is registered", "Register it first.")
