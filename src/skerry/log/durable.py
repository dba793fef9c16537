"""A durable subscription: the engine remembers its place, on disk, under a name.

What was acknowledged is not delivered again; what was not acknowledged within `ack_wait` is, also
after the reader crashed. That makes it at-least-once, and the index tells a repetition apart.

After an engine crash two things would hurt, and are mended here:

- The engine writes acknowledgements down with a delay, so it may deliver again what was
  acknowledged. A subscription drops what it has acknowledged itself, and acknowledges again what
  the engine has forgotten.
- Events that were on their way when the connection broke count as delivered, and would come again
  only after `ack_wait`. A connection delivers a prefix, so the lost ones lie above the highest
  index received: the subscription rejects those, and they come at once. (Where several readers
  share the subscription this may hand an event to a second reader while the first works on it.)

Without that, events of both kinds would fill the window and block the subscription for `ack_wait`.

At the end of a frozen segment (`skerry.log.segments`), once all that was delivered there is
acknowledged, the subscription makes its consumer anew on the next segment. Only then it removes the
old one: whoever looks for the consumer, from the first segment on, finds one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError
from skerry.engine.lines import pub
from skerry.engine.link import Down
from skerry.engine.pull import NANO
from skerry.errors import BadSetting, SkerryError, SubscriptionError, UnknownTopic
from skerry.log.follow import Subscription
from skerry.log.segments import (
    Chain,
    Moved,
    Segment,
    delete_consumer,
    find_consumer,
    make_consumer,
    next_index,
    segment_at,
)
from skerry.log.topics import unknown_topic
from skerry.model.event import Event
from skerry.model.names import check_subscription

log = logging.getLogger("skerry.subscription")

WINDOW = 1024
"""Events that may be unacknowledged if nobody says otherwise: what a crashed reader leaves to be
delivered again."""

ACKED_KEPT = 65536
"""How many acknowledged indexes a subscription remembers to drop repetitions."""

REJECTED_MOST = 65536
"""How many indexes are rejected at the most after a crash; in a sparse sub-topic of a large log
the rest waits for `ack_wait`."""


LOOK_AFTER = 0.2
"""Seconds after which a reader that asked for nothing for a while looks at the chain."""
ACKS_EVERY = 0.05
"""Seconds between two looks whether the last events of a frozen segment are acknowledged."""


class DurableSubscription(Subscription):
    """Every event at least once, across crashes of the engine and of the reader."""

    def __init__(
        self,
        *arguments: Any,
        name: str,
        ack_wait: float = 30.0,
        window: int | None = None,
        **options: Any,
    ) -> None:
        if not ack_wait >= 0.1:
            raise BadSetting(f"ack_wait is 0.1 seconds or more, not {ack_wait!r}")
        self.name = check_subscription(name)
        super().__init__(*arguments, window=WINDOW if window is None else window, **options)
        self._ack_wait = ack_wait
        self._acked: dict[int, int] = {}
        """Index and time of what was acknowledged. In a fabric a log may be replaced by one in
        which an index is another event, and then the time differs."""
        self._repeated: dict[int, Event] = {}
        """By index, events that came again: whoever had them first may still be at work on them."""
        self._highest = 0
        """The last index that this consumer delivered."""
        self._top = 0
        """The last index that any consumer of this subscription delivered."""
        self._created = ""
        self._ending: asyncio.Task[None] | None = None
        """Waits for the last acknowledgements of a frozen segment."""
        self._looking: asyncio.Task[None] | None = None
        """Looks whether the segment is still what it was."""
        self._is_unsure = False

    def ack(self, event: Event) -> None:
        """Say that `event` is done with. It is not delivered to this durable subscription again,
        unless the engine dies before it has written that down."""
        self._answer(event.reply, b"+ACK")
        self._acked[event.index] = event.timestamp_ns
        if len(self._acked) > ACKED_KEPT:
            del self._acked[next(iter(self._acked))]
        again = self._repeated.pop(event.index, event)
        if again is not event and again.timestamp_ns == event.timestamp_ns:
            with contextlib.suppress(ValueError):  # it is handed out
                self._held.remove(again)
                self._answer(again.reply, b"+ACK")

    def reject(self, event: Event, delay: float = 0.0) -> None:
        """Ask for `event` once more, after `delay` seconds."""
        self._answer(event.reply, b'-NAK {"delay":%d}' % int(delay * NANO) if delay else b"-NAK")

    async def close(self) -> None:
        """Stop. What was fetched and not handed out goes back to the engine, for the next reader;
        the subscription itself stays there."""
        if not self._closed and self._connection.is_up:
            self._pull.leave()
            await self._round_trip()  # behind it nothing is under way any more
        await super().close()
        while self._held and self._connection.is_up:
            self.reject(self._held.popleft())

    def _under_way(self) -> list[asyncio.Task[None] | None]:
        return [*super()._under_way(), self._ending, self._looking]

    async def _round_trip(self) -> None:
        """Ask the consumer how it is. To tell, it looks through the requests that wait, and forgets
        ours, which nobody listens to now. Else it would offer that one what we give back first, and
        put it behind the rest."""
        with contextlib.suppress(SkerryError):
            await self._jetstream.call(
                f"CONSUMER.INFO.{self._stream}.{self._consumer}", timeout=1.0
            )

    def _answer(self, reply: bytes, body: bytes) -> None:
        # An answer that is lost with the connection is a redelivery.
        with contextlib.suppress(Down):
            self._connection.write(pub(reply, body))

    def _take(self, events: list[Event], size: int, pending: int) -> None:
        self.pending = pending
        before, last = self._top, max([event.index for event in events])
        self._highest, self._top = max(self._highest, last), max(before, last)
        if not self._segment.is_active:
            events = self._within(events)
            if not pending:
                self._end_segment()
            if not events:
                self._ask()
                return
        acked = self._acked
        fresh = [
            event
            for event in events
            if event.index not in acked or acked[event.index] != event.timestamp_ns
        ]
        if len(fresh) < len(events):  # the engine forgot our acknowledgements
            for event in events:
                if acked.get(event.index) == event.timestamp_ns:
                    self._answer(event.reply, b"+ACK")
        # What waits here needs no second copy. A consumer that was made anew delivers it again.
        if any(event.deliveries > 1 or event.index <= before for event in fresh):
            held = {(event.index, event.timestamp_ns) for event in self._held}
            # Within what came just now, too: the engine may send at once what it was given back.
            newest = {(event.index, event.timestamp_ns): event for event in fresh}
            fresh = [event for place, event in newest.items() if place not in held]
            if len(self._repeated) > 2 * self._window:  # others have acknowledged them
                self._repeated = {event.index: event for event in self._held}
            self._repeated |= {event.index: event for event in fresh if event.index <= before}
        if fresh:
            self._hold(fresh, size)
        else:
            self._ask()

    def _within(self, events: list[Event]) -> list[Event]:
        """Those of a frozen segment that are part of the history. The others are done with."""
        end = self._segment.last
        for event in events:
            if event.index > end:
                self._answer(event.reply, b"+ACK")
        return [event for event in events if event.index <= end]

    def _end_segment(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._await_acks(self._segment))

    async def _await_acks(self, segment: Segment) -> None:
        """A frozen segment has nothing more: go on behind it when all is acknowledged."""
        try:
            while segment == self._segment and self._error is None:
                info = await self._jetstream.consumer(segment.stream, self.name)
                if info is None or await self._is_done(segment, info):
                    self._repair()
                await asyncio.sleep(ACKS_EVERY)
        except SkerryError as error:
            log.debug("the end of a segment of %s: %s", self.topic, error)
        finally:
            self._ending = None

    async def _begin(self) -> None:
        """Pull; then look whether the segment is still what it was. Had it been frozen, and the
        consumer made anew there, before the engine knew that we wait, it would not tell us."""
        while True:
            await super()._begin()
            if self._segment in await self._chain_now():
                return
            self._pull.stop()
            await self._find_again()

    def _ask(self) -> None:
        """While no request was open, because the reader was at work, the engine told nobody that
        the segment was frozen, and the consumer made anew there: look."""
        was_open = self._pull.is_open
        super()._ask()
        if self._settle is not None and not was_open and self._pull.is_open:
            self._is_unsure = True
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_around())

    async def _look_around(self) -> None:
        try:
            while self._is_unsure:  # it may ask again while we look
                await asyncio.sleep(LOOK_AFTER)  # one that holds few events asks often
                self._is_unsure = False
                if self._segment not in await self._chain_now():
                    self._repair()
        except UnknownTopic:
            self._repair()
        except SkerryError as error:
            log.debug("the chain of %s: %s", self.topic, error)
        finally:
            self._looking = None

    async def _find_consumer(self) -> None:
        chain = await self._chain()
        found = await find_consumer(self._jetstream, chain, self.name)
        if found is None and not self._consumer and self._settle is not None:
            # The site may just make it anew, and remove the one before first: ask once more.
            await self._settle()
            chain = await self._chain_now()
            found = await find_consumer(self._jetstream, chain, self.name)
        if found is None and not self._consumer:
            if not await self._make(chain):
                await self._find_consumer()
        elif found is None:
            if chain != await self._chain_now():  # it says so if the topic is gone
                await self._find_consumer()
                return
            raise SubscriptionError(
                f"the durable subscription {self.name!r} of {self.topic} was removed",
                "Subscribe again to make a new one.",
            )
        elif not found[0].is_active and await self._is_done(*found):
            await self._move(*found)
            await self._find_consumer()
        else:
            await self._adopt(*found)
        self._consumer = self.name

    def _wanted(self) -> dict[str, Any]:
        return {
            "durable_name": self.name,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait * NANO),
            "max_ack_pending": self._window,
        }

    async def _make(self, chain: Chain) -> bool:
        """Make the consumer where the subscription begins; False if the chain changed meanwhile."""
        made = None
        try:
            self._segment, start = await self._start_in(chain, self._start)
            made = await self._create(self.name, {**start.policy(), **self._wanted()})
        except (Moved, UnknownTopic):
            if chain == await self._chain_now():
                raise unknown_topic(self.topic) from None
            return False
        if self._segment not in await self._chain_now():
            await delete_consumer(self._jetstream, self._stream, self.name)
            return False
        self._created = made["created"]
        return True

    async def _is_done(self, segment: Segment, consumer: dict[str, Any]) -> bool:
        """Whether the consumer has delivered all of a frozen segment, and all of that is
        acknowledged."""
        if consumer["num_pending"] or consumer["num_ack_pending"]:
            return False
        # While the engine makes a consumer, or recovers one, it may say that nothing is pending.
        behind = consumer["delivered"]["stream_seq"] + 1
        with contextlib.suppress(Moved):
            for subject in _filters_of(consumer["config"]) or ["e.>"]:
                asked = {"seq": behind, "next_by_subj": subject}
                index = await next_index(self._jetstream, segment.stream, asked)
                if index is not None and index <= segment.last:
                    return False
            return True
        return False

    async def _move(self, segment: Segment, existing: dict[str, Any]) -> None:
        """All of a frozen segment is done with: have the consumer on the next one."""
        chain = await self._chain_now()
        if segment in chain:  # else it was emptied, and another holds what it had
            index = segment.last + 1
            stream = segment_at(chain, index).stream
            try:
                await make_consumer(self._jetstream, stream, self.name, existing["config"], index)
            except ApiError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise
                return  # it was welded meanwhile: look again
            await delete_consumer(self._jetstream, segment.stream, self.name)

    async def _adopt(self, segment: Segment, existing: dict[str, Any]) -> None:
        """Go on with a consumer that is there."""
        is_new = bool(self._created) and self._created != existing["created"]
        if is_new:
            self._pull.renew()  # what is still under way comes from its beginning, too
        self._segment = segment
        kept = self._within(list(self._held))
        self._held.clear()
        self._held.extend(kept)
        config, wanted = existing["config"], self._wanted()
        if sorted(_filters_of(config)) != sorted(self._filters()):
            raise SubscriptionError(
                f"the durable subscription {self.name!r} exists for another sub-topic",
                "Give this one another name, or remove the other.",
            )
        if any(config.get(field) != value for field, value in wanted.items()):
            await self._create(self.name, {**config, **wanted})
        if is_new:
            # Made anew, at another site, on another segment or for a log that was replaced: what
            # it delivers, it delivers from its own beginning, and so what is held here.
            self._highest = existing["delivered"]["stream_seq"]
            for event in self._held:  # it may have delivered some before this was noticed
                self.reject(event)
            self._held.clear()
        elif self._consumer:
            self._reconcile(existing)
        else:
            await self._count_missed(existing["delivered"]["stream_seq"])
        self._created = existing["created"]
        if not segment.is_active and not existing["num_pending"]:
            self._end_segment()

    def _reconcile(self, engine: dict[str, dict[str, int]]) -> None:
        """Tell the engine, which was away, what it does not know: which of the events that it
        takes for delivered are acknowledged, and which never arrived."""
        delivered, floor = engine["delivered"]["stream_seq"], engine["ack_floor"]["stream_seq"]
        number = engine["delivered"]["consumer_seq"]

        def answer(index: int, body: bytes) -> None:
            # An acknowledgement subject names stream, consumer, deliveries, index, number, time
            # and pending; the engine looks at the index, and at the range of the number.
            reply = f"$JS.ACK.{self._stream}.{self.name}.1.{index}.{number}.1.0"
            self._answer(reply.encode(), body)

        for index in self._acked:
            if floor < index <= delivered:
                answer(index, b"+ACK")
        for index in range(self._highest + 1, min(delivered, self._highest + REJECTED_MOST) + 1):
            answer(index, b"-NAK")

    async def _count_missed(self, delivered: int) -> None:
        missed = (await self._log()).first - delivered - 1 if self._whole else 0
        if missed > 0:
            self.missed = missed
            log.warning(
                "%d events of %s aged out before subscription %s was given them",
                missed,
                self.topic,
                self.name,
            )


def _filters_of(config: dict[str, Any]) -> list[str]:
    one = config.get("filter_subject")
    return [one] if one else list(config.get("filter_subjects") or [])
