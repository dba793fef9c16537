"""What the home of a feed's topic holds: asked directly, across a link if it must be.

A copy at the own site would bring all feeds of a log across the link; asking brings one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import Unavailable
from skerry.log.home import check_home
from skerry.log.read import Reader, stored_event
from skerry.log.route import Routes
from skerry.model.event import Event, status_of
from skerry.model.fabric import TopicEntry
from skerry.model.names import stored_subject, stream_of

BATCH = 256
"""Events that are asked for at a time."""
NO_MORE, NOTHING = 204, 404
ANSWER = 2.0
"""Seconds without an answer after which the home counts as away."""

AGAIN = 0.1
"""Seconds after which a home that is not the home any more is looked for again."""

_numbers = itertools.count()


class Place(NamedTuple):
    """Where a feed's topic lives: its home, the topic whose log holds it, and that log's stream."""

    home: str
    owner: str
    stream: str
    in_fabric: bool = False

    @classmethod
    def of(cls, entry: TopicEntry) -> Place:
        """The place that the directory names."""
        return cls(entry.home, entry.name, entry.stream, in_fabric=True)


class Homes:
    """Asks homes. What asks for events raises `Unavailable` if the home does not answer, or is not
    the home any more: ask again."""

    def __init__(self, jetstream: JetStream, routes: Routes, reader: Reader) -> None:
        self._connection = jetstream.connection
        self._routes = routes
        self._reader = reader

    async def place(self, topic: str) -> Place:
        """Where a topic is. Raises `UnknownTopic`."""
        entry = await self._routes.find(topic)
        if entry is not None:
            return Place.of(entry)
        owner = await self._reader.owner(topic)
        return Place(self._routes.site, owner, stream_of(owner))

    async def newest(self, topic: str) -> int:
        """The index of a feed's newest event; 0: it has none."""
        return await self._newest(topic, stored_subject(topic))

    async def latest(self, owner: str) -> int:
        """The newest index of a whole log."""
        subject = stored_subject(owner)
        return await self._newest(owner, subject, f"{subject}.>")

    async def _newest(self, topic: str, *subjects: str) -> int:
        """The same of some subjects. The topic may just have another home: look for that first."""
        deadline = self._connection.now() + ANSWER
        while True:
            place = await self.place(topic)
            found = 0
            try:
                for asked in subjects:
                    async for event in self._get(place, {"last_by_subj": asked}):
                        found = max(found, event.index)
                await self._check(place)
                return found
            except Unavailable:
                if self._connection.now() > deadline:
                    raise
            await asyncio.sleep(AGAIN)

    async def behind(
        self, topic: str, index: int, since: datetime | None = None
    ) -> AsyncIterator[Event]:
        """The events of a feed behind `index`, or from a time on, up to its newest."""
        place = await self.place(topic)
        subject = stored_subject(topic)
        body: dict[str, Any] = {"next_by_subj": subject, "batch": BATCH}
        while True:
            if since is None:
                body["seq"] = index + 1
            else:
                body["start_time"] = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
            count = 0
            async for event in self._get(place, body):
                yield event
                count, index = count + 1, event.index
            if count < BATCH:
                await self._check(place)
                return
            since = None
            body.pop("start_time", None)

    async def _check(self, place: Place) -> None:
        if place.in_fabric:
            await check_home(self._connection, place.home, place.owner, place.stream)

    async def _get(self, place: Place, body: dict[str, Any]) -> AsyncIterator[Event]:
        connection = self._connection
        here = place.home == self._routes.site
        api = "$JS.API." if here else f"$JS.{place.home}.API."
        inbox = f"{connection.inbox}.g.{next(_numbers)}"
        answers: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        sid = connection.subscribe(inbox, lambda s, r, head, data: answers.put_nowait((head, data)))
        data = msgspec.json.encode(body)
        subject = f"{api}DIRECT.GET.{place.stream}"
        try:
            if not here:
                await self._routes.reach([place.home])
            connection.publish(subject, data, reply=inbox)
            while True:
                async with asyncio.timeout(ANSWER):
                    head, data = await answers.get()
                status = status_of(head)
                if status in (NO_MORE, NOTHING):
                    return
                if status:
                    raise Unavailable(f"site {place.home} does not answer for {place.owner}")
                yield stored_event(head, data)
                if "batch" not in body:
                    return
        except (Down, TimeoutError):
            raise Unavailable(f"site {place.home} does not answer for {place.owner}") from None
        finally:
            connection.unsubscribe(sid)
