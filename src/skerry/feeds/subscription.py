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
from typing import Any, NamedTuple, Self

import msgspec

from skerry.engine.answers import ask
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Listener
from skerry.errors import (
    AgedOut,
    BadSetting,
    SkerryError,
    Unavailable,
    UnknownTopic,
)
from skerry.feeds.home import Homes, Place
from skerry.log.read import Reader, stored_event
from skerry.log.route import Routes
from skerry.model.control import CheckAnswer, CheckRequest, Differences, QueryAnswer, QueryRequest
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry
from skerry.model.feeds import Feed, Joined, Left, Missed, Received
from skerry.model.names import differences_subject, feed_records, feed_subject, is_feed_log
from skerry.query.language import Query, Remainder, parse

log = logging.getLogger("skerry.query")

RENEW = 15.0
"""Seconds between two signs of life to the agent."""
TOLD = 1.0
"""Seconds to wait for differences that are on their way."""
LOADING = 10.0
"""Seconds that an agent may take to read what it knew before."""
AGAIN = 0.2
"""Seconds before a home that did not answer is asked again."""

Item = Joined | Left | Received | Missed
_NOTHING = (0, 0, False)
_LAST = b"\r\nNats-Last-Sequence: "


class _Told(NamedTuple):
    """An event as the engine told it, and the index of its feed's event before it."""

    event: Event
    before: int


class Member:
    """A feed from when it joined until it leaves, and how far it was taken. One that joins again is
    another member."""

    def __init__(self, feed: Feed, last: int) -> None:
        self.feed = feed
        self.last = last
        """Every event up to this index was handed out, or is not meant."""
        self.start = last
        """What `last` was before the first event was handed out."""
        self.first_version = feed.version
        """Events of earlier versions are not meant."""
        self.until: int | None = None
        """The last index that is meant, once it is known that the feed left."""
        self.place: Place | None = None
        """Where its topic lives; None: it has not begun yet."""
        self.by_copy = False
        """Whether it is read from a copy of its log, like any topic: no link leads to its home, or
        the log is not one that tells."""
        self.remainder: Remainder | None = None
        """What is asked of each event's payload; None: nothing."""
        self.sid = b""
        self.follower: _Follower | None = None
        self.held: deque[_Told] = deque()
        """Events that wait because a gap before them is filled, or their version is asked for."""
        self.must_fill = False
        self.since: datetime | None = None
        """Where the first filling begins, if not behind `last`."""
        self.lacks = 0
        """The first index that is known to be missing; 0: none is."""
        self.is_behind = False
        """Whether events were left in the log because the reader is slow."""
        self.is_over = False
        self.work: asyncio.Task[None] | None = None


class QuerySubscription(Listener):
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
        if not 1 <= window <= 1_000_000:
            raise BadSetting(f"a window is 1 to 1000000 items, not {window!r}")
        self.query: Query = parse(text)
        self._text = text
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._routes = routes
        self._reader = reader
        self._homes = Homes(jetstream, routes, reader)
        self._from_time = from_time
        self._window = window
        self._holder = secrets.token_hex(8)
        self._members: dict[str, deque[Member]] = {}
        """By feed: the member that is read, and behind it those that joined since."""
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._number = 0
        """Of the last differences that were taken in."""
        self._run = ""
        """Which start of the agent counted it."""
        self._heard: dict[str, tuple[int, int, bool]] = {}
        """By feed: the newest version that was told, when the feed was registered, and whether it
        joined."""
        self._has_begun = False
        """Whether the first result is known, and from where on each feed is meant."""
        self._marks: dict[str, int] = {}
        """How far into each site's records of feeds they go."""
        self._news: asyncio.Queue[Differences | None] = asyncio.Queue()
        self._settled = asyncio.Event()
        """Set while no difference is known to be lost."""
        self._settled.set()
        self._taken = asyncio.Event()
        """Set when differences were taken in."""
        self._room = asyncio.Event()
        self._room.set()
        self._sids: list[bytes] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: SkerryError | None = None
        self._closed = False

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that match now, as far as this subscription was told."""
        return [line[-1].feed for line in self._members.values() if line[-1].until is None]

    @property
    def _read(self) -> list[Member]:
        """The members that are read now."""
        return [line[0] for line in self._members.values()]

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if len(self._items) == self._window // 2:  # there is room again
            self._room.set()
            for member in self._read:
                if member.is_behind:
                    self._fill(member)
        return item

    async def close(self) -> None:
        """Stop."""
        if self._closed:
            return
        self._closed = True
        self._connection.unlisten(self)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self._read:
            self._deafen(member)
        for sid in self._sids:
            self._connection.unsubscribe(sid)
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            async with asyncio.timeout(1):
                await self._call("open.query.close")
        self._wake()

    def ack(self, item: Item) -> None:
        """Say that an item is done with."""
        raise BadSetting("only durable queries acknowledge", "Ask it with durable=….")

    # What the agent tells

    def _listen(self) -> None:
        site = self._routes.site
        for key, handler in ((self.query.key, self._on_differences), ("link", self._on_link)):
            self._sids.append(self._connection.subscribe(differences_subject(site, key), handler))

    def _on_differences(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        self._news.put_nowait(msgspec.json.decode(data, type=Differences))

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
        try:
            _, first, latest = await self._reader.bounds(topic)
            if latest > mark:
                async for event in self._reader.read(topic, max(first, mark + 1), latest):
                    yield event.index, msgspec.json.decode(event.data, type=Feed)
        except UnknownTopic:
            return  # its feeds are gone with it

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
                    places[place] = await self._homes.latest(place)
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

    def _queue(self, member: Member) -> None:
        """Begin with a member once earlier ones of its feed are over."""
        line = self._members.setdefault(member.feed.id, deque())
        line.append(member)
        if len(line) == 1:
            self._spawn(self._enter_and_fill(member))

    async def _enter_and_fill(self, member: Member) -> None:
        if await self._enter(member):
            self._fill(member)

    async def _enter(self, member: Member) -> bool:
        """Tell that a feed joined, and listen to it. False: its topic is gone."""
        while member.place is None:
            try:
                member.place = await self._homes.place(member.feed.topic)
            except UnknownTopic as error:
                log.warning("the feed %s cannot be followed: %s", member.feed.id, error)
                self._remove(member)
                return False
            except Unavailable:
                await asyncio.sleep(AGAIN)
        if member.is_over:
            return False
        home = member.place.home
        member.by_copy = not is_feed_log(member.place.owner) or (
            home != self._routes.site and home in await self._routes.reach([home])
        )
        if member.by_copy and not self._has_begun and member.since is None:
            member.last = member.start = await self._reader.latest_index(member.feed.topic)
        self._renew_member(member, member.feed)
        self._put(Joined(member.feed))
        member.follower = _Follower(self, member)
        self._routes.follow(member.place.owner, member.follower)
        self._hear(member)
        return True

    def _renew_member(self, member: Member, feed: Feed) -> None:
        member.feed = feed
        if self.query.needs_payload:
            remainder = self.query.given(feed.described())
            member.remainder = None if remainder.settled else remainder

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

    def _drop(self, member: Member) -> None:
        """All that was meant of a member was handed out."""
        self._deafen(member)
        if member.follower is not None and member.place is not None:
            self._routes.unfollow(member.place.owner, member.follower)
        self._put(Left(member.feed))
        self._remove(member)

    def _remove(self, member: Member) -> None:
        member.is_over = True
        line = self._members[member.feed.id]
        line.popleft()
        if line:
            self._spawn(self._enter_and_fill(line[0]))
        else:
            del self._members[member.feed.id]

    # Events

    def _hear(self, member: Member) -> None:
        assert member.place is not None
        if member.by_copy:
            member.work = self._spawn(self._follow(member))
            return
        subject = feed_subject(member.place.home, member.feed.topic)

        def on_event(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            self._on_event(member, head, data)

        member.sid = self._connection.subscribe(subject, on_event)

    def _deafen(self, member: Member) -> None:
        if member.sid:
            self._connection.unsubscribe(member.sid)
            member.sid = b""

    def _on_event(self, member: Member, head: bytes, data: bytes) -> None:
        event = stored_event(head, data)
        if member.is_over or member.is_behind or (self._has_begun and event.index <= member.last):
            return
        start = head.index(_LAST) + len(_LAST)
        told = _Told(event, int(head[start : head.index(b"\r", start)]))
        waits = member.work is not None or not self._has_begun
        if waits or not self._hand_out(member, told):
            if len(member.held) < self._window:
                member.held.append(told)
            else:
                member.must_fill = True
            self._work(member)

    def _hand_out(self, member: Member, told: _Told) -> bool:
        """Hand an event out, or leave it in the log. False: something must be found out first."""
        event = told.event
        if member.until is not None and event.index > member.until:
            return True
        if told.before > member.last:
            member.must_fill = True
            member.lacks = told.before
            return False
        if member.until is None and event.feed_version > member.feed.version:
            return False
        if 0 < event.feed_version < member.first_version:
            member.last = event.index
            return True
        if member.remainder is None or member.remainder.matches(_decoded(event.data)):
            if len(self._items) >= self._window:
                member.is_behind = True
                member.lacks = event.index
                return True
            self._put(Received(member.feed, event))
        member.last = event.index
        return True

    def _fill(self, member: Member) -> None:
        """Fetch what the home has behind what we have."""
        member.must_fill = True
        self._work(member)

    def _work(self, member: Member) -> None:
        if self._closed or not self._has_begun or member.place is None or member.is_over:
            return
        if member.by_copy:
            if member.until is not None and member.last >= member.until and member.work:
                member.work.cancel()
                self._drop(member)
        elif member.work is None:
            member.work = self._spawn(self._do_work(member))

    async def _do_work(self, member: Member) -> None:
        """Fill gaps and ask for versions, until everything that waits is handed out."""
        try:
            while not member.is_over:
                if member.until is not None:
                    member.must_fill = member.last < member.until
                if member.must_fill:
                    member.must_fill = False
                    if not await self._try_fill(member):
                        member.must_fill = True
                        await asyncio.sleep(AGAIN)
                        continue
                    if member.is_behind:
                        return
                while member.held and not member.must_fill:
                    told = member.held[0]
                    if (
                        told.event.index <= member.last
                        or member.is_behind
                        or self._hand_out(member, told)
                    ):
                        member.held.popleft()
                    elif not member.must_fill:
                        await self._know(member, told.event.feed_version)
                if member.until is not None and not member.must_fill and not member.is_behind:
                    self._drop(member)
                elif not member.must_fill and not member.held:
                    return
        finally:
            member.work = None

    async def _try_fill(self, member: Member) -> bool:
        """Take what the home has, as much as there is room for; False: it does not answer."""
        member.is_behind = False
        try:
            async for event in self._homes.behind(member.feed.topic, member.last, member.since):
                if 0 < member.lacks < event.index:
                    self._put(Missed(member.feed, member.lacks, event.index - 1))
                member.lacks, member.since = 0, None
                while not self._hand_out(member, _Told(event, 0)):
                    await self._know(member, event.feed_version)
                if member.is_behind:
                    return True
                if member.until is not None and event.index >= member.until:
                    break
        except (Unavailable, UnknownTopic):
            return False
        if member.lacks > member.last:
            self._put(Missed(member.feed, member.lacks, member.lacks))
            member.last = member.lacks
        member.lacks, member.since = 0, None
        if member.until is not None:  # there is no more of it, or it aged out
            member.last = max(member.last, member.until)
        return True

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

    async def _follow(self, member: Member) -> None:
        """A feed on a topic of its own is followed like any topic."""
        topic = member.feed.topic
        while not member.is_over:
            try:
                if member.since is not None:
                    opening = self._reader.subscribe(topic, from_time=member.since)
                else:
                    latest = await self._reader.latest_index(topic)
                    start = min(member.last, latest) + 1
                    opening = self._reader.subscribe(topic, from_index=start)
                async with await opening as events:
                    async for event in events:
                        await self._follow_one(member, event)
                        if member.until is not None and event.index >= member.until:
                            break
            except AgedOut as error:
                self._put(Missed(member.feed, member.last + 1, error.first - 1))
                member.last = error.first - 1
            except UnknownTopic:
                member.until = member.last
            except Unavailable:
                await asyncio.sleep(AGAIN)
            if member.until is not None and member.last >= member.until:
                self._drop(member)

    async def _follow_one(self, member: Member, event: Event) -> None:
        member.since = None
        while not self._hand_out(member, _Told(event, 0)):
            await self._know(member, event.feed_version)
        while member.is_behind:
            member.is_behind = False
            await self._room.wait()
            self._hand_out(member, _Told(event, 0))

    # What else happens

    def moved(self, member: Member, entry: TopicEntry) -> None:
        """A feed's topic has another home."""
        here = member.place.home if member.place else entry.home
        if not member.is_over and entry.home != here and not member.by_copy:
            self._deafen(member)
            member.place = Place(entry.home, entry.name)
            self._hear(member)
            self._fill(member)

    def _on_link(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        """A link is back: what was told meanwhile is lost."""
        for member in self._read:
            if member.place is not None and member.place.home == data.decode():
                self._fill(member)

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
        """The client was closed."""
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

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, SkerryError):
                log.error("a subscription by query failed", exc_info=error)
                error = SkerryError(f"the subscription failed: {error!r}")
            self._fail(error)

    def _put(self, item: Item) -> None:
        self._items.append(item)
        if len(self._items) >= self._window:
            self._room.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: SkerryError) -> None:
        if self._error is None:
            self._error = error
            self._wake()


class _Follower:
    """Told when a member's topic moves."""

    def __init__(self, subscription: QuerySubscription, member: Member) -> None:
        self._subscription = subscription
        self._member = member

    def on_route(self, entry: TopicEntry) -> None:
        """It moved."""
        self._subscription.moved(self._member, entry)

    def on_gone(self) -> None:
        """It was deleted; the feed may go on elsewhere."""


def _decoded(data: bytes) -> Any:
    """A payload as JSON or MsgPack says; None: it is neither."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        return None
