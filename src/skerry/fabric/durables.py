"""Durable subscriptions in a fabric: they outlive the copy that they read, and go where they are
opened.

A durable subscription is a consumer of the engine at one site. How far it is, is written into the
store from time to time and before its log is replaced; so it can be made again, on the new log or
at another site, behind what was acknowledged.

Its consumer is on one of the segments of the site's log (`skerry.log.segments`): the one that holds
the event behind what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from skerry.directory.store import Store
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.fabric.tasks import Tasks
from skerry.log.segments import (
    Chain,
    Info,
    Segment,
    alone,
    chain_of,
    delete_consumer,
    find_consumer,
    look_at_chain,
    make_consumer,
    segment_at,
)
from skerry.model.fabric import SubscriptionRecord, TopicEntry, subscription_key, topic_key
from skerry.model.names import stream_of, topic_of_stream

NOTED = 1.0
"""Seconds that are given to writing down where a subscription is before it is removed and made
anew. Should the site die between these two while the hub is away, it would be lost."""


class Durables:
    """The durable subscriptions read at one site. `root` tells the epoch of a topic's log here."""

    def __init__(
        self,
        jetstream: JetStream,
        site: str,
        store: Store,
        links: Links,
        peers: Peers,
        root: Callable[[str], int],
    ) -> None:
        self._jetstream = jetstream
        self.site = site
        self._store = store
        self._links = links
        self._peers = peers
        self._root = root
        self._floors: dict[tuple[str, str], int] = {}
        self._new: set[tuple[str, str]] = set()
        """Subscriptions that were opened here and of which nothing is written down yet."""
        self._removed: dict[tuple[str, str], SubscriptionRecord] = {}
        """Those that were removed to be made anew, until they are."""
        self._tasks = Tasks("writing down where subscriptions are")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def fetch(self, entry: TopicEntry, subscription: str) -> None:
        """Have a durable subscription here: from the site where it was read last."""
        name = entry.name
        if await self._find(name, subscription) is not None:
            if (name, subscription) in self._new:
                await self.note_new()
            return
        record = self._removed.get((name, subscription)) or self._store.get(
            subscription_key(name, subscription), SubscriptionRecord
        )
        if record is None:
            # Others are to know that it is here, before it has come anywhere.
            self._new.add((name, subscription))
            await self._note(name, subscription, SubscriptionRecord(site=self.site, floor=0))
            return
        if record.site != self.site:
            self._links.want(record.site)
            with contextlib.suppress(SkerryError):
                body = {"name": name, "subscription": subscription}
                data = await self._peers.ask(record.site, "peer.subscription.take", body)
                record = msgspec.json.decode(data, type=SubscriptionRecord | None) or record
        if record.config:
            try:
                await self._make(await self._chain(name), name, subscription, record)
            except ApiError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise
                # The log was welded meanwhile.
                await self._make(await self._chain(name), name, subscription, record)
            self._removed.pop((name, subscription), None)
        await self._note(name, subscription, record)

    async def take(self, name: str, subscription: str) -> SubscriptionRecord | None:
        """Give up a durable subscription to another site; return where it was."""
        removed = self._removed.pop((name, subscription), None)
        record = None
        while (found := await self._find(name, subscription)) is not None:
            segment, info = found
            record = record or self._record(name, segment, info)
            await delete_consumer(self._jetstream, segment.stream, subscription)
        return record or removed

    async def forget(self, name: str, subscription: str) -> None:
        """Forget a durable subscription."""
        key = subscription_key(name, subscription)
        self._floors.pop((name, subscription), None)
        self._removed.pop((name, subscription), None)
        record = self._store.get(key, SubscriptionRecord)
        if record is not None:
            with contextlib.suppress(Conflict, Unavailable):
                await self._store.delete(key)
            if record.site != self.site:
                with contextlib.suppress(SkerryError):
                    body = {"name": name, "subscription": subscription}
                    await self._peers.ask(record.site, "peer.subscription.take", body)

    async def _chain(self, name: str) -> Chain:
        return await look_at_chain(self._jetstream, name) or alone(stream_of(name))

    async def _find(self, name: str, subscription: str) -> tuple[Segment, Info] | None:
        return await find_consumer(self._jetstream, await self._chain(name), subscription)

    async def _durables(self, chain: Chain) -> list[tuple[Segment, Info]]:
        """The durable consumers of a log, each once."""
        found: dict[str, tuple[Segment, Info]] = {}
        for segment in chain:
            for info in await self._jetstream.consumers(segment.stream):
                if _is_durable(info):
                    found.setdefault(info["name"], (segment, info))
        return list(found.values())

    def _record(self, name: str, segment: Segment, info: Info) -> SubscriptionRecord:
        """Where a subscription is. What it read beyond the end of a segment is not its topic's."""
        return SubscriptionRecord(
            site=self.site,
            floor=min(info["ack_floor"]["stream_seq"], segment.last),
            root=self._root(name),
            config=info["config"],
        )

    async def save(self, name: str) -> dict[str, SubscriptionRecord]:
        """Write down where every subscription of a log is that is about to be replaced."""
        records = {}
        for segment, info in await self._durables(await self._chain(name)):
            records[info["name"]] = self._record(name, segment, info)
            await self._note(name, info["name"], records[info["name"]])
        return records

    async def restore(self, name: str, records: dict[str, SubscriptionRecord]) -> None:
        """Make them again, on the log that took its place."""
        chain = await self._chain(name)
        for subscription, record in records.items():
            await self._make(chain, name, subscription, record)

    async def roll(self, name: str, old: Chain, chain: Chain) -> None:
        """Segments were frozen: have everybody who reads in `old` look again. Durable subscriptions
        are made anew where they go on, be it on the same segment: only a consumer that goes tells
        its reader."""
        await self._renew(name, old, chain)

    async def weld(self, name: str, old: Chain, new_stream: str) -> None:
        """The chain is `new_stream` alone now: before its old segments are emptied or deleted, have
        those who read there read that one."""
        await self._renew(name, old, alone(new_stream))

    async def _renew(self, name: str, old: Chain, chain: Chain) -> None:
        """Remove the consumers of `old`; have durable ones on `chain`. The hub is told, and nobody
        waits for it but those that go on in the same segment."""
        for (topic, subscription), record in list(self._removed.items()):
            if topic == name:  # an earlier attempt failed
                await self._make_anew(chain, name, subscription, record)
        staying: list[tuple[Segment, str]] = []
        notes: list[asyncio.Task[None]] = []
        for segment in old:
            for info in await self._jetstream.consumers(segment.stream):
                subscription = info["name"]
                if info["config"].get("deliver_subject", "").startswith(f"$JS.M.{self.site}."):
                    continue  # a mirror here reads it, which takes in all segments
                if not _is_durable(info):
                    await delete_consumer(self._jetstream, segment.stream, subscription)
                    continue
                record = self._record(name, segment, info)
                note = self._tasks.spawn(self._note(name, subscription, record))
                if self._place(chain, name, record)[0] == segment.stream:
                    staying.append((segment, subscription))
                    notes.append(note)
                    continue
                # First, so that whoever looks finds one.
                await self._make(chain, name, subscription, record)
                await delete_consumer(self._jetstream, segment.stream, subscription)
        if notes:
            await asyncio.wait(notes, timeout=NOTED)
        for segment, subscription in staying:
            now = await self._jetstream.consumer(segment.stream, subscription)
            if now is not None:
                record = self._removed[name, subscription] = self._record(name, segment, now)
                await delete_consumer(self._jetstream, segment.stream, subscription)
                await self._make_anew(chain, name, subscription, record)

    async def _make_anew(
        self, chain: Chain, name: str, subscription: str, record: SubscriptionRecord
    ) -> None:
        await self._make(chain, name, subscription, record)
        self._removed.pop((name, subscription), None)

    def _place(self, chain: Chain, name: str, record: SubscriptionRecord) -> tuple[str, int]:
        """The stream that a subscription goes on in, and from which index."""
        entry = self._store.get(topic_key(name), TopicEntry)
        # What was read of a history that is not the topic's any more does not count. Where that is
        # not known any more, nothing does: rather twice than never.
        floor = min(record.floor, entry.fork(record.root)) if entry else record.floor
        return segment_at(chain, floor + 1).stream, floor + 1

    async def _make(
        self, chain: Chain, name: str, subscription: str, record: SubscriptionRecord
    ) -> None:
        stream, index = self._place(chain, name, record)
        await make_consumer(self._jetstream, stream, subscription, record.config, index)

    async def _note(self, name: str, subscription: str, record: SubscriptionRecord) -> None:
        record = msgspec.structs.replace(record, site=self.site)
        with contextlib.suppress(SkerryError):  # also of a full hub: told when it has gone on
            await self._store.put(subscription_key(name, subscription), record)

    async def note_new(self) -> None:
        """Write down what subscriptions that were just opened are like."""
        for name, subscription in list(self._new):
            found = await self._find(name, subscription)
            if found is not None:
                await self._note(name, subscription, self._record(name, *found))
                self._new.discard((name, subscription))

    async def checkpoint(self) -> None:
        """Write down how far durable subscriptions are."""
        streams = {info["config"]["name"]: info for info in await self._jetstream.streams()}
        for stream, info in streams.items():
            if (name := topic_of_stream(stream)) is None:
                continue
            chain = tuple(
                segment
                for segment in chain_of(name, info)
                if segment.stream in streams
                and streams[segment.stream]["state"].get("consumer_count")
            )
            for segment, consumer in await self._durables(chain):
                record = self._record(name, segment, consumer)
                key = (name, consumer["name"])
                if self._floors.get(key) != record.floor:
                    self._floors[key] = record.floor
                    await self._note(*key, record)


def _is_durable(info: Info) -> bool:
    return bool(info["config"].get("durable_name"))
