"""Feeds and queries, and which feeds join and leave which result when either changes."""

from __future__ import annotations

from typing import NamedTuple

from skerry.errors import UnknownFeed
from skerry.model.feeds import Change, Metadata
from skerry.query.language import Query


class Difference(NamedTuple):
    """A feed joined the result of a query, or left it."""

    query: str
    """The query's key."""
    feed: str
    joined: bool


class QueryIndex:
    """Holds feeds' metadata and continuous queries. Nothing in it waits or blocks."""

    def __init__(self) -> None:
        self._feeds: dict[str, Metadata] = {}
        self._queries: dict[str, tuple[Query, int]] = {}

    def add(self, query: Query) -> frozenset[str]:
        """Hold the query; return the feeds that match now. Equal queries share one entry, which
        lasts until each was removed."""
        _, holders = self._queries.get(query.key, (query, 0))
        self._queries[query.key] = query, holders + 1
        return self.evaluate(query)

    def remove(self, query: Query | str) -> bool:
        """Let go of the query, or of one of several equal ones; True when it was the last."""
        key = query if isinstance(query, str) else query.key
        if key not in self._queries:
            return False
        held, holders = self._queries.pop(key)
        if holders > 1:
            self._queries[key] = held, holders - 1
        return holders == 1

    def register(self, feed: str, metadata: Metadata) -> list[Difference]:
        """Hold a feed, or replace its metadata. Registering twice changes nothing."""
        before = self._feeds.get(feed)
        self._feeds[feed] = dict(metadata)
        return self._differences(feed, before, metadata)

    def change(self, feed: str, change: Change) -> list[Difference]:
        """Apply a difference to a feed's metadata; None deletes a key. Raises `UnknownFeed`."""
        after = self.metadata(feed)
        for key, value in change.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        return self.register(feed, after)

    def remove_feed(self, feed: str) -> list[Difference]:
        """Forget a feed. An unknown one changes nothing."""
        return self._differences(feed, self._feeds.pop(feed, None), None)

    def result(self, key: str) -> frozenset[str]:
        """The feeds that a held query matches now. Raises `KeyError` for one that is not held."""
        return self.evaluate(self._queries[key][0])

    def evaluate(self, query: Query) -> frozenset[str]:
        """The feeds that match now, without holding the query."""
        return frozenset(f for f, metadata in self._feeds.items() if query.matches(metadata))

    def query(self, key: str) -> Query | None:
        """The held query of that key."""
        held = self._queries.get(key)
        return held[0] if held else None

    def metadata(self, feed: str) -> Metadata:
        """A feed's metadata, as a dict of the caller's own. Raises `UnknownFeed`."""
        if feed not in self._feeds:
            raise UnknownFeed(f"no feed {feed} is registered", "Register it first.")
        return dict(self._feeds[feed])

    def __contains__(self, feed: str) -> bool:
        return feed in self._feeds

    def __len__(self) -> int:
        """How many feeds there are."""
        return len(self._feeds)

    @property
    def queries(self) -> int:
        """How many distinct queries are held."""
        return len(self._queries)

    def _differences(
        self, feed: str, before: Metadata | None, after: Metadata | None
    ) -> list[Difference]:
        found = []
        for key, (query, _) in self._queries.items():
            was = before is not None and query.matches(before)
            now = after is not None and query.matches(after)
            if was is not now:
                found.append(Difference(key, feed, now))
        return sorted(found)
