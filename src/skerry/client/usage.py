"""A client tells its site what it uses, so that topics can be put near their clients.

Only in a fabric where placement is used, which the store says (`placement.settings`): then once a
monitoring period, and at the next tick when it begins or ends to use a topic, in one message that
nobody answers. Publishers and subscriptions count as they go, and are asked here. A client that
uses no topic says nothing; one that goes says goodbye, and one that vanishes is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from skerry.directory.store import news_subject
from skerry.engine.link import Down
from skerry.engine.wire import Connection, Listener
from skerry.errors import SkerryError
from skerry.log.frames import new_id
from skerry.log.route import Routes
from skerry.model.placement import SETTINGS_KEY, PlacementSettings, TopicUse, Usage, usage_subject
from skerry.model.records import read

LINGER = 15.0
"""Seconds after its last event that a client still counts as a publisher; three periods."""


class UsageReporter(Listener):
    """Tells what the publishers and subscriptions on one connection use."""

    def __init__(self, connection: Connection, routes: Routes) -> None:
        self._connection = connection
        self._routes = routes
        self._client = new_id()
        self._period: float | None = None
        """Seconds between reports; None: nobody wants any."""
        self._sid: bytes | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stale = True
        """Whether the settings have to be read anew."""
        self._site = connection.address.site
        self._since: dict[str, TopicUse] = {}
        """What was used since the last report, by topic."""
        self._published: dict[str, float] = {}
        """When each topic was last published to."""
        self._told: set[tuple[str, bool, bool]] = set()
        self._next = 0.0
        connection.listen(self)

    async def close(self) -> None:
        """Say goodbye."""
        self._connection.unlisten(self)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._told:
            self._send(self._site, Usage(self._client))

    # Listener

    def on_up(self) -> None:
        """Perhaps at another site; and what changed meanwhile was told to nobody."""
        self._stale = True
        site = self._connection.address.site
        if site != self._site:
            if self._told:  # goes over the link, if there is one; else it is forgotten in a while
                self._send(self._site, Usage(self._client))
            self._site = site
        self._told = set()
        self._next = 0.0

    def on_tick(self, now: float) -> None:
        """Look whether it is time."""
        if self._stale and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read())
        self._look(now)

    # The rest

    def _look(self, now: float) -> None:
        """Report if it is time."""
        if self._period is None or not self._connection.is_up:
            return
        self._gather(now)
        using = {(use.name, use.publishes, use.subscriptions > 0) for use in self._since.values()}
        if not using and not self._told:
            return
        if now < self._next and using == self._told:
            return
        if self._connection.rtt is None:
            self._connection.ping()
            return
        self._send(self._site, Usage(self._client, self._connection.rtt, [*self._since.values()]))
        self._since = {}
        self._told = using
        self._next = now + self._period
        self._connection.ping()  # for the next one

    def _gather(self, now: float) -> None:
        """Add up what was used since the last tick."""
        before, self._since = self._since, {}
        for use in self._connection.used():
            if use.publishes:
                self._published[use.name] = now
            known = self._since.get(use.name)
            self._since[use.name] = use if known is None else _sum(known, use, beside=True)
        self._published = {n: when for n, when in self._published.items() if now - when < LINGER}
        for name in self._published:
            self._since.setdefault(name, TopicUse(name, True, 0)).publishes = True
        self._since = {n: u for n, u in self._since.items() if u.publishes or u.subscriptions}
        for name, use in before.items():
            if name in self._since:
                self._since[name] = _sum(use, self._since[name], beside=False)

    def _send(self, site: str, usage: Usage) -> None:
        with contextlib.suppress(Down):
            self._connection.publish(usage_subject(site), msgspec.msgpack.encode(usage))

    async def _read(self) -> None:
        """See whether anybody wants to know, and hear if that changes."""
        try:
            if not await self._routes.in_fabric():
                self._stale = False
                return
            if self._sid is None:
                subject = news_subject(self._connection.address.site) + SETTINGS_KEY
                self._sid = self._connection.subscribe(subject, self._on_news)
            self._take(await self._routes.read(SETTINGS_KEY))
            self._stale = False
        except (SkerryError, Down):
            pass  # at the next tick again

    def _on_news(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        self._take(data or None)

    def _take(self, data: bytes | None) -> None:
        settings = read(data, PlacementSettings, SETTINGS_KEY) if data else None
        self._period = None if settings is None else settings.period
        self._next = 0.0
        self._look(self._connection.now())


def _sum(one: TopicUse, other: TopicUse, *, beside: bool) -> TopicUse:
    """Two of one topic: beside each other, or the second later than the first."""
    return TopicUse(
        one.name,
        one.publishes or other.publishes if beside else other.publishes,
        one.subscriptions + other.subscriptions if beside else other.subscriptions,
        one.events + other.events,
        one.bytes + other.bytes,
        one.delivered + other.delivered,
        max(one.publish_s, other.publish_s) if beside else other.publish_s or one.publish_s,
        max(one.deliver_s, other.deliver_s) if beside else other.deliver_s or one.deliver_s,
        max(one.deliver_most_s, other.deliver_most_s),
    )
