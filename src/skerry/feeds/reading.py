"""How feeds that match are read: from where the engine tells of their events, and from their log.

See `skerry.feeds.subscription` for the theory. What decides that a feed joined or left, and what a
version of it means, is there; here is how far each was read, and what is handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.errors import AgedOut, Unavailable, UnknownTopic
from skerry.feeds.home import Homes, Place
from skerry.feeds.items import Items
from skerry.log.read import Reader, stored_event
from skerry.log.route import Routes
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry
from skerry.model.feeds import Feed, Joined, Left, Missed, Received
from skerry.model.names import feed_subject, is_feed_log
from skerry.query.language import Query, Remainder

log = logging.getLogger("skerry.query")

AGAIN = 0.2
"""Seconds before a home that did not answer is asked again."""
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


class Reading(Items):
    """Members, each read in the order of its log."""

    def __init__(
        self, jetstream: JetStream, routes: Routes, reader: Reader, query: Query, window: int
    ) -> None:
        super().__init__(window)
        self.query = query
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._routes = routes
        self._reader = reader
        self._homes = Homes(jetstream, routes, reader)
        self._members: dict[str, deque[Member]] = {}
        """By feed: the member that is read, and behind it those that joined since."""
        self._has_begun = False
        """Whether the first result is known, and from where on each feed is meant."""

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that match now, as far as this subscription was told."""
        return [line[-1].feed for line in self._members.values() if line[-1].until is None]

    @property
    def _read(self) -> list[Member]:
        """The members that are read now."""
        return [line[0] for line in self._members.values()]

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
        until = member.until  # were it set while we ask, what it means may come behind the answer
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
        if until is not None:  # there is no more of it, or it aged out
            member.last = max(member.last, until)
        return True

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

    def moved(self, member: Member, entry: TopicEntry) -> None:
        """A feed's topic has another home."""
        here = member.place.home if member.place else entry.home
        if not member.is_over and entry.home != here and not member.by_copy:
            self._deafen(member)
            member.place = Place.of(entry)
            self._hear(member)
            self._fill(member)

    def _on_link(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        """A link is back: what was told meanwhile is lost."""
        for member in self._read:
            if member.place is not None and member.place.home == data.decode():
                self._fill(member)

    def _has_room(self) -> None:
        for member in self._read:
            if member.is_behind:
                self._fill(member)

    async def _know(self, member: Member, version: int) -> None:
        """Find out what that version of a feed means, and take it in."""
        raise NotImplementedError


class _Follower:
    """Told when a member's topic moves."""

    def __init__(self, subscription: Reading, member: Member) -> None:
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
