"""A live subscription: it remembers its own place.

Its consumer at the engine is a throw-away. When the engine restarts or the consumer is gone, the
subscription makes another one at the next index, so that nothing is missed or doubled. So it does
at the end of a segment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

from skerry.engine.link import Down
from skerry.engine.pull import NANO
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import AgedOut, SkerryError, UnknownTopic
from skerry.log.follow import Start, Subscription
from skerry.log.segments import Chain, Moved, segment_at
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
        self._suspects: list[tuple[int, int]] = []
        """Where indexes were skipped: the first that is missing, and the next that is not."""
        self._held_back: list[tuple[list[Event], int]] = []
        self._checking: asyncio.Task[None] | None = None
        self.first_kept: Callable[[], Awaitable[int | None]] | None = None
        """Asks for the first index that the topic's home keeps; it answers None if nobody can tell.
        None: this log is all there is."""
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
        if not self._closed:
            self._leave()
        await super().close()

    def _under_way(self) -> list[asyncio.Task[None] | None]:
        return [*super()._under_way(), self._checking]

    def _leave(self) -> None:
        """Have the engine forget the consumer. If this does not arrive, it does so by itself."""
        if self._consumer:
            with contextlib.suppress(Down):
                prefix = self._jetstream.prefix
                self._connection.publish(f"{prefix}CONSUMER.DELETE.{self._stream}.{self._consumer}")

    def _is_over(self) -> bool:
        # What is pending in the next segment is known when the repair that leads there is over.
        is_known = self._repairing is None and not self._is_broken
        ends = is_known and self._segment.is_active and not self.pending
        return self._bounded and ends and not self._held_back

    def _is_bounded(self) -> bool:
        return self._bounded

    def on_down(self) -> None:
        """The connection is lost, and with it what was under way. What the consumer still sends to
        the next connection begins behind that."""
        super().on_down()
        self._pull.forget()

    def _take(self, events: list[Event], size: int, pending: int) -> None:
        if self._error is not None:
            return  # what comes behind a gap
        last, end = events[-1].index, self._segment.last
        is_over = last >= end or not (pending or self._segment.is_active)
        if is_over:
            self._pull.forget()  # ask for nothing more
        if last > end or events[0].index <= self._position:  # the latter from before a repair
            events = [event for event in events if self._position < event.index <= end]
        if events:
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
        if last > end:
            self._pass(end)
        if is_over:
            self._end_segment()

    def _end_segment(self) -> None:
        self._repair()

    def _pass(self, end: int) -> None:
        """Nothing more comes up to index `end`. If something is missing there, find out why."""
        if self._whole and self._position < end:
            self._suspects.append((self._position + 1, end + 1))
            self._check()
        self._position = max(self._position, end)

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
                self._suspects.append((last + 1, event.index))
            last = event.index
        self._check()

    def _check(self) -> None:
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_gap())

    async def _check_gap(self) -> None:
        """Indexes were skipped: by events whose lifespan is over, or by events that aged out
        unread? Hand nothing on before that is known. For a sub-topic skipped indexes are the
        rule, and the log cannot tell what would have matched."""
        missing = 0
        try:
            while self._suspects:
                looked_at, self._suspects = self._suspects, []
                missing, following = min(looked_at)
                await self._check_first(missing, following)
                self._hand_on(min(self._suspects, default=(sys.maxsize, 0))[0])
        except SkerryError as error:
            self._fail(error)
            self._hand_on(missing)
        finally:
            self._checking = None

    async def _check_first(self, missing: int, following: int) -> None:
        kept = await self._log()
        first = kept.first
        if kept.config.get("max_msgs_per_subject", -1) > 0:
            return
        if self.first_kept is not None and _lets_go(kept.config):
            # A copy that follows too slowly leaves out what its home has let go of meanwhile.
            at_home = await self.first_kept()
            first = max(first, following if at_home is None else min(at_home, following))
        if first > missing:
            raise AgedOut(
                f"events from {missing} to {first - 1} of {self.topic} aged out before this "
                "subscription read them",
                f"Subscribe again from index {first}; read faster, or keep more events.",
                first,
            )

    def _hand_on(self, end: int) -> None:
        """Hand out what was held back and comes before index `end`."""
        held_back, self._held_back = self._held_back, []
        for events, size in held_back:
            if some := [event for event in events if event.index < end]:
                self._hold(some, size)
            if rest := [event for event in events if event.index >= end]:
                self._held_back.append((rest, size))

    async def _check_place(self) -> None:
        """The log here may have been replaced, or be another site's: if the last events taken are
        not in it, because they were lost with a home before they counted, go back to where both
        agree. What was handed out meanwhile is not taken back; what took its place follows.

        An index without an event says nothing: that may have aged out. And whether an event is lost
        that is beyond the log's end, shows only when the log has come so far."""
        taken = [reply for batch in self._recent for reply in batch]
        wait = CATCH_UP
        deadline = self._connection.now() + self._connection.settings.timeout
        while taken:
            if self._bounded and self._connection.now() > deadline:
                return  # the log need not come so far, and a read is to end
            with contextlib.suppress(Moved):
                kept = await self._look()
                last = kept.last if kept else 0
                there = [reply for reply in taken if index_of(reply) <= last]
                chain = kept.chain if kept else ()
                newest = await self._compare(chain, there)
                agreed = None
                if newest is not None and not newest.is_same:
                    agreed = await self._agreed(chain, taken, newest.place)
                # A segment that was emptied meanwhile seemed to have nothing.
                if kept is not None and chain == await self._chain_now():
                    if agreed is not None:
                        self._go_back(agreed)
                        return
                    if len(there) == len(taken):
                        return
            await asyncio.sleep(wait)
            wait = min(2 * wait, CATCH_UP_MOST)
            if self._settle is not None:
                # It is still wanted. This says so if the topic is gone for good.
                self._entry = await self._settle()

    async def _agreed(self, chain: Chain, taken: list[bytes], end: int) -> int:
        """From `end` on the log has other events: the last index before that begins."""
        low, agreed = 0, -1
        while low < end:
            middle = (low + end) // 2
            newest = await self._compare(chain, taken[low : middle + 1])
            if newest is not None and not newest.is_same:
                end = low + newest.place
                continue
            if newest is not None:
                agreed = low + newest.place
            low = middle + 1
        if agreed >= 0:
            return index_of(taken[agreed])
        # Further back than is remembered: as far as a home since then did not have.
        fork = self._entry.fork(self.epoch) if self._entry else 0
        return max(min(fork, index_of(taken[0]) - 1), (self._start.index or 1) - 1)

    def _go_back(self, position: int) -> None:
        """Read on behind `position`: what came beyond, and waits here, is not part of the log."""
        self._position = position
        self._suspects = [gap for gap in self._suspects if gap[1] <= position]
        kept = [event for event in self._held if event.index <= position]
        self._held.clear()
        self._held.extend(kept)
        self._held_back.clear()
        log.warning(
            "events of %s behind index %d were lost with their home; reading on from there",
            self.topic,
            self._position,
        )
        self._recent.clear()
        self._remembered = 0

    async def _compare(self, chain: Chain, taken: list[bytes]) -> Compared | None:
        """Compare the newest of `taken` in whose place the log has an event; None: it has none."""
        end, size = len(taken), 1
        while end:
            begin = max(end - size, 0)
            found = await asyncio.gather(*(self._holds(chain, one) for one in taken[begin:end]))
            for place in range(end - begin - 1, -1, -1):
                if (is_same := found[place]) is not None:
                    return Compared(begin + place, is_same)
            end, size = begin, min(16 * size, 256)
        return None

    async def _holds(self, chain: Chain, reply: bytes) -> bool | None:
        """Whether the log here has the event with that reply, and not another at its index; None:
        it has none there. Raises `Moved`."""
        index = index_of(reply)
        answer = await self._jetstream.ask(
            f"{self._jetstream.prefix}DIRECT.GET.{segment_at(chain, index).stream}",
            b'{"seq":%d}' % index,
            recovering=False,
        )
        if answer.status == NO_RESPONDERS:
            raise Moved
        if answer.status:
            return None
        time = parse_headers(answer.head)["Nats-Time-Stamp"]
        return timestamp_of(time) == int(reply.rsplit(b".", 2)[1])

    async def _find_consumer(self) -> None:
        self._pull.forget()  # what still comes of an earlier consumer may be of another segment
        chain = await self._chain()
        if self._placed and self._settle is not None:
            await self._check_place()
            chain = await self._chain_now()
        start = Start(index=self._position + 1) if self._placed else self._start
        while True:
            made = await self._make(chain, start)
            now = await self._chain_now()
            if made is None and now == chain:
                raise unknown_topic(self.topic)
            if made is None or self._segment not in now:
                self._leave()
                self._known = now
                await self._find_consumer()
                return
            if self._segment.is_active or made.get("num_pending"):
                break
            self._leave()
            if self._placed:
                self._pass(self._segment.last)
            chain, start = now, Start(index=self._segment.last + 1)
        if not self._placed:
            # With the next event, or at a time: the engine has just fixed where that is.
            self._position = made["delivered"]["stream_seq"]
            if self.first_kept is not None and self._start.index is not None:
                self._position = self._start.index - 1  # what the copy here has may begin behind
            self._placed = True
        self.pending = made.get("num_pending", 0)

    async def _make(self, chain: Chain, start: Start) -> dict[str, Any] | None:
        """Make the consumer on the segment where it begins; None if that is not there."""
        try:
            self._segment, start = await self._start_in(chain, start)
            self._consumer = f"live-{secrets.token_hex(8)}"
            return await self._create(
                self._consumer,
                {
                    **start.policy(),
                    "ack_policy": "none",
                    "mem_storage": True,
                    "inactive_threshold": int(IDLE_CONSUMER * NANO),
                },
            )
        except (Moved, UnknownTopic):
            return None


def _lets_go(config: dict[str, Any]) -> bool:
    """Whether a log lets go of its first events."""
    return any(config.get(limit, -1) > 0 for limit in ("max_msgs", "max_bytes", "max_age"))
