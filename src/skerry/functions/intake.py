"""Reads a log for a function: every event that cannot be lost any more, in order.

It reads at the topic's home. Only there a log is what it is; a copy may still be of another
history. When the topic has another home, or other replicas, what was read and not handed on is
dropped, and read anew at the home of that epoch. Where a topic has replicas, an event is handed on
once so many of them hold it that any home which is elected holds it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from skerry.engine.link import Down
from skerry.engine.wire import Listener
from skerry.errors import AgedOut, SkerryError, UnknownTopic
from skerry.functions.access import Access, epoch_of, home_stream, still
from skerry.functions.journal import Position
from skerry.log.follow import Start
from skerry.log.frames import new_id
from skerry.log.live import LiveSubscription
from skerry.log.reports import Reports
from skerry.log.topics import unknown_topic
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry

log = logging.getLogger("skerry.functions")

WINDOW = 4096
WINDOW_BYTES = 4 * 1024 * 1024
"""What is read ahead at the most."""
BATCH = 512
"""Events that are handed on at a time."""
EVERY = 0.002
"""Seconds between two reports of a replica at the least."""
PAUSE = 0.2
"""Seconds before a home that is away is tried again."""


class Tail(LiveSubscription):
    """A log from some place on, in batches, as far as filters of the engine let it through."""

    def __init__(self, *arguments: Any, subjects: tuple[str, ...], **options: Any) -> None:
        super().__init__(*arguments, window=WINDOW, window_bytes=WINDOW_BYTES, **options)
        self._subjects = list(subjects)
        if subjects:
            self._whole = False

    def _filters(self) -> list[str]:
        return self._subjects

    @property
    def ahead(self) -> int:
        """Events that are there and were not taken yet, about."""
        return len(self._held) + self.pending

    async def batch(self) -> list[Event]:
        """The next events, one at least."""
        await self._wait()
        held = self._held
        events = [held.popleft() for _ in range(min(len(held), BATCH))]
        self._ask()
        return events


class Intake(Listener):
    """The events of one log from `position` on; without one, from the time `since` on.

    `told` is called with what is waited for, and with an empty text when it goes on; `missed` with
    what cannot be read any more.
    """

    def __init__(
        self,
        access: Access,
        topic: str,
        subjects: tuple[str, ...],
        position: Position,
        since: int,
        told: Callable[[str], None],
        missed: Callable[[str], None],
    ) -> None:
        self.position = position
        """Up to here events were handed on."""
        self._access = access
        self._topic = topic
        self._subjects = subjects
        self._since = since
        self._told = told
        self._missed = missed
        self._changed = asyncio.Event()
        self._gone = False
        self._news = asyncio.Event()
        self._reports = Reports(
            access.connection, access.routes, new_id(), self._news.set, self._refused
        )
        self._refusal: SkerryError | None = None
        self._tail: Tail | None = None
        self._alone = False
        self._unconfirmed = 0

    @property
    def ahead(self) -> int:
        """Events that are there and were not handed on yet, about."""
        return self._unconfirmed + (self._tail.ahead if self._tail is not None else 0)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Events, many at a time. Raises `UnknownTopic` once the topic is deleted."""
        access = self._access
        entry = await access.routes.find(self._topic)
        if entry is not None:
            access.routes.follow(entry.name, self)
        access.connection.listen(self)
        try:
            while True:
                if self._gone:
                    raise unknown_topic(self._topic)
                self._changed.clear()
                entry = await access.routes.find(self._topic)
                self._alone = entry is None
                async for events in self._of_epoch(entry):
                    yield events
        finally:
            access.connection.unlisten(self)
            if entry is not None:
                access.routes.unfollow(entry.name, self)
            self._reports.pause()
            self._reports.close()

    async def _of_epoch(self, entry: TopicEntry | None) -> AsyncGenerator[list[Event], None]:
        """Events as long as the entry stays what it is; ends when it changes."""
        replicated = entry is not None and len(entry.members) > 1
        self._reports.clear()
        self._refusal = None
        self._unconfirmed = 0
        self._tail = tail = await self._unless_changed(self._open(entry))
        if tail is None:
            return
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(tail.close)
            while True:
                events = await self._unless_changed(tail.batch())
                if events is None:
                    return
                while events:
                    count = self._unconfirmed = len(events)
                    if entry is not None and replicated:
                        safe = await self._unless_changed(
                            self._confirmed(entry, events[0].index, events[-1].index)
                        )
                        if safe is None:
                            return
                        count = bisect_right(events, safe, key=lambda event: event.index)
                    self.position = Position(events[count - 1].index, epoch_of(entry))
                    yield events[:count]
                    events = events[count:]
                    self._unconfirmed = len(events)

    async def _unless_changed(self, work: Any) -> Any:
        """What `work` returns; None if the entry changes first, or the home is away for now."""
        task = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((task, changed), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return None
            try:
                return task.result()
            except AgedOut as error:
                self._missed(error.what)
                self.position = Position(error.first - 1, self.position.epoch)
                return None
            except (SkerryError, Down, TimeoutError) as error:
                if isinstance(error, UnknownTopic) and self._alone:
                    raise  # in a fabric it is the directory that knows
                self._told(error.what if isinstance(error, SkerryError) else "no answer")
                await asyncio.sleep(PAUSE)
                return None
        finally:
            changed.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    left = await task
                    if isinstance(left, Tail):
                        await left.close()

    async def _open(self, entry: TopicEntry | None) -> Tail:
        """Begin to read behind the position."""
        access, position = self._access, self.position
        await access.reach(entry)
        state = (await access.stream(self._topic, entry))["state"]
        first, last = max(int(state["first_seq"]), 1), int(state["last_seq"])
        if position == Position() and self._since:
            start = Start(time=datetime.fromtimestamp(self._since / 1e9, UTC))
        else:
            index = min(still(position, entry), last)
            if index < position.index:
                self._missed(f"events {index + 1} to {position.index} of {self._topic} are others")
            if index + 1 < first and last:
                if position.index:
                    self._missed(f"events {index + 1} to {first - 1} of {self._topic} aged out")
                index = first - 1
            self.position = position = Position(index, epoch_of(entry))
            start = Start(index=index + 1)
        tail = Tail(
            access.at_home(entry),
            self._topic,
            self._topic,
            start,
            subjects=self._subjects,
            stream=home_stream(self._topic, entry),
        )
        await tail.open()
        self._told("")
        return tail

    async def _confirmed(self, entry: TopicEntry, least: int, last: int) -> int:
        """The last index that cannot be lost, once that is `least` or more."""
        reports = self._reports
        while True:
            self._news.clear()
            if self._refusal is not None:
                raise self._refusal
            if reports.is_due(self._access.connection.now()):
                reports.reach(entry, EVERY)
            if (safe := reports.confirmed(entry, last)) >= least:
                self._told("")
                return safe
            try:
                async with asyncio.timeout(1.0):
                    await self._news.wait()
            except TimeoutError:
                self._told(f"too few replicas of {self._topic} have its newest events")

    def _refused(self, error: SkerryError) -> None:
        self._refusal = error
        self._news.set()

    # What changes

    def on_up(self) -> None:
        """Nobody tells us anything at the new connection yet."""
        self._reports.begin_anew()
        self._news.set()

    def on_route(self, entry: TopicEntry) -> None:
        """The topic has another home, or other replicas."""
        self._reports.change()
        self._changed.set()

    def on_gone(self) -> None:
        """The topic was deleted."""
        self._gone = True
        self._changed.set()
