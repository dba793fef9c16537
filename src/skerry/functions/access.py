"""What a host, and the agent beside it, work with: one connection, and what stands on it."""

from __future__ import annotations

import sys
from typing import Any

from skerry.config import DUPLICATE_WINDOW, ClientSettings
from skerry.engine.address import Address
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import Unavailable
from skerry.functions.journal import Position
from skerry.log.append import Publisher
from skerry.log.home import check_home
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.log.segments import is_home
from skerry.log.topics import unknown_topic
from skerry.model.fabric import TopicEntry
from skerry.model.names import stream_of
from skerry.model.topic import Ack

SETTINGS = ClientSettings(timeout=10.0)
"""A site that is away for longer makes a function begin anew, which costs little."""
GIVE_UP = DUPLICATE_WINDOW - 10
"""Seconds after which the outcome of a publish is looked up instead of waited for."""
CALL = 5.0
"""Seconds for one call to a home."""


class Access:
    """One connection for all functions of a site. A host makes it with `Access.open`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.jetstream = JetStream(connection)
        self.routes = Routes(self.jetstream)
        self.reader = Reader(self.jetstream, self.routes)

    @classmethod
    async def open(cls, address: Address) -> Access:
        """Connect; raises `AccessDenied` or `Unavailable`."""
        access = cls(await Connection.open(address, SETTINGS, "functions"))
        try:
            await access.routes.in_fabric()
        except BaseException:
            await access.close()
            raise
        return access

    async def close(self) -> None:
        """Close the connection; everything on it ends."""
        await self.connection.close()

    async def settle(self) -> None:
        """Make sure of what was believed when the connection was made: an engine that has just
        started does not tell yet that its site is part of a fabric."""
        if not await self.routes.in_fabric():
            self.routes.on_up()
            await self.routes.in_fabric()

    def home(self, entry: TopicEntry | None) -> str:
        """The site of a topic's home."""
        return self.routes.site if entry is None else entry.home

    def at_home(self, entry: TopicEntry | None) -> JetStream:
        """The engine at a topic's home. Only there a log is what it is: a copy may be behind, or of
        another history for a while."""
        home = self.home(entry)
        return self.jetstream if home == self.routes.site else JetStream(self.connection, home)

    async def reach(self, entry: TopicEntry | None) -> None:
        """Have a link to a topic's home."""
        if (home := self.home(entry)) != self.routes.site:
            await self.routes.reach([home])

    async def owner(self, topic: str) -> tuple[str, TopicEntry | None]:
        """The topic whose log holds `topic`, with its entry in a fabric; or `UnknownTopic`."""
        entry = await self.routes.find(topic)
        return (await self.reader.owner(topic), None) if entry is None else (entry.name, entry)

    async def stream(self, name: str, entry: TopicEntry | None) -> dict[str, Any]:
        """What the engine at its home says of a log. Raises `UnknownTopic` where there is none,
        `Unavailable` if the home is away."""
        try:
            stream = home_stream(name, entry)
            info = await self.at_home(entry).call(f"STREAM.INFO.{stream}", timeout=CALL)
            if entry is not None and not is_home(info, entry.epoch):
                raise Unavailable(f"{entry.home} is not the home of {name} yet, or not any more")
            await self.check(entry)
            return info
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            if entry is not None:  # it moves just now
                raise Unavailable(f"{entry.home}, the home of {name}, has no log yet") from None
            raise unknown_topic(name) from None
        except Down:
            raise self.connection.unavailable() from None

    async def check(self, entry: TopicEntry | None) -> None:
        """Raise `Unavailable` unless what was read until now was read from the home."""
        if entry is not None:
            await check_home(self.connection, entry.home, entry.name, entry.stream)

    def publisher(
        self, topic: str, *, ack: Ack | None = "quorum", timeout: float | None = None
    ) -> Publisher:
        """A publisher. What it acknowledges is safe: where the topic has replicas, enough of them
        hold it; unless another level is asked for (None: the topic's own)."""
        timeout = GIVE_UP if timeout is None else timeout
        return Publisher(self.connection, self.routes, topic, ack=ack, timeout=timeout)


def home_stream(name: str, entry: TopicEntry | None) -> str:
    """The stream that holds the log of topic `name` at its home."""
    return stream_of(name) if entry is None else entry.stream


def epoch_of(entry: TopicEntry | None) -> int:
    """The epoch of a topic; 0 outside a fabric."""
    return 0 if entry is None else entry.epoch


def still(position: Position, entry: TopicEntry | None) -> int:
    """The last index up to `position` whose event is still the topic's. Everything stored since
    that position was taken is behind it."""
    fork = sys.maxsize if entry is None else entry.known_fork(position.epoch)
    return min(position.index, fork)
