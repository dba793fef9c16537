"""What one site knows of all feeds, and which of its subscribers are to be told what.

Every site follows every site's records and evaluates the queries of its own subscribers itself: no
other site is asked, and one that is cut off goes on with what it knows. Nothing here waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter

import msgspec

from skerry.errors import BadSetting, UnknownFeed
from skerry.model.control import CheckAnswer, Differences, QueryAnswer
from skerry.model.feeds import RESERVED, Feed, takes_over
from skerry.query.index import Difference, QueryIndex
from skerry.query.language import Query

PAGE = 512 * 1024
"""Bytes of feeds in one answer, about."""
HELD = 60.0
"""Seconds that a query is held for a subscriber that says nothing."""

Tell = Callable[[str, Differences], None]


class _Known(msgspec.Struct, gc=False):
    """A feed without its metadata, which the index keeps."""

    owner: str
    topic: str
    site: str
    permanent: bool
    lease: float
    version: int
    since: int
    at: int


class _Query(msgspec.Struct):
    query: Query
    number: int = 0
    """Of the last message that told differences."""
    holders: dict[str, float] = {}
    """Subscribers, and until when they are believed to be there."""


class View:
    """Feeds, and the queries that subscribers of this site hold. `tell(key, differences)` is called
    when the result of a held query changes. `run` tells this one from those before it."""

    def __init__(self, tell: Tell, run: str = "") -> None:
        self._tell = tell
        self._run = run
        self._index = QueryIndex()
        self._known: dict[str, _Known] = {}
        self._queries: dict[str, _Query] = {}
        self._marks: dict[str, int] = {}
        """How far each site's records were read."""

    # Feeds

    def take(self, feed: Feed, index: int) -> bool:
        """What a site says of a feed, at an index of its records; whether it counts."""
        self._marks[feed.site] = max(index, self._marks.get(feed.site, 0))
        held = self.feed(feed.id) if feed.id in self._known else None
        if held is not None and not takes_over(feed, held):
            return False
        if feed.removed:
            if held is None:
                return False
            del self._known[feed.id]
            self._differ(self._index.remove_feed(feed.id), {feed.id: feed})
            return True
        if held is not None and held.topic != feed.topic:
            # It goes on elsewhere: subscribers are to read the one to its end, then the other.
            gone = msgspec.structs.replace(held, version=feed.version, at=-1)
            self._differ(self._index.remove_feed(feed.id), {feed.id: gone})
        self._known[feed.id] = _Known(
            feed.owner, feed.topic, feed.site, feed.permanent, feed.lease, feed.version,
            feed.since, feed.at,
        )  # fmt: skip
        found = self._index.register(feed.id, feed.described())
        self._differ(found, {feed.id: feed})
        return True

    def forget_site(self, site: str) -> None:
        """The records of a site are gone, and its feeds with them."""
        for id in [id for id, known in self._known.items() if known.site == site]:
            self.take(msgspec.structs.replace(self.feed(id), removed=True), 0)
        self._marks.pop(site, None)

    def feed(self, id: str) -> Feed:
        """A feed as it is known. Raises `UnknownFeed`."""
        known = self._known.get(id)
        if known is None:
            raise UnknownFeed(
                f"there is no feed {id}", "List them with `skerry feed list`; it may have expired."
            )
        held = self._index.metadata(id)
        return Feed(
            id=id, owner=known.owner, topic=known.topic, site=known.site,
            metadata={k: v for k, v in held.items() if not k.startswith(RESERVED)},
            permanent=known.permanent, lease=known.lease, version=known.version,
            since=known.since, at=known.at,
        )  # fmt: skip

    def version(self, id: str) -> int:
        """The version of a feed that is known; 0: none is."""
        known = self._known.get(id)
        return 0 if known is None else known.version

    def owned(self, site: str) -> list[Feed]:
        """The feeds that were registered at a site."""
        return [self.feed(id) for id, known in self._known.items() if known.site == site]

    def __len__(self) -> int:
        return len(self._known)

    def page(self, query: Query | None, after: str) -> tuple[list[Feed], bool]:
        """Feeds that match, in an order of our own, behind `after`; and whether there are more."""
        feeds: list[Feed] = []
        size = 0
        for id in self._index.behind(query, after):
            if size > PAGE:
                return feeds, True
            feeds.append(feed := self.feed(id))
            size += len(msgspec.json.encode(feed))
        return feeds, False

    # Queries

    def hold(self, query: Query, holder: str, now: float, after: str) -> QueryAnswer:
        """Tell of differences of the query's result from now on; return the result."""
        entry = self._queries.get(query.key)
        if entry is None:
            entry = self._queries[query.key] = _Query(query)
            self._index.add(query)
        entry.holders[holder] = now + HELD
        feeds, more = self.page(query, after)
        return QueryAnswer(
            key=query.key, number=entry.number, run=self._run, feeds=feeds, more=more,
            marks=dict(self._marks),
        )  # fmt: skip

    def renew(self, key: str, holder: str, now: float) -> int | None:
        """The subscriber is still there. The number of the last differences; None: it was
        forgotten, and must ask anew."""
        entry = self._queries.get(key)
        if entry is None or holder not in entry.holders:
            return None
        entry.holders[holder] = now + HELD
        return entry.number

    def release(self, key: str, holder: str) -> None:
        """The subscriber is gone."""
        entry = self._queries.get(key)
        if entry is None or entry.holders.pop(holder, None) is None or entry.holders:
            return
        del self._queries[key]
        self._index.remove(entry.query)

    def expire(self, now: float) -> None:
        """Let go of what silent subscribers held."""
        for key, entry in list(self._queries.items()):
            for holder, until in list(entry.holders.items()):
                if until < now:
                    self.release(key, holder)

    def check(self, key: str, id: str) -> CheckAnswer:
        """The feed if it matches a held query now."""
        entry = self._queries.get(key)
        if entry is None:
            raise BadSetting("the query is not held here", "Ask it anew.")
        matches = id in self._known and entry.query.matches(self._index.metadata(id))
        return CheckAnswer(
            number=entry.number, run=self._run, feed=self.feed(id) if matches else None
        )

    def _differ(self, found: list[Difference], feeds: dict[str, Feed]) -> None:
        by_query: defaultdict[str, list[Difference]] = defaultdict(list)
        for difference in sorted(found, key=attrgetter("query")):
            by_query[difference.query].append(difference)
        for key, differences in by_query.items():
            entry = self._queries[key]
            entry.number += 1
            self._tell(
                key,
                Differences(
                    number=entry.number,
                    run=self._run,
                    joined=[feeds[d.feed] for d in differences if d.joined],
                    left=[feeds[d.feed] for d in differences if not d.joined],
                    marks={feed.site: self._marks[feed.site] for feed in feeds.values()},
                ),
            )
