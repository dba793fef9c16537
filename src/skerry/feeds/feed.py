"""A publisher's side of feeds."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import Callable
from typing import Any, Self

import msgspec

from skerry.engine.answers import ask
from skerry.engine.jetstream import JetStream
from skerry.engine.wire import Listener
from skerry.errors import OutcomeUnknown, SkerryError, Unavailable, UnknownFeed
from skerry.log.append import Publisher
from skerry.model.control import ChangeRequest, RegisterRequest, RemoveRequest, RenewRequest
from skerry.model.event import VERSION_HEADER
from skerry.model.feeds import Feed, Metadata, check_change, check_metadata
from skerry.model.names import feed_log, is_within

AGAIN = 0.1
"""Seconds before an agent that could not do it is asked again."""


class FeedHandle:
    """A feed that this client publishes to. Leaving its `async with` block removes the feed, unless
    it is permanent; its events stay."""

    def __init__(self, keeper: FeedKeeper, feed: Feed, publisher: Publisher) -> None:
        self._keeper = keeper
        self._feed = feed
        self._publisher = publisher
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """The feed's UUID."""
        return self._feed.id

    @property
    def topic(self) -> str:
        """Where its events go."""
        return self._feed.topic

    @property
    def metadata(self) -> Metadata:
        """What is said of it."""
        return dict(self._feed.metadata)

    @property
    def feed(self) -> Feed:
        """All that is known of it."""
        return self._feed

    async def publish(
        self, data: bytes | str, *, change: dict[str, Any] | None = None, **options: Any
    ) -> int:
        """Publish an event; return its index once it is stored. `change` is applied to the metadata
        first, so that the event goes to those who ask for the feed as it is then."""
        return await (await self.send(data, change=change, **options))

    async def send(
        self, data: bytes | str, *, change: dict[str, Any] | None = None, **options: Any
    ) -> asyncio.Future[int]:
        """Publish an event without waiting for its acknowledgement; it waits only when very many
        are under way, so that a publisher cannot outrun its site."""
        if change is not None:
            await self.set(change)
        mark = b"%b:%d\r\n" % (VERSION_HEADER, self._feed.version)
        return await self._publisher.send(data, topic=self._feed.topic, mark=mark, **options)

    async def set(self, change: dict[str, Any]) -> Feed:
        """Change the metadata: the keys that change with their values, None for one that goes.
        Events that were sent before come before it."""
        check_change(change)
        async with self._changing:
            await self._publisher.flush()
            self._feed = await self._keeper.change(self, change)
        return self._feed

    async def remove(self) -> None:
        """Remove the feed, also a permanent one. Its events stay."""
        await self._publisher.flush()
        await self._keeper.remove(self._feed)

    async def close(self) -> None:
        """Stop publishing; a feed that is not permanent goes."""
        await self._publisher.flush()
        if self._feed.permanent:
            self._keeper.forget(self._feed.id)
        else:
            with contextlib.suppress(Unavailable):  # then it expires by itself
                await self._keeper.remove(self._feed)

    def renewed(self, feed: Feed, publisher: Publisher) -> None:
        """The feed had to be registered anew, perhaps at another site."""
        self._feed, self._publisher = feed, publisher


class FeedKeeper(Listener):
    """The feeds of one client: registered, renewed, and registered again where the client goes."""

    def __init__(self, jetstream: JetStream, publisher: Callable[[str], Publisher]) -> None:
        self._owner = f"client-{secrets.token_hex(8)}"
        self._jetstream = jetstream
        self._publisher = publisher
        self._publishers: dict[str, Publisher] = {}
        self._handles: dict[str, FeedHandle] = {}
        self._leases: dict[str, float] = {}
        """Owners, and for how many seconds their feeds stay when nothing is heard of them."""
        self._renewing: asyncio.Task[None] | None = None
        jetstream.connection.listen(self)

    async def register(
        self,
        metadata: Metadata,
        *,
        id: str | None,
        topic: str | None,
        permanent: bool,
        owner: str | None,
        lease: float,
    ) -> FeedHandle:
        """Register a feed."""
        check_metadata(metadata)
        owner = self._owner if owner is None else owner
        id = id or str(uuid.uuid4())  # so that it can be asked for again
        lease = min(lease, self._leases.get(owner, lease))
        request = RegisterRequest(
            owner=owner, id=id, topic=topic, metadata=metadata, permanent=permanent, lease=lease
        )
        feed = await self._register(request)
        is_shorter = lease < min(self._leases.values(), default=lease + 1)
        self._leases[owner] = lease
        handle = FeedHandle(self, feed, self._publisher_of(feed))
        self._handles[feed.id] = handle
        if is_shorter:
            self._begin_to_renew()
        return handle

    async def change(self, handle: FeedHandle, change: dict[str, Any]) -> Feed:
        """Change a feed's metadata, where its client is now."""
        feed = handle.feed
        request = ChangeRequest(owner=feed.owner, id=feed.id, change=change)
        if feed.site == self._jetstream.connection.address.site:
            with contextlib.suppress(UnknownFeed):  # it expired: nothing was heard of us for long
                return msgspec.json.decode(await self._ask("open.feed.set", request), type=Feed)
        await self._register_again(handle)
        return msgspec.json.decode(await self._ask("open.feed.set", request), type=Feed)

    async def remove(self, feed: Feed) -> None:
        """Remove a feed."""
        self.forget(feed.id)
        await self._ask("open.feed.remove", RemoveRequest(owner=feed.owner, id=feed.id))

    def forget(self, id: str) -> None:
        """Renew a feed no more."""
        self._handles.pop(id, None)

    async def close(self) -> None:
        """Stop; what is not removed expires."""
        self._jetstream.connection.unlisten(self)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for publisher in self._publishers.values():
            publisher.close()

    def on_up(self) -> None:
        """Perhaps at another site: feeds go with their client."""
        if self._renewing is not None:
            self._begin_to_renew()

    def _begin_to_renew(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            for owner in {handle.feed.owner for handle in self._handles.values()}:
                with contextlib.suppress(SkerryError):
                    await self._renew_all(owner)
            await asyncio.sleep(min(self._leases.values()) / 3)

    async def _renew_all(self, owner: str) -> None:
        request = RenewRequest(owner=owner, lease=self._leases[owner])
        data = await self._ask("open.feed.renew", request)
        there = set(msgspec.json.decode(data, type=list[str]))
        for handle in list(self._handles.values()):
            if handle.feed.owner == owner and handle.id not in there:
                await self._register_again(handle)

    async def _register_again(self, handle: FeedHandle) -> None:
        feed = handle.feed
        site = self._jetstream.connection.address.site
        own = is_within(feed.topic, feed_log(feed.site))
        request = RegisterRequest(
            owner=feed.owner,
            id=feed.id,
            topic=None if own and feed.site != site else feed.topic,
            metadata=feed.metadata,
            permanent=feed.permanent,
            lease=self._leases[feed.owner],
            version=feed.version,
            since=feed.since,
        )
        feed = await self._register(request)
        handle.renewed(feed, self._publisher_of(feed))

    async def _register(self, request: RegisterRequest) -> Feed:
        return msgspec.json.decode(await self._ask("open.feed.register", request), type=Feed)

    def _publisher_of(self, feed: Feed) -> Publisher:
        log = feed_log(feed.site)
        topic = log if is_within(feed.topic, log) else feed.topic
        if topic not in self._publishers:
            self._publishers[topic] = self._publisher(topic)
        return self._publishers[topic]

    async def _ask(self, service: str, body: object) -> bytes:
        """Ask the agent; all that is asked here may be asked again."""
        connection = self._jetstream.connection
        deadline = connection.now() + connection.settings.timeout
        while True:
            try:
                return await ask(self._jetstream, connection.address.site, service, body)
            except (Unavailable, OutcomeUnknown):
                if connection.now() > deadline:
                    raise
            await asyncio.sleep(AGAIN)
