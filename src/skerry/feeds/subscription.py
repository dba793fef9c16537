"""A subscription by query: joins, leaves, and the events of exactly the feeds that match.

Theory of operation. The site's agent tells which feeds match, and from then on the differences. For
each of them this subscription listens where the engine of the home tells of the feed's events, so
that events reach it, across a link once for all who listen, without an agent or a copy between. An
event that is told so names the index of the feed's event before it: a gap shows, and what is
missing is fetched from the home's log. That one mechanism fills in what a feed published between
joining the result and being listened to, what a broken link lost, what a reader that is too slow
had to drop, and the history.

An event also names the version of its feed's metadata that it was published under. One that is
newer than what we were told is held until the site knows that version and has told what it means.
A feed that leaves is read up to the event that was its newest when it left, and only then told to
have left. So whichever comes first, the event or the news, exactly those events are handed out that
were published while their feed matched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Self

import msgspec

from skerry.engine.answers import ask
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import BadSetting, IndexUnavailable, SkerryError, Unavailable, UnknownTopic
from skerry.feeds.home import Place
from skerry.feeds.items import Item
from skerry.feeds.reading import AGAIN, Member, Reading
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.model.control import CheckAnswer, CheckRequest, Differences, QueryAnswer, QueryRequest
from skerry.model.feeds import Feed, read_feed
from skerry.model.names import differences_subject, feed_records
from skerry.model.records import read
from skerry.query.language import parse

log = logging.getLogger("skerry.query")

RENEW = 15.0
"""Seconds between two signs of life to the agent."""
TOLD = 1.0
"""Seconds to wait for differences that are on their way."""
LOADING = 10.0
"""Seconds that an agent may take to read what it knew before."""
_NOTHING = (0, 0, False)


class QuerySubscription(Reading):
    """Iterate over it with `async for`: it yields `Joined`, `Left`, `Received` and `Missed`.

    A reader that is slow slows nobody else: beyond `window` items events are left in the logs, and
    fetched when there is room. What aged out there meanwhile is told as `Missed`.
    """

    def __init__(
        self,
        jetstream: JetStream,
        routes: Routes,
        reader: Reader,
        text: str,
        *,
        from_time: datetime | None = None,
        window: int = 16384,
    ) -> None:
        super().__init__(jetstream, routes, reader, parse(text), window)
        self._text = text
        self._from_time = from_time
        self._holder = secrets.token_hex(8)
        self._number = 0
        """Of the last differences that were taken in."""
        self._run = ""
        """Which start of the agent counted it."""
        self._heard: dict[str, tuple[int, int, bool]] = {}
        """By feed: the newest version that was told, when the feed was registered, and whether it
        joined."""
        self._marks: dict[str, int] = {}
        """How far into each site's records of feeds they go."""
        self._news: asyncio.Queue[Differences | None] = asyncio.Queue()
        self._settled = asyncio.Event()
        """Set while no difference is known to be lost."""
        self._settled.set()
        self._taken = asyncio.Event()
        """Set when differences were taken in."""
        self._sids: list[bytes] = []

    async def open(self) -> Self:
        """Ask the query. Events that are stored after this returns are delivered."""
        self._listen()
        self._connection.listen(self)
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        self._spawn(self._take_news())
        self._spawn(self._renew())
        return self

    async def close(self) -> None:
        """Stop."""
        if self._closed:
            return
        self._connection.unlisten(self)
        await super().close()
        for member in self._read:
            self._deafen(member)
        for sid in self._sids:
            self._connection.unsubscribe(sid)
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            async with asyncio.timeout(1):
                await self._call("open.query.close")

    def ack(self, item: Item) -> None:
        """Say that an item is done with."""
        raise BadSetting("only durable queries acknowledge", "Ask it with durable=….")

    def _listen(self) -> None:
        site = self._routes.site
        for key, handler in ((self.query.key, self._on_differences), ("link", self._on_link)):
            self._sids.append(self._connection.subscribe(differences_subject(site, key), handler))

    def _on_differences(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        told = read(data, Differences, "what a site told of a query")
        if told is not None:
            self._news.put_nowait(told)

    async def _take_news(self) -> None:
        """Take in differences, one after the other; None: compare the whole result."""
        while True:
            news = await self._news.get()
            if news is None or news.run != self._run or news.number > self._number + 1:
                self._settled.clear()
                await self._ask_anew()
                self._settled.set()
            elif news.number == self._number + 1:
                self._number = news.number
                self._mark(news.marks)
                for feed in news.left:
                    self._leave(feed)
                for feed in news.joined:
                    self._join(feed)
            self._taken.set()

    def _mark(self, marks: dict[str, int]) -> None:
        for site, index in marks.items():
            self._marks[site] = max(index, self._marks.get(site, 0))

    def _reask(self) -> None:
        """Differences may have been lost."""
        self._settled.clear()
        self._news.put_nowait(None)

    async def _ask_anew(self) -> None:
        """Ask for the whole result until it is told, and take in what differs."""
        marks = dict(self._marks)
        deadline = self._connection.now() + LOADING
        while True:
            try:
                now, told = await self._ask_all()
                # An agent that was just started may not have read all that it had.
                is_behind = any(told.get(site, 0) < index for site, index in marks.items())
                if not is_behind or self._connection.now() > deadline:
                    await self._compare(now, told, marks)
                    return
            except Unavailable:
                pass
            await asyncio.sleep(AGAIN)

    async def _compare(
        self, now: dict[str, Feed], told: dict[str, int], marks: dict[str, int]
    ) -> None:
        """Take in what became of feeds since the records were known up to `marks`: what was
        recorded since tells when each joined and left. `now` is the result when they were known up
        to `told`."""
        since = [
            (index, feed)
            for site in self._marks
            async for index, feed in self._recorded(site, marks.get(site, 0))
        ]
        newer = set()
        for index, feed in since:  # all at once: should it have to be tried again, none is doubled
            if index > told.get(feed.site, 0):
                newer.add(feed.id)
            if feed.removed or not self.query.matches(feed.described()):
                self._leave(feed)
            else:
                self._join(feed)
        for feed in now.values():
            self._join(feed)
        for id, line in list(self._members.items()):
            if line[-1].until is None and id not in now and id not in newer:
                await self._end(line[-1])

    async def _recorded(self, site: str, mark: int) -> AsyncIterator[tuple[int, Feed]]:
        """What was recorded of feeds of a site behind an index, with its index."""
        topic = feed_records(site)
        while True:
            try:
                _, first, latest = await self._reader.bounds(topic)
                if latest > mark:
                    async for event in self._reader.read(topic, max(first, mark + 1), latest):
                        mark = event.index
                        if (feed := read_feed(event)) is not None:
                            yield event.index, feed
                return
            except UnknownTopic:
                return  # its feeds are gone with it
            except IndexUnavailable:
                continue  # the first ones were replaced by newer versions meanwhile

    async def _ask_all(self) -> tuple[dict[str, Feed], dict[str, int]]:
        """The result, page by page, and how far the site had read the records. What changes
        meanwhile is told as well."""
        found: dict[str, Feed] = {}
        marks: dict[str, int] = {}
        after, first = "", True
        while True:
            data = await self._call("open.query.open", text=self._text, after=after)
            answer = msgspec.json.decode(data, type=QueryAnswer)
            if first:
                self._number, self._run, first = answer.number, answer.run, False
                marks = answer.marks
                self._mark(marks)
            found |= {feed.id: feed for feed in answer.feeds}
            if not answer.more:
                return found, marks
            after = answer.feeds[-1].id

    async def _begin(self) -> None:
        """The first result: with the next event of each feed, or with its history."""
        places: dict[Place, int] = {}
        result, _ = await self._ask_all()
        for feed in result.values():
            self._is_new(feed, joins=True)
            member = Member(feed, 0 if self._from_time else feed.at)
            member.since = self._from_time
            member.first_version = 0
            self._members[feed.id] = deque([member])
            if await self._enter(member) and member.place is not None and not member.by_copy:
                places[member.place] = 0
        if self._from_time is None:
            # Behind what asks the homes to tell: what they store from now on is told.
            for place in places:
                with contextlib.suppress(Unavailable, UnknownTopic):
                    places[place] = await self._homes.latest(place.owner)
        self._has_begun = True
        for member in self._read:
            if member.place in places:
                member.last = member.start = max(member.last, places[member.place])
                member.must_fill = self._from_time is not None
                self._work(member)

    def _join(self, feed: Feed) -> None:
        """A feed matches: begin behind the event that was its newest when it became what it is."""
        if not self._is_new(feed, joins=True):
            return
        line = self._members.get(feed.id)
        newest = line[-1] if line else None
        if newest is not None and newest.until is None and newest.feed.topic == feed.topic:
            if feed.version > newest.feed.version:
                self._renew_member(newest, feed)
            return
        if newest is not None and newest.until is None:  # it publishes elsewhere now
            self._spawn(self._end(newest))
        self._queue(Member(feed, feed.at))

    def _is_new(self, feed: Feed, joins: bool) -> bool:
        """Whether we have not heard yet what became of a feed in this version. The site may tell
        things twice, and an agent that starts knows less than it did."""
        now = (feed.since, feed.version, joins)
        if now <= self._heard.get(feed.id, _NOTHING):
            return False
        self._heard[feed.id] = now
        return True

    def _leave(self, feed: Feed) -> None:
        line = self._members.get(feed.id)
        if not self._is_new(feed, joins=False) or not line or line[-1].until is not None:
            return
        if feed.at < 0:
            self._spawn(self._end(line[-1]))
            return
        line[-1].until = feed.at
        self._work(line[-1])

    async def _end(self, member: Member) -> None:
        """A feed left, and nobody knows when: what it published so far was before."""
        newest = member.last  # and what its home has beyond that nobody knows while it is away
        with contextlib.suppress(Unavailable, UnknownTopic):
            newest = await self._homes.newest(member.feed.topic)
        if member.until is None:
            member.until = newest
            self._work(member)

    async def _know(self, member: Member, version: int) -> None:
        """Have the site tell what that version of a feed means, and take it in."""
        request = CheckRequest(key=self.query.key, feed=member.feed.id, version=version)
        while not member.is_over and member.until is None and member.feed.version < version:
            await self._settled.wait()
            try:
                data = await ask(self._jetstream, self._routes.site, "open.query.check", request)
            except BadSetting:  # the agent was started anew
                self._reask()
                await asyncio.sleep(AGAIN)
                continue
            except SkerryError:
                await asyncio.sleep(AGAIN)
                continue
            answer = msgspec.json.decode(data, type=CheckAnswer)
            if answer.run != self._run:
                self._reask()
                continue
            while self._number < answer.number:
                self._taken.clear()
                try:
                    await asyncio.wait_for(self._taken.wait(), TOLD)
                except TimeoutError:
                    self._reask()
            if member.until is not None:
                return
            if not self._settled.is_set():
                continue
            if answer.feed is None:
                self._reask()
                await asyncio.sleep(AGAIN)
            elif answer.feed.version >= version:
                self._is_new(answer.feed, joins=True)
                self._renew_member(member, answer.feed)

    def on_up(self) -> None:
        """The connection is back, perhaps at another site."""
        self._reask()
        for member in self._read:
            self._fill(member)

    def on_tick(self, now: float) -> None:
        """An outage that lasts too long ends the subscription."""
        down = self._connection.down_since
        if down is not None and now - down > self._connection.settings.timeout:
            self._fail(self._connection.unavailable())

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed, and what waits for its site waits in vain."""
        self._tasks.cancel()
        self._fail(Unavailable(error.what))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW)
            homes = {m.place.home for m in self._read if m.place} - {self._routes.site}
            if homes:
                await self._routes.reach(sorted(homes))
            with contextlib.suppress(SkerryError):
                data = await self._call("open.query.renew", key=self.query.key)
                number = msgspec.json.decode(data, type=int | None)
                if number is None or number > self._number:
                    self._reask()

    async def _call(self, service: str, **fields: Any) -> bytes:
        request = QueryRequest(holder=self._holder, **{"key": self.query.key, **fields})
        return await ask(self._jetstream, self._routes.site, service, request)
