"""The asynchronous client: everything an application does with a site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from skerry.client.services import ask
from skerry.config import ClientSettings
from skerry.engine.address import Address, find_address
from skerry.engine.binary import check_version, parse_version
from skerry.engine.jetstream import JetStream
from skerry.engine.wire import Connection
from skerry.errors import EngineUnfit, Unavailable
from skerry.log.append import Publisher, append
from skerry.log.follow import Subscription
from skerry.log.read import Reader
from skerry.log.topics import Topics
from skerry.model.control import SiteStatus, TopicName, TopicRequest
from skerry.model.event import Event
from skerry.model.names import check_topic
from skerry.model.topic import Durability, Topic, TopicSettings


def connect(
    target: str | Path | Address | None = None,
    *,
    user: str = "sdk",
    timeout: float | None = None,
    name: str = "skerry",
    settings: ClientSettings | None = None,
) -> Client:
    """A client of a site: `async with skerry.connect() as client`.

    `target` is a connection file, a site's data folder, or a URL `nats://user:password@host:port`;
    without it, `$SKERRY_CONNECT` or the default data folder. `timeout` bounds each call in seconds,
    engine restarts included.
    """
    settings = settings or ClientSettings()
    if timeout is not None:
        settings = msgspec.structs.replace(settings, timeout=timeout)
    return Client(find_address(target, user), settings.check(), name)


class Subscribing:
    """A subscription about to open: await it, or use it in `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, Subscription]) -> None:
        self._opening = opening
        self._subscription: Subscription | None = None

    def __await__(self) -> Generator[Any, Any, Subscription]:
        return self._opening.__await__()

    async def __aenter__(self) -> Subscription:
        self._subscription = await self._opening
        return self._subscription

    async def __aexit__(self, *error: object) -> None:
        if self._subscription is not None:
            await self._subscription.close()


class _Opened:
    """What a connected client works with."""

    def __init__(self, connection: Connection, site: str) -> None:
        self.connection = connection
        self.jetstream = JetStream(connection)
        self.reader = Reader(self.jetstream, site)
        self.topics = Topics(self.jetstream, site)


class Client:
    """A connection to a site that survives engine restarts.

    While the site is away, calls wait; after `timeout` seconds they raise `Unavailable`, and a
    publish whose fate is unknown raises `OutcomeUnknown`. Nothing is dropped silently.
    """

    def __init__(self, address: Address, settings: ClientSettings, name: str) -> None:
        self.address = address
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
        connection = await Connection.open(self.address, self._settings, self._name)
        try:
            check_version(parse_version(connection.info.version), str(self.address))
            if not connection.info.jetstream:
                raise EngineUnfit(f"the engine at {self.address} has JetStream off")
        except BaseException:
            await connection.close()
            raise
        self._opened = _Opened(connection, self.address.site)

    async def close(self) -> None:
        """Close the connection; publishers and subscriptions end."""
        if self._opened is not None:
            await self._opened.connection.close()

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
        durability: Durability = "process",
    ) -> Topic:
        """Create a topic, or find it if it exists with the same settings; see `TopicSettings`."""
        settings = TopicSettings(
            max_events=max_events,
            max_bytes=max_bytes,
            max_age=max_age,
            max_event_bytes=max_event_bytes,
            durability=durability,
        ).check()
        request = TopicRequest(check_topic(name), msgspec.to_builtins(settings))
        return msgspec.json.decode(await self._ask("open.topic.create", request), type=Topic)

    async def topic(self, name: str) -> Topic:
        """A topic's settings and state."""
        return await self._open.topics.show(name)

    async def topics(self) -> list[Topic]:
        """All topics of the site, by name."""
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
        timeout: float | None = None,
    ) -> int:
        """Append one event to a topic or sub-topic; return its index once it is stored.

        `lifespan` removes the event after so many seconds. `id` makes the publish idempotent: a
        second one with the same id within two minutes adds nothing and returns the same index.
        """
        return await append(
            self._open.connection, self.site, topic, data,
            key=key, headers=headers, lifespan=lifespan, id=id, timeout=timeout,
        )  # fmt: skip

    def publisher(
        self,
        topic: str,
        *,
        window: int = 4096,
        window_bytes: int = 32 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Publisher:
        """A high-rate publisher with many events in flight; use it in an `async with` block."""
        return Publisher(
            self._open.connection, self.site, topic,
            window=window, window_bytes=window_bytes, timeout=timeout,
        )  # fmt: skip

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
    ) -> Subscribing:
        """Follow a topic and its sub-topics: `async with client.subscribe("t") as events`, or
        `events = await client.subscribe("t")` and close it yourself.

        Without a start: events stored from now on. `durable` names a subscription that resumes
        where it was, also after a crash; acknowledge its events with `subscription.ack(event)`,
        what is not acknowledged within `ack_wait` seconds comes again. At most `window` events are
        in flight (by default 16384, or 1024 of a durable subscription).
        """
        return Subscribing(
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

    # The site

    async def status(self) -> SiteStatus:
        """How the site is."""
        return msgspec.json.decode(await self._ask("open.status"), type=SiteStatus)

    async def _ask(self, service: str, body: object = None) -> bytes:
        return await ask(self._open.jetstream, self.site, service, body)
