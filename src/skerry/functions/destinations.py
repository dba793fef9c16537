"""The topics that a function publishes to: whether they are there, and their publishers."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.errors import (
    EventTooLarge,
    SkerryError,
    Unavailable,
    UnknownTopic,
)
from skerry.functions.access import Access, epoch_of
from skerry.functions.frames import Published
from skerry.functions.journal import Position
from skerry.functions.work import OVERHEAD
from skerry.log.topics import unknown_topic
from skerry.model.fabric import TopicEntry

PUBLISHERS = 64
"""Topics for which a function keeps a publisher ready."""
TOPICS = 4096
"""Names of topics and sub-topics that are remembered."""


class Destination:
    """A topic whose log takes outputs."""

    def __init__(
        self, access: Access, name: str, entry: TopicEntry | None, last: int, largest: int
    ) -> None:
        self.name = name
        self.entry = entry
        self.mark = Position(last, epoch_of(entry))
        """A place in its log that everything sent from now on is behind."""
        self.largest = largest
        """Bytes that an event may have."""
        self.gone: SkerryError | None = None
        self.publisher = access.publisher(name)
        self._access = access
        if entry is not None:
            access.routes.follow(name, self)

    def stored(self, index: int) -> None:
        """An output was stored there."""
        if index > self.mark.index:
            self.mark = Position(index, epoch_of(self.entry))

    def close(self) -> None:
        """Stop at once."""
        if self.entry is not None:
            self._access.routes.unfollow(self.name, self)
        self.publisher.close()

    def on_route(self, entry: TopicEntry) -> None:
        """It has another home, or other replicas."""
        self.entry = entry
        self.largest = entry.settings.max_event_bytes or self._access.connection.info.max_event

    def on_gone(self) -> None:
        """It was deleted."""
        self.gone = unknown_topic(self.name)


class Destinations:
    """Those of one function and log."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._topics: dict[str, Destination] = {}
        self._open: dict[str, Destination] = {}

    @property
    def names(self) -> Iterable[str]:
        """The topics in use."""
        return self._open

    @property
    def waits(self) -> str:
        """What the oldest output waits for, if anything is on its way."""
        for one in self._open.values():
            if one.publisher.in_flight:
                return one.publisher.why()
        return ""

    def known(self, topic: str) -> Destination | None:
        """The destination of `topic` if it is known to be there."""
        found = self._topics.get(topic)
        return None if found is None or found.gone is not None else found

    async def find(self, topic: str) -> Destination:
        """The destination of `topic`. Raises `UnknownTopic`, `BadName`, or `Unavailable` if that
        cannot be told now."""
        if (known := self.known(topic)) is not None:
            return known
        name, entry = await self._access.owner(topic)
        found = self._open.get(name)
        if found is None or found.gone is not None:
            found = await self._add(name, entry)
        if len(self._topics) >= TOPICS:
            self._topics.clear()
        self._topics[topic] = found
        return found

    async def _add(self, name: str, entry: TopicEntry | None) -> Destination:
        largest = self._access.connection.info.max_event
        try:
            await self._access.reach(entry)
            info = await self._access.stream(name, entry)
            last = int(info["state"]["last_seq"])
            limit = int(info["config"].get("max_msg_size", -1))
            largest = limit if limit > 0 else largest
        except Unavailable:
            if entry is None:
                raise
            # Its home is away: what is sent once it is back is behind where its epoch began.
            last, largest = entry.base, entry.settings.max_event_bytes or largest
        if (old := self._open.pop(name, None)) is not None:
            self._drop(old)
        for idle in [one for one in self._open.values() if one.publisher.is_idle]:
            if len(self._open) < PUBLISHERS:
                break
            del self._open[idle.name]
            self._drop(idle)
        self._open[name] = Destination(self._access, name, entry, last, largest)
        return self._open[name]

    def _drop(self, destination: Destination) -> None:
        self._topics = {
            topic: other for topic, other in self._topics.items() if other is not destination
        }
        destination.close()

    def close(self) -> None:
        """Stop at once."""
        for one in self._open.values():
            one.close()
        self._open.clear()
        self._topics.clear()


def too_large(published: Published, destination: Destination) -> str | None:
    """Why its topic would not take it; None: it would."""
    size = len(published.data) + OVERHEAD
    if published.headers:
        size += sum(len(name) + len(value) + 4 for name, value in published.headers.items())
    if size <= destination.largest:
        return None
    return (
        f"published {size} bytes to {published.topic}, which takes events of "
        f"{destination.largest} bytes"
    )


GONE = (UnknownTopic, EventTooLarge)
"""What a topic refuses an output with that it will never take."""
