"""The synchronous face: the same names without `await`, for scripts and notebooks.

Each client runs an event loop in a thread of its own. Calls may come from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

import skerry.client.client as asynchronous
from skerry.client.client import Target
from skerry.client.sync_functions import SyncFunctionCalls
from skerry.client.sync_placement import SyncPlacementCalls
from skerry.config import ClientSettings
from skerry.coords import Coordinate
from skerry.errors import SkerryError, Unavailable
from skerry.feeds.feed import FeedHandle
from skerry.log.append import Publisher
from skerry.log.follow import Subscription
from skerry.log.pack import Format, Packer
from skerry.model.control import LinkInfo, RttInfo, SiteInfo, SiteStatus
from skerry.model.event import Event
from skerry.model.feeds import FEED_LEASE, Change, Feed, Metadata
from skerry.model.topic import Ack, Durability, OnPartition, Topic

if TYPE_CHECKING:
    import pyarrow as pa

    from skerry.feeds.items import Item
    from skerry.feeds.subscription import QuerySubscription

T = TypeVar("T")


def connect(
    target: Target | Sequence[Target] | None = None,
    *,
    user: str = "sdk",
    timeout: float | None = None,
    name: str = "skerry",
    settings: ClientSettings | None = None,
) -> SyncClient:
    """Connect to a site now; use the client in a `with` block, or `close` it.

    Takes what `skerry.connect` takes.
    """
    client = asynchronous.connect(target, user=user, timeout=timeout, name=name, settings=settings)
    return SyncClient(client)


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="skerry", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise Unavailable("the client is closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # a Ctrl-C here must not leave the work running there
            future.cancel()
            raise

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class SyncClient(SyncFunctionCalls, SyncPlacementCalls):
    """A `skerry.Client` whose calls block; each does what its namesake does."""

    def __init__(self, client: asynchronous.Client) -> None:
        self._client = client
        self._loop = _Loop()
        try:
            self._loop.run(client.open())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end the thread."""
        with suppress(Unavailable):
            self._loop.run(self._client.close())
        self._loop.close()

    @property
    def site(self) -> str:
        """The site that this client is at."""
        return self._client.site

    def create_topic(
        self,
        name: str,
        *,
        max_events: int | None = None,
        max_bytes: int | None = None,
        max_age: float | None = None,
        max_event_bytes: int | None = None,
        keep_last: int | None = None,
        durability: Durability = "process",
        home: str | Sequence[str] = (),
        replicas: int = 0,
        spread: str | Sequence[str] = "distributed",
        ack: Ack = "home",
        on_partition: OnPartition = "stop",
        latency: float | None = None,
    ) -> Topic:
        """Create a topic, or find it if it exists with the same settings."""
        return self._loop.run(
            self._client.create_topic(
                name,
                max_events=max_events,
                max_bytes=max_bytes,
                max_age=max_age,
                max_event_bytes=max_event_bytes,
                keep_last=keep_last,
                durability=durability,
                home=home,
                replicas=replicas,
                spread=spread,
                ack=ack,
                on_partition=on_partition,
                latency=latency,
            )
        )

    def topic(self, name: str) -> Topic:
        """A topic's settings and state."""
        return self._loop.run(self._client.topic(name))

    def topics(self) -> list[Topic]:
        """All topics of the site, in a fabric of all sites, by name."""
        return self._loop.run(self._client.topics())

    def set_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic; needs the administrator's credentials."""
        return self._loop.run(self._client.set_topic(name, **changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its events; needs the administrator's credentials."""
        self._loop.run(self._client.delete_topic(name))

    def publish(
        self,
        topic: str,
        data: bytes | str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lifespan: float | None = None,
        id: str | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append one event; return its index once it is stored, 0 with `ack="outbox"`."""
        return self._loop.run(
            self._client.publish(
                topic, data,
                key=key, headers=headers, lifespan=lifespan, id=id, ack=ack, timeout=timeout,
            )
        )  # fmt: skip

    def publisher(
        self,
        topic: str,
        *,
        ack: Ack | None = None,
        window: int = 4096,
        window_bytes: int = 32 * 1024 * 1024,
        timeout: float | None = None,
    ) -> SyncPublisher:
        """A high-rate publisher; use it in a `with` block."""

        async def make() -> Publisher:
            return self._client.publisher(
                topic, ack=ack, window=window, window_bytes=window_bytes, timeout=timeout
            )

        return SyncPublisher(self._loop, self._loop.run(make()))

    def packer(
        self,
        topic: str,
        format: Format = "msgpack",
        *,
        schema: pa.Schema | None = None,
        records: int = 1000,
        linger: float = 0.1,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> SyncPacker:
        """A publisher of small records, many to an event; use it in a `with` block."""

        async def make() -> Packer:
            return self._client.packer(
                topic, format,
                schema=schema, records=records, linger=linger, ack=ack, timeout=timeout,
            )  # fmt: skip

        return SyncPacker(self._loop, self._loop.run(make()))

    def latest_index(self, topic: str) -> int:
        """The index of the newest event of a topic or sub-topic; 0 if it has none."""
        return self._loop.run(self._client.latest_index(topic))

    def get(self, topic: str, index: int) -> Event:
        """The event with `index`."""
        return self._loop.run(self._client.get(topic, index))

    def read(
        self, topic: str, from_index: int | None = None, to_index: int | None = None
    ) -> Iterator[Event]:
        """Events from `from_index` to `to_index`, both included, in order."""
        events = self._client.read(topic, from_index, to_index)
        try:
            while batch := self._loop.run(_some(events)):
                yield from batch
        finally:
            with suppress(Unavailable):
                self._loop.run(_end(events))

    def subscribe(
        self,
        topic: str,
        *,
        from_index: int | None = None,
        from_time: datetime | None = None,
        durable: str | None = None,
        window: int | None = None,
        ack_wait: float = 30.0,
    ) -> SyncSubscription:
        """Follow a topic and its sub-topics; iterate over it with `for`."""

        async def open_() -> Subscription:
            return await self._client.subscribe(
                topic,
                from_index=from_index,
                from_time=from_time,
                durable=durable,
                window=window,
                ack_wait=ack_wait,
            )

        return SyncSubscription(self._loop, self._loop.run(open_()))

    def unsubscribe(self, topic: str, durable: str) -> None:
        """Remove a durable subscription for good."""
        self._loop.run(self._client.unsubscribe(topic, durable))

    def feed(
        self,
        metadata: Metadata | None = None,
        *,
        id: str | None = None,
        topic: str | None = None,
        permanent: bool = False,
        owner: str | None = None,
        lease: float = FEED_LEASE,
    ) -> SyncFeed:
        """Register a feed, which others find by query; use it in a `with` block. It is renewed
        while this client is open."""
        registering = self._client.feed(
            metadata, id=id, topic=topic, permanent=permanent, owner=owner, lease=lease
        )
        return SyncFeed(self._loop, self._loop.run(registering))

    def feeds(self, query: str | None = None) -> list[Feed]:
        """The feeds of all sites that match a query, or all, by id."""
        return self._loop.run(self._client.feeds(query))

    def set_feed(self, id: str, change: Change, *, owner: str) -> Feed:
        """Change the metadata of a feed that `owner` registered at this site."""
        return self._loop.run(self._client.set_feed(id, change, owner=owner))

    def remove_feed(self, id: str, *, owner: str) -> None:
        """Remove a feed that `owner` registered at this site. Its events stay."""
        self._loop.run(self._client.remove_feed(id, owner=owner))

    def query(
        self,
        text: str,
        *,
        from_time: datetime | None = None,
        durable: str | None = None,
        window: int = 16384,
    ) -> SyncQuery:
        """Subscribe by query; iterate over it with `for`. It yields `Joined`, `Left`, `Received`
        and `Missed`. With `durable`, acknowledge them with `ack(item)`."""

        async def open_() -> QuerySubscription:
            return await self._client.query(
                text, from_time=from_time, durable=durable, window=window
            )

        return SyncQuery(self._loop, self._loop.run(open_()))

    def sites(self) -> list[SiteInfo]:
        """The sites of the fabric, by name."""
        return self._loop.run(self._client.sites())

    def links(self) -> list[LinkInfo]:
        """The links of this client's site."""
        return self._loop.run(self._client.links())

    def rtt(self, *sites: str, origin: str | None = None) -> list[RttInfo]:
        """Round-trip times between `sites`, or all; with `origin`, only from there."""
        return self._loop.run(self._client.rtt(*sites, origin=origin))

    def coordinate(self) -> Coordinate:
        """Where this client is: at its site, its own way to there added to the height."""
        return self._loop.run(self._client.coordinate())

    def move_topic(self, name: str, to: str, *, replicas: Sequence[str] | None = None) -> Topic:
        """Move a topic's home to another site; needs the administrator's credentials."""
        return self._loop.run(self._client.move_topic(name, to, replicas=replicas))

    def move_topics(
        self,
        moves: Mapping[str, str],
        *,
        at_once: int = 16,
        progress: Callable[[str, Topic | SkerryError], None] | None = None,
    ) -> dict[str, Topic | SkerryError]:
        """Move many topics, name → site; `progress` is called from the client's own thread."""
        return self._loop.run(self._client.move_topics(moves, at_once=at_once, progress=progress))

    def drain_site(self, site: str) -> list[str]:
        """Move every home and replica away from a site; needs the administrator's credentials."""
        return self._loop.run(self._client.drain_site(site))

    def undrain_site(self, site: str) -> None:
        """Let a site that was drained have topics again; needs the administrator's credentials."""
        self._loop.run(self._client.undrain_site(site))

    def remove_site(self, site: str) -> None:
        """Strike a site from the fabric; needs the administrator's credentials."""
        self._loop.run(self._client.remove_site(site))

    def join_token(self, life: float = 24 * 3600) -> str:
        """A token for one site to join with; needs the administrator's credentials."""
        return self._loop.run(self._client.join_token(life))

    def status(self) -> SiteStatus:
        """How the site is."""
        return self._loop.run(self._client.status())


class SyncPublisher:
    """A `Publisher` whose `send` blocks while the window is full."""

    def __init__(self, loop: _Loop, publisher: Publisher) -> None:
        self._loop = loop
        self._publisher = publisher

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run(self._publisher.__aexit__(*error))

    def send(
        self,
        data: bytes | str,
        *,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lifespan: float | None = None,
        id: str | None = None,
    ) -> Future[int]:
        """Send one event; return the future of its index."""
        index: Future[int] = Future()

        async def send() -> None:
            ack = await self._publisher.send(
                data, topic=topic, key=key, headers=headers, lifespan=lifespan, id=id
            )
            ack.add_done_callback(lambda done: _copy(done, index))

        self._loop.run(send())
        return index

    def flush(self) -> None:
        """Wait until nothing is in flight; raise `PublishFailed` if an event failed."""
        self._loop.run(self._publisher.flush())


class SyncPacker:
    """Publishes records, many to an event; made by `SyncClient.packer`."""

    def __init__(self, loop: _Loop, packer: Packer) -> None:
        self._loop = loop
        self._packer = packer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run(self._packer.__aexit__(*error))

    def send(self, record: Mapping[str, Any]) -> None:
        """Add a record."""
        self._loop.run(self._packer.send(record))

    def flush(self) -> None:
        """Send what is left, and wait until everything is acknowledged."""
        self._loop.run(self._packer.flush())


class SyncSubscription:
    """A `Subscription` to iterate over with `for`."""

    def __init__(self, loop: _Loop, subscription: Subscription) -> None:
        self._loop = loop
        self._subscription = subscription

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self._loop.run(_next(self._subscription))
        if event is None:
            raise StopIteration
        return event

    def ack(self, event: Event) -> None:
        """Say that `event` is done with."""
        self._loop.run(_call(self._subscription.ack, event))

    def reject(self, event: Event, delay: float = 0.0) -> None:
        """Ask for `event` once more, after `delay` seconds."""
        self._loop.run(_call(self._subscription.reject, event, delay))

    def close(self) -> None:
        """Stop. A durable subscription stays at the engine."""
        with suppress(Unavailable):
            self._loop.run(self._subscription.close())


class SyncFeed:
    """A feed that this client publishes to. Leaving its `with` block removes the feed, unless it is
    permanent; its events stay."""

    def __init__(self, loop: _Loop, handle: FeedHandle) -> None:
        self._loop = loop
        self._handle = handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """The feed's UUID."""
        return self._handle.id

    @property
    def topic(self) -> str:
        """Where its events go."""
        return self._handle.topic

    @property
    def metadata(self) -> Metadata:
        """What is said of it."""
        return self._handle.metadata

    @property
    def feed(self) -> Feed:
        """All that is known of it."""
        return self._handle.feed

    def publish(
        self, data: bytes | str, *, change: dict[str, Any] | None = None, **options: Any
    ) -> int:
        """Publish an event, after `change` of the metadata; return its index once it is stored."""
        return self._loop.run(self._handle.publish(data, change=change, **options))

    def send(
        self, data: bytes | str, *, change: dict[str, Any] | None = None, **options: Any
    ) -> Future[int]:
        """Publish an event, after `change` of the metadata; return the future of its index."""
        index: Future[int] = Future()

        async def send() -> None:
            ack = await self._handle.send(data, change=change, **options)
            ack.add_done_callback(lambda done: _copy(done, index))

        self._loop.run(send())
        return index

    def set(self, change: dict[str, Any]) -> Feed:
        """Change the metadata: the keys that change with their values, None for one that goes."""
        return self._loop.run(self._handle.set(change))

    def remove(self) -> None:
        """Remove the feed, also a permanent one. Its events stay."""
        self._loop.run(self._handle.remove())

    def close(self) -> None:
        """Stop publishing; a feed that is not permanent goes."""
        self._loop.run(self._handle.close())


class SyncQuery:
    """A subscription by query to iterate over with `for`."""

    def __init__(self, loop: _Loop, subscription: QuerySubscription) -> None:
        self._loop = loop
        self._subscription = subscription

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._loop.run(_next(self._subscription))
        if item is None:
            raise StopIteration
        return item

    def ack(self, item: Item) -> None:
        """Say that an item of a durable query is done with."""

        async def say() -> None:
            self._subscription.ack(item)

        self._loop.run(say())

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that match now, as far as this subscription was told."""

        async def look() -> list[Feed]:
            return self._subscription.feeds

        return self._loop.run(look())

    def close(self) -> None:
        """Stop."""
        with suppress(Unavailable):
            self._loop.run(self._subscription.close())


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _some(events: AsyncIterator[Event]) -> list[Event]:
    """A batch, so that a long read does not change threads for every event."""
    batch: list[Event] = []
    while len(batch) < 256 and (event := await anext(events, None)) is not None:
        batch.append(event)
    return batch


async def _end(events: AsyncIterator[Event]) -> None:
    if (close := getattr(events, "aclose", None)) is not None:
        await close()


async def _call(function: Any, *arguments: Any) -> None:
    function(*arguments)


def _copy(done: asyncio.Future[int], index: Future[int]) -> None:
    if done.cancelled():
        index.cancel()
    elif (error := done.exception()) is not None:
        index.set_exception(error)
    else:
        index.set_result(done.result())
