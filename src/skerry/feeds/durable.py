"""A durable query: it goes on where it was, also after a crash.

What was acknowledged is written down at the site, a moment later: which feeds matched, how far each
was read, and how far the records of feeds were known. When the query is opened again, the versions
of each feed that were recorded since tell in which of them it matched; events name the version they
were published under. So a feed that left, or left and came back, while nobody read gives exactly
what it published while it matched, as far as versions are kept (`skerry.feeds.site`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

import msgspec

from skerry.engine.answers import ask
from skerry.errors import BadSetting, IndexUnavailable, SkerryError
from skerry.feeds.items import Item
from skerry.feeds.reading import Member
from skerry.feeds.subscription import QuerySubscription
from skerry.log.append import Publisher
from skerry.model.control import TopicRequest
from skerry.model.feeds import Feed, Left, Received
from skerry.model.names import check_subscription, feed_queries
from skerry.model.records import read

SAVE = 0.5
"""Seconds between two writings of a position."""


class Place(msgspec.Struct, array_like=True):
    """How far one feed was read."""

    feed: Feed
    last: int
    until: int | None = None
    """The last index that is meant, if it left."""


class State(msgspec.Struct, kw_only=True):
    """Where a durable query is."""

    text: str
    marks: dict[str, int]
    places: list[Place]


class DurableQuery(QuerySubscription):
    """Acknowledge what is done with, `ack(item)`: what is not may come again after a crash. One
    reader at a time."""

    def __init__(self, *arguments: Any, name: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.name = check_subscription(name)
        self._acked: dict[str, int] = {}
        self._left: dict[str, deque[Member]] = {}
        """Members that left, until that is acknowledged: some of their events may not be."""
        self._dirty = asyncio.Event()
        self._publisher: Publisher | None = None
        self._may_save = False
        """Whether what was written down before is taken in; else it would be overwritten."""

    def ack(self, item: Item) -> None:
        """Say that an item, and those of its feed before it, are done with."""
        id = item.feed.id
        left = self._left.get(id)
        if isinstance(item, Received):
            index = self._acked[id] = max(item.event.index, self._acked.get(id, 0))
            while left and (left[0].until or 0) < index:
                left.popleft()
        elif isinstance(item, Left) and left:
            left.popleft()
        if left is not None and not left:
            del self._left[id]
        self._dirty.set()

    async def close(self) -> None:
        """Stop, and write down where it is."""
        if self._closed:
            return
        if self._may_save:
            with contextlib.suppress(SkerryError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._save()
        if self._publisher is not None:
            self._publisher.close()
        await super().close()

    async def _begin(self) -> None:
        topic = feed_queries(self._routes.site)
        request = TopicRequest(topic, {"keep_last": 1})
        await ask(self._jetstream, self._routes.site, "open.topic.create", request)
        self._publisher = Publisher(self._connection, self._routes, topic)
        state = await self._stored(f"{topic}/{self.name}")
        if state is None:
            await super()._begin()
        else:
            await self._resume(state)
        self._may_save = True
        self._dirty.set()
        self._spawn(self._keep())

    async def _stored(self, topic: str) -> State | None:
        latest = await self._reader.latest_index(topic)
        if not latest:
            return None
        with contextlib.suppress(IndexUnavailable):
            event = await self._reader.get(topic, latest)
            state = read(event.data, State, f"{topic} #{latest}")
            if state is None:
                return None
            if state.text != self.query.text:
                raise BadSetting(
                    f"the durable query {self.name!r} asks something else: {state.text}",
                    "Choose another name, or ask the same.",
                )
            return state
        return None

    async def _resume(self, state: State) -> None:
        self._has_begun = True
        self._settled.clear()
        for place in state.places:
            self._is_new(place.feed, joins=True)
            member = Member(place.feed, place.last)
            member.first_version = 0  # what was not acknowledged may be of earlier ones
            member.until = place.until
            self._queue(member)
        now, told = await self._ask_all()
        await self._compare(now, told, state.marks)
        self._settled.set()

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            await self._save()
            await asyncio.sleep(SAVE)

    async def _save(self) -> None:
        assert self._publisher is not None
        self._dirty.clear()
        lines = {id: [*self._left.get(id, ()), *line] for id, line in self._members.items()}
        lines |= {id: list(left) for id, left in self._left.items() if id not in lines}
        places = [
            Place(member.feed, max(self._acked.get(id, 0), member.start), member.until)
            for id, line in lines.items()
            for member in line
        ]
        state = State(text=self.query.text, marks=self._marks, places=places)
        topic = f"{feed_queries(self._routes.site)}/{self.name}"
        await (await self._publisher.send(msgspec.json.encode(state), topic=topic))

    def _drop(self, member: Member) -> None:
        self._left.setdefault(member.feed.id, deque()).append(member)
        super()._drop(member)
