"""A site's part in feeds and queries: keeps its own feeds, follows everybody's, tells subscribers.

What is known of a feed is a record in a log of the site where it was registered, and every site has
a copy of every such log. So a change is written where its publisher is and told everywhere by the
engines; no other site is needed for it, the coordination site neither (docs/adr/0006-feeds.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import BadSetting, FeedTaken, SkerryError, Unavailable, UnknownTopic
from skerry.fabric.control import Control
from skerry.fabric.tasks import Tasks
from skerry.feeds.home import Homes
from skerry.feeds.view import View
from skerry.log.append import Publisher
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.model.control import (
    ChangeRequest,
    CheckAnswer,
    CheckRequest,
    Differences,
    FeedsRequest,
    QueryAnswer,
    QueryRequest,
    RegisterRequest,
    RemoveRequest,
    RenewRequest,
    TopicRequest,
)
from skerry.model.feeds import Feed, apply, check_change, check_id, check_metadata, read_feed
from skerry.model.names import check_not_own, differences_subject, feed_log, feed_records
from skerry.query.language import parse

log = logging.getLogger("skerry.feeds")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KNOW_TIME = 5.0
"""Seconds to wait until this site knows what it was just told to expect."""
LOOK = 1.0
"""Seconds between looks at who has expired."""
AGAIN = 0.5
"""Seconds before a log of records that could not be followed is tried again."""
REMEMBERED = 3600
"""Seconds that the record of a removed feed stays: for so long it is told to those who were away,
later they miss it among the records."""
BREATH = 256
"""Records that are taken in at a time."""
MAX_OWNER = 128
VERSIONS = 32
"""Versions of each feed's record that are kept: what a durable query that was away needs to tell
when a feed matched and when not."""

Names = Callable[[], Iterable[str]]


class _Engine:
    """The own engine over a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        jetstream = JetStream(connection)
        self.routes = Routes(jetstream)
        self.reader = Reader(jetstream, self.routes)
        self.homes = Homes(jetstream, self.routes, self.reader)

    def publisher(self, topic: str) -> Publisher:
        return Publisher(self.connection, self.routes, topic)


class Feeds:
    """The feeds of one site, and its subscribers' queries.

    `connect` makes one more connection to the own engine; `names` lists the topics that hold
    records of feeds.
    """

    def __init__(
        self,
        site: str,
        control: Control,
        connect: Callable[[], Awaitable[Connection]],
        names: Names,
    ) -> None:
        self.site = site
        self.view = View(self._tell, secrets.token_hex(4))
        self.tells: list[Callable[[str, Differences], None]] = []
        """Called with each difference of a query's result, before anything else happens."""
        self._control = control
        self._connect = connect
        self._names = names
        self._engine: _Engine | None = None
        self._records: Publisher | None = None
        self._own: dict[str, Feed] = {}
        """The feeds registered here, as we last wrote them."""
        self._owned_by: dict[str, set[str]] = {}
        self._leases: dict[str, float] = {}
        """Owners, and until when they are believed to be there."""
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """For each feed that is being changed: a lock, and a None for each who wants it."""
        self._following: dict[str, asyncio.Task[None]] = {}
        self._made: set[str] = set()
        self._caught_up: dict[str, asyncio.Event] = {}
        self._waiters: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self._look_now = asyncio.Event()
        self._started = asyncio.Event()
        self._tasks = Tasks("the keeping of feeds")

    def serve(self) -> None:
        """Answer what is asked about feeds and queries."""
        control = self._control
        control.serve("open.feed.register", RegisterRequest, self.register)
        control.serve("open.feed.set", ChangeRequest, self.change)
        control.serve("open.feed.remove", RemoveRequest, self.remove)
        control.serve("open.feed.renew", RenewRequest, self.renew)
        control.serve("open.feed.list", FeedsRequest, self.list)
        control.serve("open.query.open", QueryRequest, self.open_query)
        control.serve("open.query.renew", QueryRequest, self.renew_query)
        control.serve("open.query.close", QueryRequest, self.close_query)
        control.serve("open.query.check", CheckRequest, self.check)

    def start(self) -> None:
        """Begin to follow records."""
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Stop; feeds stay as they are."""
        await self._tasks.close()
        if self._records is not None:
            self._records.close()
        if self._engine is not None:
            await self._engine.connection.close()

    def look(self) -> None:
        """There may be other logs of records now."""
        self._look_now.set()

    def on_link(self, peer: str) -> None:
        """A link is back: what was delivered meanwhile was lost, and subscribers should look."""
        self._publish(differences_subject(self.site, "link"), peer.encode())

    # Feeds

    async def register(self, request: RegisterRequest) -> Feed:
        """Register a feed, or have one that is there be as the request says."""
        id = str(uuid.uuid4()) if request.id is None else check_id(request.id)
        owner = _check_owner(request.owner)
        metadata = check_metadata(request.metadata)
        engine = await self._ready()
        topic = request.topic or f"{feed_log(self.site)}/{id}"
        if request.topic is not None:
            check_not_own(request.topic)
            await engine.homes.place(topic)  # says so if there is none
        await self._make_logs(engine)
        self._leases[owner] = self._now() + _check_lease(request.lease)
        async with self._lock(id):
            held = self._held(id)
            if held is not None and held.owner != owner:
                raise FeedTaken(
                    f"the feed {id} belongs to {held.owner!r}",
                    "Leave the id out to get a new one, or register it as that owner.",
                )
            known = max(held.version if held else 0, request.version)
            if held is not None and held.site == self.site and held.version == known and (
                held.metadata, held.topic, held.permanent
            ) == (metadata, topic, request.permanent):  # fmt: skip
                return held
            feed = Feed(
                id=id,
                owner=owner,
                topic=topic,
                site=self.site,
                metadata=metadata,
                permanent=request.permanent,
                lease=request.lease,
                version=known + 1,
                since=held.since if held else request.since or time.time_ns(),
                at=await self._latest(topic),
            )
            await self._write(feed)
        return feed

    async def change(self, request: ChangeRequest) -> Feed:
        """Change a feed's metadata."""
        id, change = check_id(request.id), check_change(request.change)
        await self._ready()
        async with self._lock(id):
            held = self._owned(id, request.owner)
            metadata = apply(held.metadata, change)
            if metadata == held.metadata:
                return held
            feed = msgspec.structs.replace(
                held, metadata=metadata, version=held.version + 1,
                at=await self._latest(held.topic),
            )  # fmt: skip
            await self._write(feed)
        return feed

    async def remove(self, request: RemoveRequest) -> None:
        """Remove a feed; its events stay."""
        id = check_id(request.id)
        await self._ready()
        async with self._lock(id):
            await self._remove(self._owned(id, request.owner))

    async def renew(self, request: RenewRequest) -> list[str]:
        """An owner is there."""
        self._leases[request.owner] = self._now() + _check_lease(request.lease)
        await self._ready()
        return sorted(self._owned_by.get(request.owner, ()))

    async def list(self, request: FeedsRequest) -> QueryAnswer:
        """Feeds of all sites that match."""
        query = None if request.query is None else parse(request.query)
        await self._ready()
        feeds, more = self.view.page(query, request.after)
        return QueryAnswer(key="", number=0, feeds=feeds, more=more)

    # Queries

    async def open_query(self, request: QueryRequest) -> QueryAnswer:
        """Hold a query for a subscriber, and tell its result."""
        query = parse(request.text)
        await self._ready()
        return self.view.hold(query, request.holder, self._now(), request.after)

    def renew_query(self, request: QueryRequest) -> int | None:
        """A subscriber is there. What it should have been told; None: it must ask anew."""
        return self.view.renew(request.key, request.holder, self._now())

    def close_query(self, request: QueryRequest) -> None:
        """A subscriber is gone."""
        self.view.release(request.key, request.holder)

    async def check(self, request: CheckRequest) -> CheckAnswer:
        """Whether a feed matches, as soon as that version of it is known here."""
        await self._know(request.feed, request.version)
        return self.view.check(request.key, request.feed)

    def _tell(self, key: str, differences: Differences) -> None:
        self._publish(differences_subject(self.site, key), msgspec.json.encode(differences))
        for tell in self.tells:
            tell(key, differences)

    def _publish(self, subject: str, data: bytes) -> None:
        if self._engine is not None:
            with contextlib.suppress(Down):  # subscribers ask anew when the engine is back
                self._engine.connection.publish(subject, data)

    # Our own feeds

    def _held(self, id: str) -> Feed | None:
        """A feed as we know it; of our own, as we last wrote it."""
        if id in self._own:
            return self._own[id]
        return self.view.feed(id) if self.view.version(id) else None

    def _owned(self, id: str, owner: str) -> Feed:
        held = self._held(id)
        if held is None:
            held = self.view.feed(id)  # says so
        if held.owner != owner:
            raise FeedTaken(f"the feed {id} belongs to {held.owner!r}, not to {owner!r}")
        if held.site != self.site:
            raise BadSetting(
                f"the feed {id} is registered at site {held.site}",
                "Change it there, or register it here first.",
            )
        return held

    async def _write(self, feed: Feed) -> None:
        """Write a record; return when it is durable and known here."""
        assert self._records is not None
        known = self._expect(feed.id, feed.version)
        try:
            stored = await self._records.send(
                msgspec.json.encode(feed),
                topic=f"{feed_records(self.site)}/{feed.id}",
                lifespan=REMEMBERED if feed.removed else None,
            )
            await stored
            self._keep(feed)
            await asyncio.wait({known}, timeout=KNOW_TIME)
        finally:
            known.cancel()

    def _keep(self, feed: Feed) -> None:
        """Remember one of our own feeds as it was written."""
        owned = self._owned_by.setdefault(feed.owner, set())
        if feed.removed:
            self._own.pop(feed.id, None)
            owned.discard(feed.id)
            if not owned:
                del self._owned_by[feed.owner]
        else:
            self._own[feed.id] = feed
            owned.add(feed.id)

    async def _remove(self, feed: Feed) -> None:
        at = await self._latest(feed.topic)
        gone = msgspec.structs.replace(
            feed, removed=True, version=feed.version + 1, at=at, metadata={}
        )
        await self._write(gone)

    async def _latest(self, topic: str) -> int:
        """The index of the newest event of a feed, by its home."""
        assert self._engine is not None
        return await self._engine.homes.newest(topic)

    async def _know(self, id: str, version: int) -> None:
        """Wait until that version of a feed was read from its site's records, but not for ever."""
        if self.view.version(id) < version:
            await asyncio.wait({self._expect(id, version)}, timeout=KNOW_TIME)

    def _expect(self, id: str, version: int) -> asyncio.Future[None]:
        """Done when that version of a feed is read, or a later one."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (version, waiter)
        self._waiters.setdefault(id, []).append(entry)

        def forget(_: asyncio.Future[None]) -> None:
            self._waiters[id].remove(entry)
            if not self._waiters[id]:
                del self._waiters[id]

        waiter.add_done_callback(forget)
        return waiter

    @contextlib.asynccontextmanager
    async def _lock(self, id: str) -> AsyncIterator[None]:
        lock, users = self._locks.setdefault(id, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[id]

    async def _make_logs(self, engine: _Engine) -> None:
        """Have the topics of this site's feeds, from the first registration on."""
        if self._records is not None:
            return
        for name, settings in (
            (feed_log(self.site), {}),
            (feed_records(self.site), {"keep_last": VERSIONS}),
        ):
            request = TopicRequest(name, settings)
            await self._control.call("admin.topic.create", msgspec.json.encode(request))
        if self._records is None:
            self._records = engine.publisher(feed_records(self.site))
            self._made.add(feed_records(self.site))
            self._caught_up.setdefault(feed_records(self.site), asyncio.Event())
            self.look()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = self._now()
            self.view.expire(now)
            for owner in [owner for owner, until in self._leases.items() if until < now]:
                del self._leases[owner]
                for id in list(self._owned_by.get(owner, ())):
                    await self._expire_one(id)

    async def _expire_one(self, id: str) -> None:
        async with self._lock(id):
            feed = self._own.get(id)
            if feed is None or feed.permanent or feed.owner in self._leases:
                return
            log.info("the feed %s expired: %s is silent", id, feed.owner)
            try:
                await self._remove(feed)
            except SkerryError as error:
                log.warning("the feed %s could not be removed: %s", id, error)
                self._leases[feed.owner] = self._now() + feed.lease  # later, then

    # Everybody's feeds

    async def _run(self) -> None:
        while self._engine is None:
            try:
                self._engine = _Engine(await self._connect())
            except (SkerryError, Down) as error:
                log.warning("feeds are not served yet: %s", error)
                await asyncio.sleep(AGAIN)
        self._tasks.spawn(self._expire())
        while True:
            self._look_now.clear()
            for name in sorted({*self._names(), *self._made}):
                task = self._following.get(name)
                if task is None or task.done():
                    self._caught_up.setdefault(name, asyncio.Event())
                    self._following[name] = self._tasks.spawn(self._follow(self._engine, name))
            self._started.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), LOOK)

    async def _follow(self, engine: _Engine, name: str) -> None:
        """Take in the records of one site, for ever."""
        site = name.split("/")[1]
        while True:
            try:
                async with await engine.reader.subscribe(name, from_time=EPOCH) as events:
                    newest = await engine.reader.latest_index(name)
                    if not newest:
                        self._is_caught_up(name, site)
                    async for event in events:
                        if not event.index % BREATH:
                            await asyncio.sleep(0)  # heartbeats and requests come in between
                        if (feed := read_feed(event)) is not None:
                            self._take(feed, event.index)
                        if event.index >= newest and not self._caught_up[name].is_set():
                            self._is_caught_up(name, site)
            except UnknownTopic:
                self.view.forget_site(site)
                self._caught_up.pop(name).set()
                if site == self.site:
                    self._lose_records()
                return
            except (SkerryError, Down) as error:
                log.info("the records of %s cannot be read now: %s", site, error)
                if site != self.site:
                    self._caught_up[name].set()  # go on with what is known
            await asyncio.sleep(AGAIN)

    def _lose_records(self) -> None:
        """Somebody deleted the records of our feeds; they are made anew when one is registered."""
        if self._records is not None:
            self._records.close()
        self._records = None
        self._made.clear()
        self._own.clear()
        self._owned_by.clear()

    def _is_caught_up(self, name: str, site: str) -> None:
        if site == self.site and not self._own:
            now = self._now()
            for feed in self.view.owned(site):
                self._keep(feed)
                until = now + feed.lease
                self._leases[feed.owner] = max(until, self._leases.get(feed.owner, 0.0))
        self._caught_up[name].set()

    def _take(self, feed: Feed, index: int) -> None:
        counts = self.view.take(feed, index)
        ours = self._own.get(feed.id)
        if counts and ours is not None and feed.site != self.site and not feed.removed:
            # Its owner went to another site with it, or somebody had registered it earlier there.
            if feed.owner != ours.owner:
                log.warning("the feed %s of %r belongs to %r", feed.id, ours.owner, feed.owner)
            self._tasks.spawn(self._write(_gone(ours)))
        for version, waiter in list(self._waiters.get(feed.id, ())):
            if feed.version >= version and not waiter.done():
                waiter.set_result(None)

    async def _ready(self) -> _Engine:
        """The engine, once what the logs of records hold is known."""
        try:
            async with asyncio.timeout(KNOW_TIME):
                await self._started.wait()
                for event in list(self._caught_up.values()):
                    await event.wait()
        except TimeoutError:
            log.warning("going on without all records of feeds")
        engine = self._engine
        if engine is None:
            raise Unavailable("the site is starting and does not know its feeds yet")
        if self._records is None and feed_records(self.site) in self._names():
            self._records = engine.publisher(feed_records(self.site))
        return engine

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _gone(feed: Feed) -> Feed:
    return msgspec.structs.replace(feed, removed=True, version=feed.version + 1, metadata={})


def _check_owner(owner: str) -> str:
    if not owner or len(owner) > MAX_OWNER or not owner.isprintable():
        raise BadSetting(
            f"{owner!r:.80} cannot name an owner", f"Use 1 to {MAX_OWNER} characters of plain text."
        )
    return owner


def _check_lease(lease: float) -> float:
    if not 1 <= lease <= 86400:
        raise BadSetting(f"a lease is 1 to 86400 seconds, not {lease!r}")
    return lease
