"""A subscription by query: joins, leaves, and the events of exactly the feeds that match.

Theory of operation. The site's agent tells which feeds match, and from then on the differences. For
each of them this subscription listens where the engine of the home tells of the feed's events, so
that events reach it, across a link once for all who listen, without an agent or a copy between. An
event that is told so names the index of the feed's event before it: a gap shows, and what is
missing is fetched from the home's log. That one mechanism fills in what a feed published between
joining the result and being listened to, what a broken link lost, what a reader that is too slow
had to drop, and the history.

An event also names the version of its feed's metadata that it was published under. One that is
newer than what the site last told is held until the site knows that version and says whether the
feed still matches. So no event of a feed that left is handed out, whichever of the two comes first.
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
from skerry.errors import AgedOut, BadSetting, SkerryError, Unavailable, UnknownTopic
from skerry.feeds.home import Homes, Place
from skerry.log.read import Reader, stored_event
from skerry.log.route import Routes
from skerry.model.control import CheckRequest, Differences, QueryAnswer, QueryRequest
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry
from skerry.model.feeds import Feed, Joined, Left, Missed, Received
from skerry.model.names import differences_subject, feed_subject, is_feed_log
from skerry.query.language import Query, Remainder, parse

log = logging.getLogger("skerry.query")

WINDOW = 16384
"""Items that wait for their reader at the most, unless somebody says otherwise."""
RENEW = 15.0
"""Seconds between two signs of life to the agent."""
AGAIN = 0.2
"""Seconds before a home that did not answer is asked again."""

Item = Joined | Left | Received | Missed
_LAST = b"\r\nNats-Last-Sequence: "


class _Told(NamedTuple):
    """An event as the engine told it, and the index of its feed's event before it."""

    event: Event
    before: int


class _Member:
    """A feed that matches, and how far it was taken."""

    def __init__(self, feed: Feed, place: Place) -> None:
        self.feed = feed
        self.place = place
        self.last = feed.at
        """Every event up to this index was handed out, or is not meant."""
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
        self.is_gone = False
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
        window: int = WINDOW,
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
        self._members: dict[str, _Member] = {}
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._number = 0
        """Of the last differences that were taken in."""
        self._news: asyncio.Queue[Differences | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        """Set once it is known behind which events the first result begins."""
        self._room = asyncio.Event()
        self._room.set()
        self._sids: list[bytes] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: SkerryError | None = None
        self._closed = False

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that match now, as far as this subscription was told."""
        return [member.feed for member in self._members.values()]

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
            for member in self._members.values():
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
        for member in self._members.values():
            self._deafen(member)
        for sid in self._sids:
            self._connection.unsubscribe(sid)
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            async with asyncio.timeout(1):
                await self._call("open.query.close")
        self._wake()

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
            if news is None or news.number > self._number + 1:
                await self._ask_anew()
            elif news.number == self._number + 1:
                self._number = news.number
                for feed in news.left:
                    self._leave(feed)
                for feed in news.joined:
                    await self._join(feed)

    def _reask(self) -> None:
        """Differences may have been lost."""
        self._news.put_nowait(None)

    async def _ask_anew(self) -> None:
        """Ask for the whole result until it is told, and take in what differs."""
        while True:
            try:
                found = await self._ask_all()
                break
            except Unavailable:
                await asyncio.sleep(AGAIN)
        for member in list(self._members.values()):
            if member.feed.id not in found:
                self._drop(member)
        for feed in found.values():
            await self._join(feed)

    async def _ask_all(self) -> dict[str, Feed]:
        """The result, page by page. What changes meanwhile is told as well."""
        found: dict[str, Feed] = {}
        after, first = "", True
        while True:
            data = await self._call("open.query.open", text=self._text, after=after)
            answer = msgspec.json.decode(data, type=QueryAnswer)
            if first:
                self._number, first = answer.number, False
            found |= {feed.id: feed for feed in answer.feeds}
            if not answer.more:
                return found
            after = answer.feeds[-1].id

    async def _begin(self) -> None:
        """The first result: with the next event of each feed, or with its history."""
        places: dict[Place, int] = {}
        for feed in (await self._ask_all()).values():
            member = await self._admit(feed)
            if member is None:
                continue
            if self._from_time is not None:
                member.since = self._from_time
                self._fill(member)
            else:
                places[member.place] = 0
        # Behind what asks the homes to tell: what they store from now on is told.
        for place in places:
            with contextlib.suppress(Unavailable, UnknownTopic):
                places[place] = await self._homes.latest(place)
        for member in self._members.values():
            member.last = max(member.last, places.get(member.place, 0))
        self._begun.set()

    async def _join(self, feed: Feed) -> None:
        """A feed matches: begin behind the event that was its newest when it became what it is."""
        member = self._members.get(feed.id)
        if member is None:
            if (member := await self._admit(feed)) is not None:
                self._fill(member)
        elif feed.version > member.feed.version:
            if feed.topic != member.feed.topic:
                self._drop(member)
                await self._join(feed)
            else:
                self._renew_member(member, feed)

    async def _admit(self, feed: Feed) -> _Member | None:
        try:
            place = await self._homes.place(feed.topic)
        except (UnknownTopic, Unavailable) as error:
            log.warning("the feed %s cannot be followed: %s", feed.id, error)
            return None
        member = self._members[feed.id] = _Member(feed, place)
        self._renew_member(member, feed)
        self._put(Joined(feed))
        member.follower = _Follower(self, member)
        self._routes.follow(place.owner, member.follower)
        self._hear(member)
        return member

    def _renew_member(self, member: _Member, feed: Feed) -> None:
        member.feed = feed
        if self.query.needs_payload:
            remainder = self.query.given(feed.described())
            member.remainder = None if remainder.settled else remainder

    def _leave(self, feed: Feed) -> None:
        member = self._members.get(feed.id)
        if member is not None and feed.version >= member.feed.version:
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        del self._members[member.feed.id]
        self._deafen(member)
        member.is_gone = True
        if member.work is not None and member.work is not asyncio.current_task():
            member.work.cancel()
        self._put(Left(member.feed))

    # Events

    def _hear(self, member: _Member) -> None:
        if not is_feed_log(member.place.owner):
            member.work = self._spawn(self._follow(member))
            return
        subject = feed_subject(member.place.home, member.feed.topic)

        def on_event(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            self._on_event(member, head, data)

        member.sid = self._connection.subscribe(subject, on_event)

    def _deafen(self, member: _Member) -> None:
        if member.sid:
            self._connection.unsubscribe(member.sid)
            member.sid = b""
        if member.is_gone and member.follower is not None:
            self._routes.unfollow(member.place.owner, member.follower)

    def _on_event(self, member: _Member, head: bytes, data: bytes) -> None:
        event = stored_event(head, data)
        if member.is_gone or member.is_behind or event.index <= member.last:
            return
        start = head.index(_LAST) + len(_LAST)
        told = _Told(event, int(head[start : head.index(b"\r", start)]))
        if member.work is not None or not self._hand_out(member, told):
            if len(member.held) < self._window:
                member.held.append(told)
            else:
                member.must_fill = True
            self._work(member)

    def _hand_out(self, member: _Member, told: _Told) -> bool:
        """Hand an event out, or leave it in the log. False: something must be found out first."""
        event = told.event
        if told.before > member.last:
            member.must_fill = True
            member.lacks = told.before
            return False
        if event.feed_version > member.feed.version:
            return False
        if member.remainder is None or member.remainder.matches(_decoded(event.data)):
            if len(self._items) >= self._window:
                member.is_behind = True
                member.lacks = event.index
                return True
            self._put(Received(member.feed, event))
        member.last = event.index
        return True

    def _fill(self, member: _Member) -> None:
        """Fetch what the home has behind what we have."""
        member.must_fill = True
        self._work(member)

    def _work(self, member: _Member) -> None:
        if member.work is None and not self._closed and is_feed_log(member.place.owner):
            member.work = self._spawn(self._do_work(member))

    async def _do_work(self, member: _Member) -> None:
        """Fill gaps and ask for versions, until everything that waits is handed out."""
        try:
            while (member.must_fill or member.held) and not member.is_gone:
                if member.must_fill:
                    member.must_fill = False
                    if not await self._try_fill(member):
                        member.must_fill = True
                        await asyncio.sleep(AGAIN)
                        continue
                while member.held and not member.must_fill and not member.is_gone:
                    told = member.held[0]
                    if told.event.index <= member.last or member.is_behind:
                        member.held.popleft()
                    elif not self._hand_out(member, told) and not member.must_fill:
                        await self._know(member, told.event.feed_version)
        finally:
            member.work = None

    async def _try_fill(self, member: _Member) -> bool:
        """Take what the home has, as much as there is room for; False: it does not answer."""
        member.is_behind = False
        try:
            async for event in self._homes.behind(member.feed.topic, member.last, member.since):
                if 0 < member.lacks < event.index:
                    self._put(Missed(member.feed, member.lacks, event.index - 1))
                member.lacks, member.since = 0, None
                while not self._hand_out(member, _Told(event, 0)):
                    await self._know(member, event.feed_version)
                    if member.is_gone:
                        return True
                if member.is_behind:
                    return True
        except (Unavailable, UnknownTopic):
            return False
        if member.lacks > member.last:
            self._put(Missed(member.feed, member.lacks, member.lacks))
            member.last = member.lacks
        member.lacks, member.since = 0, None
        return True

    async def _know(self, member: _Member, version: int) -> None:
        """Find out whether the feed matches in that version, as soon as the site knows it."""
        request = CheckRequest(key=self.query.key, feed=member.feed.id, version=version)
        while not member.is_gone:
            try:
                data = await ask(self._jetstream, self._routes.site, "open.query.check", request)
            except BadSetting:  # the agent was started anew
                self._reask()
                await asyncio.sleep(AGAIN)
                continue
            except SkerryError:
                await asyncio.sleep(AGAIN)
                continue
            feed = msgspec.json.decode(data, type=Feed | None)
            if feed is None:
                self._drop(member)
            elif feed.version >= version:
                self._renew_member(member, feed)
            else:
                continue  # the site does not know it yet
            return

    async def _follow(self, member: _Member) -> None:
        """A feed on a topic of its own is followed like any topic."""
        topic = member.feed.topic
        await self._begun.wait()
        while not member.is_gone:
            try:
                if member.since is not None:
                    opening = self._reader.subscribe(topic, from_time=member.since)
                else:
                    latest = await self._reader.latest_index(topic)
                    start = min(member.last, latest) + 1
                    opening = self._reader.subscribe(topic, from_index=start)
                async with await opening as events:
                    async for event in events:
                        member.since = None
                        while not self._hand_out(member, _Told(event, 0)):
                            await self._know(member, event.feed_version)
                        while member.is_behind:
                            member.is_behind = False
                            await self._room.wait()
                            self._hand_out(member, _Told(event, 0))
            except AgedOut as error:
                self._put(Missed(member.feed, member.last + 1, error.first - 1))
                member.last = error.first - 1
            except Unavailable:
                await asyncio.sleep(AGAIN)
            except UnknownTopic:  # it was deleted; one that is made anew begins with index 1
                member.last = 0
                await asyncio.sleep(AGAIN)

    # What else happens

    def moved(self, member: _Member, entry: TopicEntry) -> None:
        """A feed's topic has another home."""
        if not member.is_gone and entry.home != member.place.home:
            self._deafen(member)
            member.place = Place(entry.home, entry.name)
            self._hear(member)
            self._fill(member)

    def _on_link(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        """A link is back: what was told meanwhile is lost."""
        for member in self._members.values():
            if member.place.home == data.decode():
                self._fill(member)

    def on_up(self) -> None:
        """The connection is back, perhaps at another site."""
        self._reask()
        for member in self._members.values():
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
            homes = {m.place.home for m in self._members.values()} - {self._routes.site}
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

    def __init__(self, subscription: QuerySubscription, member: _Member) -> None:
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
