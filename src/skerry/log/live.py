"""A live subscription: it remembers its own place.

Its consumer at the engine is a throw-away. When the engine restarts or the consumer is gone, the
subscription makes another one at the next index, so that nothing is missed or doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from skerry.engine.link import Down
from skerry.engine.pull import NANO
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import AgedOut, SkerryError, UnknownTopic
from skerry.log.follow import Start, Subscription
from skerry.log.topics import unknown_topic
from skerry.model.event import Event, index_of, parse_headers, timestamp_of

log = logging.getLogger("skerry.subscription")

WINDOW = 16384
"""Events that a live subscription holds at the most if nobody says otherwise; bytes are bounded as
well, at 32 MB. With 1024 the engine has to wait for the reader's next request, and reading is a
fifth slower (measured)."""

RECENT = 16384
"""Events of which a subscription in a fabric remembers that it took them: about 1.5 MB."""
CATCH_UP = 0.1
CATCH_UP_MOST = 2.0
"""Seconds between two looks whether a log has come to where a reader is, at first and at most."""

IDLE_CONSUMER = 60.0
"""Seconds after which the engine forgets the consumer of a reader that vanished."""


class Compared(NamedTuple):
    """An event that was taken, by its place among others, and the one that a log has there."""

    place: int
    is_same: bool


class LiveSubscription(Subscription):
    """Every event once, in order, from where it began."""

    def __init__(self, *arguments: Any, window: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, window=WINDOW if window is None else window, **options)
        self._position = 0
        self._placed = False
        self._bounded = False
        self._suspects: list[int] = []
        self._held_back: list[tuple[list[Event], int]] = []
        self._checking: asyncio.Task[None] | None = None
        self._recent: deque[list[bytes]] = deque()
        self._remembered = 0
        """What was taken last, by the engine's reply subjects: they tell index and time."""

    async def drain(self, end: int) -> AsyncGenerator[Event, None]:
        """Events up to index `end`, as far as the log still has them; then stop."""
        self._bounded = True
        async for event in self:
            if event.index <= end:
                yield event
            if event.index >= end:
                return

    async def close(self) -> None:
        """Stop."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        if self._consumer and not self._closed:
            # If this does not arrive, the engine forgets the consumer by itself.
            with contextlib.suppress(Down):
                prefix = self._jetstream.prefix
                self._connection.publish(f"{prefix}CONSUMER.DELETE.{self._stream}.{self._consumer}")
        await super().close()

    def _is_over(self) -> bool:
        return self._bounded and not self.pending and not self._held_back

    def _is_bounded(self) -> bool:
        return self._bounded

    def on_down(self) -> None:
        """The connection is lost, and with it what was under way. What the consumer still sends to
        the next connection begins behind that."""
        super().on_down()
        self._pull.forget()

    def _take(self, events: list[Event], size: int, pending: int) -> None:
        if events[0].index <= self._position:  # from before a repair
            events = [event for event in events if event.index > self._position]
            if not events:
                return
        self.pending = pending
        if self._whole and events[-1].index != self._position + len(events):
            self._suspect(events)
        self._position = events[-1].index
        if self._settle is not None:
            self._remember(events)
        if self._checking is None:
            self._hold(events, size)
        else:
            self._held_back.append((events, size))

    def _remember(self, events: list[Event]) -> None:
        recent = self._recent
        recent.append([event.reply for event in events])
        self._remembered += len(events)
        while self._remembered - len(recent[0]) >= RECENT:
            self._remembered -= len(recent.popleft())

    def _suspect(self, events: list[Event]) -> None:
        """Note where indexes were skipped, and find out why."""
        last = self._position
        for event in events:
            if event.index != last + 1:
                self._suspects.append(last + 1)
            last = event.index
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_gap())

    async def _check_gap(self) -> None:
        """Indexes were skipped: by events whose lifespan is over, or by events that aged out
        unread? Hand nothing on before that is known. For a sub-topic skipped indexes are the
        rule, and the log cannot tell what would have matched."""
        try:
            info = await self._info()
            first = max(int(info["state"]["first_seq"]), 1)
            keeps_last = info["config"].get("max_msgs_per_subject", -1) > 0
            if not keeps_last and first > (missing := min(self._suspects)):
                raise AgedOut(
                    f"events from {missing} to {first - 1} of {self.topic} aged out before this "
                    "subscription read them",
                    f"Subscribe again from index {first}; read faster, or keep more events.",
                    first,
                )
        except SkerryError as error:
            self._fail(error)
        else:
            self._suspects.clear()
            held_back, self._held_back = self._held_back, []
            for events, size in held_back:
                self._hold(events, size)
        finally:
            self._checking = None

    async def _check_place(self) -> None:
        """The log here may have been replaced, or be another site's: if the last events taken are
        not in it, because they were lost with a home before they counted, go back to where both
        agree. What was handed out meanwhile is not taken back; what took its place follows.

        An index without an event says nothing: that may have aged out. And whether an event is lost
        that is beyond the log's end, shows only when the log has come so far."""
        taken = [reply for batch in self._recent for reply in batch]
        wait = CATCH_UP
        while taken:
            with contextlib.suppress(UnknownTopic):
                info = await self._jetstream.stream(self._stream)
                last = info["state"]["last_seq"] if info else 0
                there = [reply for reply in taken if index_of(reply) <= last]
                newest = await self._compare(there)
                if newest is not None and not newest.is_same:
                    await self._go_back(taken, newest.place)
                    return
                if len(there) == len(taken):
                    return
            await asyncio.sleep(wait)
            wait = min(2 * wait, CATCH_UP_MOST)
            if self._settle is not None:
                await self._settle()  # it is still wanted; says so if the topic is gone for good

    async def _go_back(self, taken: list[bytes], end: int) -> None:
        """From `end` on the log has other events: find where that begins."""
        low, agreed = 0, -1
        while low < end:
            middle = (low + end) // 2
            newest = await self._compare(taken[low : middle + 1])
            if newest is not None and not newest.is_same:
                end = low + newest.place
                continue
            if newest is not None:
                agreed = low + newest.place
            low = middle + 1
        self._position = index_of(taken[agreed]) if agreed >= 0 else index_of(taken[0]) - 1
        log.warning(
            "events of %s behind index %d were lost with their home; reading on from there",
            self.topic,
            self._position,
        )
        self._recent.clear()
        self._remembered = 0

    async def _compare(self, taken: list[bytes]) -> Compared | None:
        """Compare the newest of `taken` in whose place the log has an event; None: it has none."""
        end, size = len(taken), 1
        while end:
            begin = max(end - size, 0)
            found = await asyncio.gather(*map(self._holds, taken[begin:end]))
            for place in range(end - begin - 1, -1, -1):
                if (is_same := found[place]) is not None:
                    return Compared(begin + place, is_same)
            end, size = begin, min(16 * size, 256)
        return None

    async def _holds(self, reply: bytes) -> bool | None:
        """Whether the log here has the event with that reply, and not another at its index; None:
        it has none there."""
        answer = await self._jetstream.ask(
            f"{self._jetstream.prefix}DIRECT.GET.{self._stream}",
            b'{"seq":%d}' % index_of(reply),
            recovering=False,
        )
        if answer.status == NO_RESPONDERS:
            raise unknown_topic(self.topic)
        if answer.status:
            return None
        time = parse_headers(answer.head)["Nats-Time-Stamp"]
        return timestamp_of(time) == int(reply.rsplit(b".", 2)[1])

    async def _find_consumer(self) -> None:
        if self._placed and self._settle is not None:
            await self._check_place()
        start = Start(index=self._position + 1) if self._placed else self._start
        self._consumer = f"live-{secrets.token_hex(8)}"
        answer = await self._create(
            self._consumer,
            {
                **start.policy(),
                "ack_policy": "none",
                "mem_storage": True,
                "inactive_threshold": int(IDLE_CONSUMER * NANO),
            },
        )
        if not self._placed:
            # With the next event, or at a time: the engine has just fixed where that is.
            self._position = answer["delivered"]["stream_seq"]
            self._placed = True
        self.pending = answer.get("num_pending", 0)
