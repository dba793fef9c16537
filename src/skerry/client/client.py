"""The asynchronous client: everything an application does with a site."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import msgspec

from skerry.client.placement import PlacementCalls
from skerry.client.usage import UsageReporter
from skerry.config import DUPLICATE_WINDOW, ClientSettings, check_timeout
from skerry.coords import Coordinate, unpack
from skerry.engine.address import Address, find_address
from skerry.engine.answers import ask
from skerry.engine.binary import check_version, parse_version
from skerry.engine.jetstream import JetStream
from skerry.engine.wire import Connection
from skerry.errors import (
    BadSetting,
    EngineUnfit,
    OutcomeUnknown,
    PublishFailed,
    SkerryError,
    Unavailable,
)
from skerry.feeds.feed import FeedHandle, FeedKeeper
from skerry.functions.calls import FunctionCalls
from skerry.log.append import Publisher
from skerry.log.follow import Subscription
from skerry.log.frames import new_id
from skerry.log.pack import Format, Packer
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.log.topics import Topics
from skerry.model.control import (
    ChangeRequest,
    CoordinateInfo,
    FeedsRequest,
    LinkInfo,
    MoveRequest,
    QueryAnswer,
    RemoveRequest,
    RttInfo,
    RttRequest,
    SiteInfo,
    SiteName,
    SiteStatus,
    TopicName,
    TopicRequest,
)
from skerry.model.event import Event, check_id
from skerry.model.feeds import FEED_LEASE, Change, Feed, Metadata, check_change
from skerry.model.names import check_topic
from skerry.model.topic import Ack, Durability, OnPartition, Topic, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from skerry.feeds.subscription import QuerySubscription

Target = str | Path | Address
"""A connection file, a site's data folder, or a URL."""


def connect(
    target: Target | Sequence[Target] | None = None,
    *,
    user: str = "sdk",
    timeout: float | None = None,
    name: str = "skerry",
    settings: ClientSettings | None = None,
) -> Client:
    """A client of a site: `async with skerry.connect() as client`.

    `target` is a connection file, a site's data folder, or a URL `nats://user:password@host:port`;
    without it, `$SKERRY_CONNECT` or the default data folder. Given several, the client uses the
    nearest site, goes on at the next when that one fails, and returns when it is back. `timeout`
    bounds each call in seconds, engine restarts included.
    """
    settings = settings or ClientSettings()
    if timeout is not None:
        settings = msgspec.structs.replace(settings, timeout=timeout)
    if target is None or isinstance(target, str | Path | Address):
        addresses = [find_address(target, user)]
    else:
        addresses = [find_address(one, user) for one in target]
        if not addresses:
            raise BadSetting("no site to connect to was given")
    return Client(addresses, settings.check(), name)


WRITERS = 256
"""Topics for which `publish` keeps a publisher ready; more while they are in use."""
TIDIED = 2
"""How many of them are looked at after a publish when they are too many: more than one publish can
add, so that they become fewer again."""
MOVE_TIME = 90.0
"""Seconds that a move may take: the new home gets the whole log first."""
ACCESS_SAMPLES = 3
"""How often a client measures its way to its site before it says where it is."""


class _Closable(Protocol):
    async def close(self) -> None: ...


S = TypeVar("S", bound=_Closable)


class Opening(Generic[S]):
    """A subscription about to open: await it, or use it in `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, S]) -> None:
        self._opening = opening
        self._opened: S | None = None

    def __await__(self) -> Generator[Any, Any, S]:
        return self._opening.__await__()

    async def __aenter__(self) -> S:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(self, *error: object) -> None:
        if self._opened is not None:
            await self._opened.close()


class _Opened:
    """What a connected client works with."""

    def __init__(self, connection: Connection, site: str) -> None:
        self.connection = connection
        self.jetstream = JetStream(connection)
        self.routes = Routes(self.jetstream)
        self.reader = Reader(self.jetstream, self.routes)
        self.topics = Topics(self.jetstream, site)
        self.writers: dict[tuple[str, Ack | None], Publisher] = {}
        self.usage = UsageReporter(connection, self.routes)
        self.feeds = FeedKeeper(
            self.jetstream, lambda topic: Publisher(connection, self.routes, topic)
        )

    def tidy(self) -> None:
        """Close publishers that are too many. A few are looked at, the longest unused first; those
        that are in use have their turn again later."""
        for key in list(islice(self.writers, TIDIED)):
            writer = self.writers.pop(key)
            if writer.is_idle:
                writer.close()
            else:
                self.writers[key] = writer


class Client(FunctionCalls, PlacementCalls):
    """A connection to a site that survives engine restarts.

    While the site is away, calls wait; after `timeout` seconds they raise `Unavailable`, and a
    publish whose fate is unknown raises `OutcomeUnknown`. Nothing is dropped silently.
    """

    def __init__(self, addresses: list[Address], settings: ClientSettings, name: str) -> None:
        self._addresses = addresses
        self._settings = settings
        self._name = name
        self._opened: _Opened | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises `AccessDenied`, `Unavailable`, or `EngineTooOld`."""
        connection = await Connection.open(self._addresses, self._settings, self._name)
        try:
            check_version(parse_version(connection.info.version), str(connection.address))
            if not connection.info.jetstream:
                raise EngineUnfit(f"the engine at {connection.address} has JetStream off")
            opened = _Opened(connection, connection.address.site)
            await opened.routes.in_fabric()
        except BaseException:
            await connection.close()
            raise
        self._opened = opened

    async def close(self) -> None:
        """Close the connection; publishers and subscriptions end."""
        if self._opened is not None:
            await self._opened.feeds.close()
            await self._opened.usage.close()
            await self._opened.connection.close()

    @property
    def address(self) -> Address:
        """Where this client is connected, or is about to."""
        return self._opened.connection.address if self._opened else self._addresses[0]

    @property
    def site(self) -> str:
        """The site that this client is at."""
        return self.address.site

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise Unavailable("the client is not connected", "Use it inside `async with`.")
        return self._opened

    # Topics

    async def create_topic(
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
        """Create a topic, or find it if it exists with the same settings; see `TopicSettings`.

        In a fabric its home is at this client's site, or at the first site of `home` that is there.
        """
        settings = TopicSettings(
            max_events=max_events,
            max_bytes=max_bytes,
            max_age=max_age,
            max_event_bytes=max_event_bytes,
            keep_last=keep_last,
            durability=durability,
            prefer=(home,) if isinstance(home, str) else tuple(home),
            replicas=replicas,
            spread=spread if isinstance(spread, str) else ",".join(spread),
            ack=ack,
            on_partition=on_partition,
            latency=latency,
        ).check()
        request = TopicRequest(check_topic(name), msgspec.to_builtins(settings))
        return msgspec.json.decode(await self._ask("open.topic.create", request), type=Topic)

    async def topic(self, name: str) -> Topic:
        """A topic's settings and state."""
        if await self._open.routes.in_fabric():
            data = await self._ask("open.topic.show", TopicName(check_topic(name)))
            return msgspec.json.decode(data, type=Topic)
        return await self._open.topics.show(name)

    async def topics(self) -> list[Topic]:
        """All topics of the site, in a fabric of all sites, by name."""
        if await self._open.routes.in_fabric():
            return msgspec.json.decode(await self._ask("open.topic.list"), type=list[Topic])
        return await self._open.topics.list()

    async def set_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic; needs the administrator's credentials."""
        request = TopicRequest(check_topic(name), changes)
        return msgspec.json.decode(await self._ask("admin.topic.set", request), type=Topic)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its events; needs the administrator's credentials."""
        await self._ask("admin.topic.delete", TopicName(check_topic(name)))

    # Publishing

    async def publish(
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
        """Append one event to a topic or sub-topic; return its index once it is stored.

        `lifespan` removes the event after so many seconds. `id` makes the publish idempotent: a
        second one with the same id within two minutes adds nothing and returns the same index.
        `ack` says what to wait for, if not what the topic says: `outbox` (it is durable at this
        site; the index is not known yet, 0 is returned), `home`, or `quorum`.
        """
        opened = self._open
        connection = opened.connection
        identity = new_id() if id is None else check_id(id)
        limit = connection.settings.timeout if timeout is None else check_timeout(timeout)
        began = connection.now()
        writer = self._writer(topic, ack)
        future = None
        try:
            async with asyncio.timeout(limit):
                future = await writer.send(
                    data, key=key, headers=headers, lifespan=lifespan, id=identity,
                    again=id is not None,
                )  # fmt: skip
                return await asyncio.shield(future)
        except TimeoutError:
            if future is not None:
                writer.forget(future)
            down = connection.down_since
            if future is None or (down is not None and down <= began):
                raise connection.unavailable() from None
            raise OutcomeUnknown(
                f"publishing to {topic} was not acknowledged in time: {writer.why()}",
                f"It may or may not be stored. Publishing again with id={identity!r} adds nothing "
                "twice.",
            ) from None
        except PublishFailed as error:
            raise error.first or error from None
        finally:
            if len(opened.writers) > WRITERS:
                opened.tidy()

    def _writer(self, topic: str, ack: Ack | None) -> Publisher:
        """The publisher behind `publish`: one a topic, so that order holds across homes."""
        opened = self._open
        key = (topic, ack)
        writer = opened.writers.pop(key, None)
        if writer is None:
            writer = Publisher(
                opened.connection, opened.routes, topic, ack=ack, timeout=DUPLICATE_WINDOW - 10
            )
        opened.writers[key] = writer
        return writer

    def publisher(
        self,
        topic: str,
        *,
        ack: Ack | None = None,
        window: int = 4096,
        window_bytes: int = 32 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Publisher:
        """A high-rate publisher with many events in flight; use it in an `async with` block."""
        return Publisher(
            self._open.connection, self._open.routes, topic,
            ack=ack, window=window, window_bytes=window_bytes, timeout=timeout,
        )  # fmt: skip

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
    ) -> Packer:
        """A publisher of small records, many to an event; use it in an `async with` block."""
        publisher = self.publisher(topic, ack=ack, timeout=timeout)
        try:
            return Packer(publisher, format, schema=schema, records=records, linger=linger)
        except BaseException:
            publisher.close()
            raise

    # Reading

    async def latest_index(self, topic: str) -> int:
        """The index of the newest event of a topic or sub-topic; 0 if it has none."""
        return await self._open.reader.latest_index(topic)

    async def get(self, topic: str, index: int) -> Event:
        """The event with `index`. Raises `AgedOut` or `NotYet` if the log has none there."""
        return await self._open.reader.get(topic, index)

    def read(
        self, topic: str, from_index: int | None = None, to_index: int | None = None
    ) -> AsyncIterator[Event]:
        """Events from `from_index` (default: the first kept) to `to_index` (default: the latest
        at this moment), both included, in order."""
        return self._open.reader.read(topic, from_index, to_index)

    def subscribe(
        self,
        topic: str,
        *,
        from_index: int | None = None,
        from_time: datetime | None = None,
        durable: str | None = None,
        window: int | None = None,
        ack_wait: float = 30.0,
    ) -> Opening[Subscription]:
        """Follow a topic and its sub-topics: `async with client.subscribe("t") as events`, or
        `events = await client.subscribe("t")` and close it yourself.

        Without a start: events stored from now on. `durable` names a subscription that resumes
        where it was, also after a crash; acknowledge its events with `subscription.ack(event)`,
        what is not acknowledged within `ack_wait` seconds comes again. At most `window` events are
        in flight (by default 16384, or 1024 of a durable subscription).
        """
        return Opening(
            self._open.reader.subscribe(
                topic,
                from_index=from_index,
                from_time=from_time,
                durable=durable,
                window=window,
                ack_wait=ack_wait,
            )
        )

    async def unsubscribe(self, topic: str, durable: str) -> None:
        """Remove a durable subscription for good."""
        await self._open.reader.unsubscribe(topic, durable)

    # Feeds and queries

    async def feed(
        self,
        metadata: Metadata | None = None,
        *,
        id: str | None = None,
        topic: str | None = None,
        permanent: bool = False,
        owner: str | None = None,
        lease: float = FEED_LEASE,
    ) -> FeedHandle:
        """Register a feed, which others find by query: `async with await client.feed({…}) as feed`,
        then `await feed.publish(data)` and `await feed.set({"Location/Room": "415"})`.

        It publishes to a log of its site, or to `topic`. It goes when its block ends, or when its
        client vanishes, `lease` seconds later; a `permanent` one stays until it is removed. A feed
        has an `owner`, by default this client: who wants to go on with it later, with the same
        `id`, names itself.
        """
        return await self._open.feeds.register(
            metadata or {}, id=id, topic=topic, permanent=permanent, owner=owner, lease=lease
        )

    async def feeds(self, query: str | None = None) -> list[Feed]:
        """The feeds of all sites that match a query, or all, by id."""
        found: dict[str, Feed] = {}
        after = ""
        while True:
            data = await self._ask("open.feed.list", FeedsRequest(query=query, after=after))
            answer = msgspec.json.decode(data, type=QueryAnswer)
            found |= {feed.id: feed for feed in answer.feeds}
            if not answer.more:
                return [found[id] for id in sorted(found)]
            after = answer.feeds[-1].id

    async def set_feed(self, id: str, change: Change, *, owner: str) -> Feed:
        """Change the metadata of a feed that `owner` registered at this site, perhaps through
        another client: the keys that change with their values, None for one that goes. What it
        returns is known here, and told to the other sites. A feed of your own has `set`."""
        request = ChangeRequest(owner=owner, id=id, change=dict(check_change(change)))
        return msgspec.json.decode(await self._ask("open.feed.set", request), type=Feed)

    async def remove_feed(self, id: str, *, owner: str) -> None:
        """Remove a feed that `owner` registered at this site, also a permanent one. Its events
        stay."""
        await self._ask("open.feed.remove", RemoveRequest(owner=owner, id=id))

    def query(
        self,
        text: str,
        *,
        from_time: datetime | None = None,
        durable: str | None = None,
        window: int = 16384,
    ) -> Opening[QuerySubscription]:
        """Subscribe by query: `async with client.query('Room = "410"') as found`, then `async for
        item in found`. It yields `Joined`, `Left`, `Received` (an event) and `Missed`.

        `from_time` begins with what the feeds that match now published since. `durable` names a
        query that goes on where it was at this site, also after a crash; acknowledge its items with
        `found.ack(item)`.
        """
        # Not everybody should wait for the language.
        from skerry.feeds.durable import DurableQuery
        from skerry.feeds.subscription import QuerySubscription

        opened = self._open
        parts = (opened.jetstream, opened.routes, opened.reader, text)
        subscription = (
            QuerySubscription(*parts, from_time=from_time, window=window)
            if durable is None
            else DurableQuery(*parts, name=durable, from_time=from_time, window=window)
        )
        return Opening(subscription.open())

    # The fabric

    async def sites(self) -> list[SiteInfo]:
        """The sites of the fabric, by name."""
        return msgspec.json.decode(await self._ask("open.sites"), type=list[SiteInfo])

    async def links(self) -> list[LinkInfo]:
        """The links of this client's site."""
        return msgspec.json.decode(await self._ask("open.links"), type=list[LinkInfo])

    async def rtt(self, *sites: str, origin: str | None = None) -> list[RttInfo]:
        """Round-trip times between `sites`, or all, each pair once; with `origin`, only from there.
        This client's site answers by what it knows: coordinates of all, and what each of them
        measured. Raises `UnknownSite`."""
        request = RttRequest(list(sites), origin)
        return msgspec.json.decode(await self._ask("open.rtt", request), type=list[RttInfo])

    async def coordinate(self) -> Coordinate:
        """Where this client is: at its site, its own way to there added to the height. Distances to
        other coordinates are `skerry.coords.between` the two, in seconds."""
        shortest, data = math.inf, b""
        for _ in range(ACCESS_SAMPLES):  # the shortest is the nearest to the truth
            began = time.monotonic()
            data = await self._ask("open.coordinate")
            shortest = min(shortest, time.monotonic() - began)
        found = unpack(msgspec.json.decode(data, type=CoordinateInfo).coordinate)
        assert found is not None  # our own site's, which it has checked
        return found.behind(shortest)

    async def move_topic(
        self, name: str, to: str, *, replicas: Sequence[str] | None = None
    ) -> Topic:
        """Move a topic's home to another site while its clients go on; needs the administrator's
        credentials. `replicas` names the sites of the replicas from now on."""
        members = None if replicas is None else [to, *replicas]
        request = MoveRequest(check_topic(name), to, members)
        data = await self._ask("admin.topic.move", request, timeout=MOVE_TIME)
        return msgspec.json.decode(data, type=Topic)

    async def move_topics(
        self,
        moves: Mapping[str, str],
        *,
        at_once: int = 16,
        progress: Callable[[str, Topic | SkerryError], None] | None = None,
    ) -> dict[str, Topic | SkerryError]:
        """Move many topics, name → site, `at_once` of them at a time. One that fails stays where it
        is and does not keep the others; `progress` is called as each is done."""
        if at_once < 1:
            raise BadSetting(f"at least one topic moves at a time, not {at_once!r}")
        gate = asyncio.Semaphore(at_once)

        async def move(name: str, to: str) -> Topic | SkerryError:
            async with gate:
                try:
                    result: Topic | SkerryError = await self.move_topic(name, to)
                except SkerryError as error:
                    result = error
            if progress is not None:
                progress(name, result)
            return result

        results = await asyncio.gather(*(move(name, to) for name, to in moves.items()))
        return dict(zip(moves, results, strict=True))

    async def drain_site(self, site: str) -> list[str]:
        """Move every home and replica away from a site; needs the administrator's credentials.
        Returns the names of the topics that were moved."""
        data = await self._ask("admin.site.drain", SiteName(site), timeout=MOVE_TIME)
        return msgspec.json.decode(data, type=list[str])

    async def undrain_site(self, site: str) -> None:
        """Let a site that was drained have topics again; needs the administrator's credentials."""
        await self._ask("admin.site.undrain", SiteName(site))

    async def remove_site(self, site: str) -> None:
        """Strike a site from the fabric: its links are closed and its keys refused; needs the
        administrator's credentials."""
        await self._ask("admin.site.remove", SiteName(site))

    async def join_token(self, life: float = 24 * 3600) -> str:
        """A token for one site to join the fabric with, good for `life` seconds; needs the
        administrator's credentials."""
        return msgspec.json.decode(await self._ask("admin.fabric.token", {"life": life}), type=str)

    # The site

    async def status(self) -> SiteStatus:
        """How the site is."""
        return msgspec.json.decode(await self._ask("open.status"), type=SiteStatus)

    async def _ask(self, service: str, body: object = None, timeout: float | None = None) -> bytes:
        return await ask(self._open.jetstream, self.site, service, body, timeout)
