"""Read a log by index: one event, the latest index, a range."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from functools import partial

from skerry.engine.jetstream import JetStream
from skerry.errors import AgedOut, BadIndex, NotYet, SubscriptionError, Unavailable
from skerry.log.durable import DurableSubscription
from skerry.log.follow import Start, Subscription
from skerry.log.live import LiveSubscription
from skerry.log.route import Routes
from skerry.log.segments import (
    Chain,
    Extent,
    Moved,
    delete_consumer,
    find_consumer,
    last_index,
    look,
    look_at_chain,
    segment_at,
)
from skerry.log.topics import unknown_topic
from skerry.model.event import Event, parse_headers, reply_of, timestamp_of
from skerry.model.fabric import TopicEntry
from skerry.model.names import (
    check_subscription,
    check_topic,
    is_within,
    segment_of_stream,
    stored_subject,
    write_subject,
)
from skerry.model.quantities import check_index

TRIES = 100
PAUSE = 0.05
"""How often, and how many seconds apart, a copy that is being replaced is looked for."""

CHAIN_KEPT = 1.0
"""Seconds that a chain is relied on when a single event is read. A segment that was frozen since
may hold what is not part of the history, until the agent removes that."""

_META = (
    b"Nats-Stream:", b"Nats-Subject:", b"Nats-Sequence:", b"Nats-Time-Stamp:",
    b"Nats-Last-Sequence:", b"Nats-Num-Pending:",
)  # fmt: skip


class Reader:
    """Reads logs at the site that the client is connected to: in a fabric its own copy of them,
    which the site's agent makes when it is first asked for."""

    def __init__(self, jetstream: JetStream, routes: Routes) -> None:
        self._jetstream = jetstream
        self._routes = routes
        self._owners: dict[str, str] = {}
        self._chains: dict[str, tuple[Chain, float]] = {}
        """By topic, and when the chain was looked up."""

    async def owner(self, topic: str) -> str:
        """The topic whose log holds `topic`: itself, or the one that it is a sub-topic of."""
        check_topic(topic)
        if (entry := await self._routes.find(topic)) is not None:
            await self._routes.want(entry.name)
            return entry.name
        if topic not in self._owners:
            streams = await self._jetstream.stream_names(write_subject(self._routes.site, topic))
            found = next(filter(None, map(segment_of_stream, streams)), None)
            if found is None:
                raise unknown_topic(topic)
            self._owners[topic] = found[0]
        return self._owners[topic]

    async def bounds(self, topic: str) -> tuple[str, int, int]:
        """The owner of the log, the first kept index and the latest index of the whole log."""
        owner, log = await self._look(topic)
        return owner, log.first, log.last

    async def _look(self, topic: str) -> tuple[str, Extent]:
        """The owner of the log, and what it holds here."""
        attempt = 0
        while True:
            owner = await self.owner(topic)
            if (log := await look(self._jetstream, owner)) is not None:
                return owner, log
            await self._look_again(topic, attempt)
            attempt += 1

    async def _look_again(self, topic: str, attempt: int) -> None:
        """The log is not here: it was deleted, and perhaps another topic holds it now; or, in a
        fabric, whose directory knows which topics there are, the copy here is made anew."""
        self._owners.pop(topic, None)
        entry = await self._routes.find(topic)
        if entry is None and attempt:
            raise unknown_topic(topic)
        if entry is None:
            return
        if attempt >= TRIES:
            raise Unavailable(
                f"site {self._routes.site} has no copy of {topic} at the moment", "Try again."
            )
        if attempt:
            await asyncio.sleep(PAUSE)
        await self._routes.want(entry.name, now=True)

    async def latest_index(self, topic: str) -> int:
        """The index of the newest event of `topic`; 0 if it has none."""
        subject = stored_subject(topic)
        attempt = 0
        while True:
            owner, log = await self._look(topic)
            if owner == topic:
                return log.last
            with contextlib.suppress(Moved):
                found = [
                    await last_index(self._jetstream, log.chain, each)
                    for each in (subject, f"{subject}.>")
                ]
                # Frozen segments are emptied once their events are elsewhere.
                if len(log.chain) == 1 or log.chain == await self._chain(owner):
                    return max(found)
            await self._look_again(topic, attempt)
            attempt += 1

    async def get(self, topic: str, index: int) -> Event:
        """The event with `index`."""
        wanted = check_index(index)
        event = await self._direct(topic, wanted)
        if event is None:
            _, first, latest = await self.bounds(topic)
            raise _missing(topic, wanted, first, latest)
        if not is_within(event.topic, topic):
            raise BadIndex(
                f"the event with index {wanted} is of {event.topic}, not of {topic}",
                f"They share one log; read {topic} to see its own indexes.",
            )
        return event

    async def read(
        self, topic: str, from_index: int | None = None, to_index: int | None = None
    ) -> AsyncIterator[Event]:
        """Events from `from_index` (default: the first kept) to `to_index` (default: the latest
        now), both included."""
        start = None if from_index is None else check_index(from_index, "from")
        end = None if to_index is None else check_index(to_index, "to")
        if start is not None and end is not None and end < start:
            raise BadIndex(f"the range from {start} to {end} runs backwards")
        owner, log = await self._look(topic)
        first, latest = log.first, log.last
        if start is not None and (start < first or start > latest):
            raise _missing(topic, start, first, latest)
        if end is not None and end > latest:
            raise _missing(topic, end, first, latest)
        start, end = start or first, end or latest
        if start > end:
            return
        settle = None
        if await self._routes.in_fabric():

            async def settle() -> TopicEntry | None:
                return await self._routes.want(owner, now=True)

        subscription = LiveSubscription(
            self._jetstream, owner, topic, Start(index=start), settle=settle, chain=log.chain
        )
        if (entry := self._routes.newest(owner)) is not None:
            subscription.epoch = entry.epoch
        async with await subscription.open(), aclosing(subscription.drain(end)) as events:
            async for event in events:
                yield event

    async def subscribe(
        self,
        topic: str,
        *,
        from_index: int | None = None,
        from_time: datetime | None = None,
        durable: str | None = None,
        window: int | None = None,
        ack_wait: float = 30.0,
    ) -> Subscription:
        """Follow `topic`; see `Subscription`."""
        if from_index is not None and from_time is not None:
            raise BadIndex("a subscription begins at an index or at a time, not at both")
        owner, log = await self._look(topic)
        settle = None
        if await self._routes.in_fabric():

            async def settle() -> TopicEntry | None:
                return await self._routes.want(owner, durable, now=True)

            if durable is not None:
                check_subscription(durable)
                await self._routes.want(owner, durable, now=True)
        if from_index is not None:
            from_index = check_index(from_index, "from_index")
            exists = durable and await find_consumer(
                self._jetstream, log.chain, check_subscription(durable)
            )
            if not exists and not log.first <= from_index <= log.last + 1:
                raise _missing(topic, from_index, log.first, log.last)
        place = (self._jetstream, owner, topic, Start(from_index, from_time))
        subscription: Subscription
        if durable is None:
            subscription = LiveSubscription(*place, window=window, settle=settle, chain=log.chain)
            if settle is not None:
                subscription.first_kept = partial(self._routes.first_kept, owner)
        else:
            subscription = DurableSubscription(
                *place,
                name=durable,
                ack_wait=ack_wait,
                window=window,
                settle=settle,
                chain=log.chain,
            )
        if (entry := self._routes.newest(owner)) is not None:
            subscription.epoch = entry.epoch
        opened = await subscription.open()
        if durable is not None and settle is not None:
            await settle()  # now that it is there, have it written down for other sites
        return opened

    async def unsubscribe(self, topic: str, durable: str) -> None:
        """Remove a durable subscription for good."""
        owner = await self.owner(topic)
        if await self._routes.in_fabric():
            await self._routes.want(owner, check_subscription(durable), now=True)
            await self._routes.forget(owner, durable)
        check_subscription(durable)
        removed = [
            await delete_consumer(self._jetstream, segment.stream, durable)
            for segment in await look_at_chain(self._jetstream, owner) or ()
        ]
        if not any(removed):
            raise SubscriptionError(
                f"{topic} has no durable subscription {durable!r}", "It may be removed already."
            )

    async def _direct(self, topic: str, index: int) -> Event | None:
        attempt = 0
        while True:
            owner = await self.owner(topic)
            chain, since = self._chains.get(owner, (None, 0.0))
            if chain is None or self._jetstream.connection.now() - since > CHAIN_KEPT:
                chain = await self._chain(owner)
            if chain is not None:
                segment = segment_at(chain, index)
                reply = await self._jetstream.ask(
                    f"$JS.API.DIRECT.GET.{segment.stream}",
                    b'{"seq":%d}' % index,
                    recovering=False,
                )
                if not reply.status:
                    return stored_event(reply.head, reply.data)
                chain = await self._chain(owner)
                if chain is not None and segment_at(chain, index) != segment:
                    continue
                if chain is not None and reply.status == 404:
                    return None
            await self._look_again(topic, attempt)  # there is no such log, or stream
            attempt += 1

    async def _chain(self, owner: str) -> Chain | None:
        """The chain of a log as it is now; None: there is no such log."""
        chain = await look_at_chain(self._jetstream, owner)
        self._chains.pop(owner, None)
        if chain is not None:
            self._chains[owner] = (chain, self._jetstream.connection.now())
        return chain


def stored_event(head: bytes, data: bytes) -> Event:
    """An event as direct get answers it, or as it is delivered beside its log: its place stands in
    the headers."""
    fields = parse_headers(head)
    own = [line for line in head.split(b"\r\n") if line and not line.startswith(_META)]
    nanoseconds = timestamp_of(fields["Nats-Time-Stamp"])
    index = int(fields["Nats-Sequence"])
    subject = fields["Nats-Subject"].encode()
    return Event(subject, index, b"\r\n".join(own), data, reply_of(index, nanoseconds))


def _missing(topic: str, index: int, first: int, latest: int) -> AgedOut | NotYet:
    if index > latest:
        return NotYet(
            f"{topic} has no event {index} yet; the latest index is {latest}",
            f"Subscribe from index {latest + 1} to wait for it.",
            latest,
        )
    if index < first:
        what = f"event {index} of {topic} aged out; the first kept index is {first}"
        return AgedOut(what, f"Read from index {first}." if first <= latest else "", first)
    return AgedOut(f"event {index} of {topic} is over: its lifespan ended", "", first)
