"""Where topics are, for functions: at a site that stands alone, or in a fabric."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from skerry.errors import (
    NotInFabric,
    SkerryError,
    Unavailable,
    UnknownSite,
    UnknownTopic,
)
from skerry.fabric.fabric import Fabric
from skerry.log.topics import Topics, topics_of
from skerry.model.control import CreateRequest, MoveRequest, TopicName
from skerry.model.fabric import SiteRecord, TopicEntry
from skerry.model.functions import journal_of
from skerry.model.names import is_own, topic_of_stream
from skerry.model.topic import Topic, TopicSettings

MAKE_TIME = 30.0
"""Seconds that the leader may take to make a topic."""


class Log(NamedTuple):
    """A topic's log: where its home is, which sites keep it, and how."""

    name: str
    home: str
    members: tuple[str, ...]
    settings: TopicSettings


Watcher = Callable[[str, Log | None], None]
"""Called with a topic's name and its log; None: it was deleted."""


class Places(Protocol):
    """What functions need to know and to do about topics and sites."""

    site: str
    hub: str
    """The site that keeps what belongs to all."""

    def logs(self) -> Iterable[Log]:
        """All topics that are known here."""

    def names(self) -> list[str]:
        """Their names, which is cheaper."""

    def log(self, name: str) -> Log | None:
        """One of them."""

    def watch(self, watcher: Watcher) -> None:
        """Tell of changes from now on."""

    def peers(self) -> list[str]:
        """The other sites."""

    def check_site(self, site: str) -> None:
        """Raise unless there is such a site."""

    async def make(self, name: str, settings: dict[str, Any], home: str) -> None:
        """Make a topic of Skerry's own, or find it as it is."""

    async def change(self, name: str, settings: dict[str, Any]) -> None:
        """Change settings of a topic."""

    async def delete(self, name: str) -> None:
        """Delete a topic; one that is gone already is fine."""

    async def move(self, name: str, members: tuple[str, ...]) -> None:
        """Have a topic at these sites, the first its home."""

    async def ask(self, site: str, service: str, body: object, timeout: float) -> bytes:
        """Ask the agent of another site."""


class Alone:
    """A site in no fabric: all topics are here."""

    def __init__(self, topics: Topics, site: str, streams: Iterable[dict[str, Any]]) -> None:
        self.site = self.hub = site
        self._topics = topics
        self._watchers: list[Watcher] = []
        self._logs: dict[str, Log] = {}
        for topic in topics_of(streams):
            self._logs[topic.name] = self._log_of(topic)

    def _log_of(self, topic: Topic) -> Log:
        return Log(topic.name, self.site, (self.site,), topic.settings)

    def made(self, topic: Topic) -> Topic:
        """A topic was made, or changed; returns it."""
        self._logs[topic.name] = self._log_of(topic)
        for watcher in self._watchers:
            watcher(topic.name, self._logs[topic.name])
        return topic

    def gone(self, name: str) -> None:
        """A topic was deleted."""
        if self._logs.pop(name, None) is not None:
            for watcher in self._watchers:
                watcher(name, None)

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    def names(self) -> list[str]:
        return list(self._logs)

    def log(self, name: str) -> Log | None:
        return self._logs.get(name)

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def peers(self) -> list[str]:
        return []

    def check_site(self, site: str) -> None:
        if site != self.site:
            raise NotInFabric(
                f"site {self.site} stands alone, and there is no site {site!r}",
                "Leave --site out, or begin a fabric with `skerry fabric init`.",
            )

    async def make(self, name: str, settings: dict[str, Any], home: str) -> None:
        if name not in self._logs:
            alone = {k: v for k, v in settings.items() if k not in ("replicas", "spread", "ack")}
            wanted = TopicSettings(**{**alone, "prefer": (), "on_partition": "stop"})
            self.made(await self._topics.create(name, wanted))

    async def change(self, name: str, settings: dict[str, Any]) -> None:
        self.made(await self._topics.change(name, settings))

    async def delete(self, name: str) -> None:
        with contextlib.suppress(UnknownTopic):
            await self._topics.delete(name)
        self.gone(name)

    async def move(self, name: str, members: tuple[str, ...]) -> None:
        """There is nowhere to go."""

    async def ask(self, site: str, service: str, body: object, timeout: float) -> bytes:
        raise Unavailable(f"there is no site {site}")


class InFabric:
    """A site of a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.site = fabric.site
        self.hub = fabric.store.origin
        self._fabric = fabric
        self._store = fabric.store
        self._watchers: list[Watcher] = []
        self._is_watching = False

    def logs(self) -> Iterable[Log]:
        return [_log_of(entry) for entry in self._store.all("topic.", TopicEntry).values()]

    def names(self) -> list[str]:
        return [name for key in self._store.keys("topic.") if (name := topic_of_stream(key))]

    def log(self, name: str) -> Log | None:
        entry = self._fabric.copies.entry(name)
        return None if entry is None else _log_of(entry)

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        if not self._is_watching:
            self._is_watching = True
            self._store.watch("topic.", self._on_entry)

    def _on_entry(self, key: str, value: bytes | None) -> None:
        name = topic_of_stream(key.removeprefix("topic."))
        if name is None:
            return
        found = None if value is None else self.log(name)
        for watcher in self._watchers:
            watcher(name, found)

    def peers(self) -> list[str]:
        return sorted(set(self._store.all("site.", SiteRecord)) - {self.site})

    def check_site(self, site: str) -> None:
        known = {*self.peers(), self.site}
        if site not in known:
            raise UnknownSite(
                f"the fabric has no site {site!r}", f"There are: {', '.join(sorted(known))}."
            )

    async def make(self, name: str, settings: dict[str, Any], home: str) -> None:
        if self.log(name) is None:
            given = {k: v for k, v in settings.items() if v is not None}
            request = CreateRequest(name, {**given, "prefer": [home]}, self.site)
            await self._fabric.lead("topic.create", TopicEntry, request, MAKE_TIME)

    async def change(self, name: str, settings: dict[str, Any]) -> None:
        request = CreateRequest(name, settings, self.site)
        await self._fabric.lead("topic.set", TopicEntry, request, MAKE_TIME)

    async def delete(self, name: str) -> None:
        with contextlib.suppress(UnknownTopic):
            await self._fabric.lead("topic.delete", type(None), TopicName(name), MAKE_TIME)

    async def move(self, name: str, members: tuple[str, ...]) -> None:
        request = MoveRequest(name, members[0], list(members))
        await self._fabric.lead("topic.move", TopicEntry, request, MAKE_TIME)

    async def ask(self, site: str, service: str, body: object, timeout: float) -> bytes:
        return await self._fabric.ask(site, service, body, timeout)


def journal_settings(log: Log, site: str) -> dict[str, Any]:
    """How the journal of a function that runs at `site` on `log` is kept: where the log is, so that
    it fails over with it; or at `site` alone, if the function is pinned there."""
    others = [member for member in log.members if member != site] if site == log.home else []
    return {
        "keep_last": 1,
        "durability": log.settings.durability,
        "replicas": len(others),
        "spread": ",".join(others) or "distributed",
        "ack": "quorum" if others else "home",
        "on_partition": log.settings.on_partition,
    }


async def make_journal(places: Places, function: str, log: Log) -> str:
    """Have the journal of a function that runs here; return its topic. An existing one that is
    elsewhere is used there until it is moved."""
    name = journal_of(function, log.name)
    await places.make(name, journal_settings(log, places.site), places.site)
    return name


async def bring_journal(places: Places, function: str, log: Log) -> None:
    """Have the journal where the log is, if it can be moved now."""
    journal = places.log(journal_of(function, log.name))
    if journal is None:
        return
    follows = log.home == places.site
    members = log.members if follows else (places.site,)
    if journal.home == members[0] and set(journal.members) == set(members):
        return
    with contextlib.suppress(SkerryError):
        await places.move(journal.name, members)


def is_for_functions(log: str, pattern: str) -> bool:
    """Whether a pattern may mean a log at all: none of Skerry's own, unless it names them."""
    if is_own(log):
        return False
    return not log.startswith("feeds/") or pattern.startswith("feeds/")


def _log_of(entry: TopicEntry) -> Log:
    return Log(entry.name, entry.home, entry.members, entry.settings)
