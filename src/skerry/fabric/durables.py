"""Durable subscriptions in a fabric: they outlive the copy that they read, and go where they are
opened.

A durable subscription is a consumer of the engine at one site. How far it is, is written into the
store from time to time and before its log is replaced; so it can be made again, on the new log or
at another site, behind what was acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from skerry.directory.store import Store
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.model.fabric import SubscriptionRecord, TopicEntry, subscription_key, topic_key
from skerry.model.names import stream_of, topic_of_stream


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

    async def fetch(self, entry: TopicEntry, subscription: str) -> None:
        """Have a durable subscription here: from the site where it was read last."""
        name = entry.name
        if await self._jetstream.consumer(entry.stream, subscription) is not None:
            if (name, subscription) in self._new:
                await self.note_new()
            return
        record = self._store.get(subscription_key(name, subscription), SubscriptionRecord)
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
            await self._make(entry.stream, subscription, record)
        await self._note(name, subscription, record)

    async def take(self, name: str, subscription: str) -> SubscriptionRecord | None:
        """Give up a durable subscription to another site; return where it was."""
        stream = stream_of(name)
        info = await self._jetstream.consumer(stream, subscription)
        if info is None:
            return None
        with contextlib.suppress(ApiError):
            await self._jetstream.call(f"CONSUMER.DELETE.{stream}.{subscription}")
        return _record_of(self.site, info, self._root(name))

    async def forget(self, name: str, subscription: str) -> None:
        """Forget a durable subscription."""
        key = subscription_key(name, subscription)
        self._floors.pop((name, subscription), None)
        record = self._store.get(key, SubscriptionRecord)
        if record is not None:
            with contextlib.suppress(Conflict, Unavailable):
                await self._store.delete(key)
            if record.site != self.site:
                with contextlib.suppress(SkerryError):
                    body = {"name": name, "subscription": subscription}
                    await self._peers.ask(record.site, "peer.subscription.take", body)

    async def _consumers(self, stream: str) -> list[dict[str, Any]]:
        try:
            answer = await self._jetstream.call(f"CONSUMER.LIST.{stream}", {"offset": 0})
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return []
            raise
        return [c for c in answer.get("consumers") or [] if c["config"].get("durable_name")]

    async def save(self, name: str) -> dict[str, SubscriptionRecord]:
        """Write down where every subscription of a log is that is about to be replaced."""
        records = {}
        for info in await self._consumers(stream_of(name)):
            records[info["name"]] = _record_of(self.site, info, self._root(name))
            await self._note(name, info["name"], records[info["name"]])
        return records

    async def restore(self, name: str, records: dict[str, SubscriptionRecord]) -> None:
        """Make them again, on the log that took its place."""
        for subscription, record in records.items():
            await self._make(stream_of(name), subscription, record)

    async def _make(self, stream: str, name: str, record: SubscriptionRecord) -> None:
        config = {
            key: value for key, value in record.config.items() if not key.startswith("opt_start")
        }
        entry = self._store.get(topic_key(topic_of_stream(stream) or ""), TopicEntry)
        # What was read of a history that is not the topic's any more does not count. Where that is
        # not known any more, nothing does: rather twice than never.
        floor = min(record.floor, entry.fork(record.root)) if entry else record.floor
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": floor + 1}
        await self._jetstream.call(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}
        )

    async def _note(self, name: str, subscription: str, record: SubscriptionRecord) -> None:
        record = msgspec.structs.replace(record, site=self.site)
        with contextlib.suppress(Conflict, Unavailable):
            await self._store.put(subscription_key(name, subscription), record)

    async def note_new(self) -> None:
        """Write down what subscriptions that were just opened are like."""
        for name, subscription in list(self._new):
            info = await self._jetstream.consumer(stream_of(name), subscription)
            if info is not None:
                await self._note(name, subscription, _record_of(self.site, info, self._root(name)))
                self._new.discard((name, subscription))

    async def checkpoint(self) -> None:
        """Write down how far durable subscriptions are."""
        for info in await self._jetstream.streams():
            name = topic_of_stream(info["config"]["name"])
            if name is None or not info["state"].get("consumer_count"):
                continue
            for consumer in await self._consumers(info["config"]["name"]):
                floor = consumer["ack_floor"]["stream_seq"]
                key = (name, consumer["name"])
                if self._floors.get(key) != floor:
                    self._floors[key] = floor
                    await self._note(*key, _record_of(self.site, consumer, self._root(name)))


def _record_of(site: str, info: dict[str, Any], root: int) -> SubscriptionRecord:
    return SubscriptionRecord(
        site=site, floor=info["ack_floor"]["stream_seq"], root=root, config=info["config"]
    )
