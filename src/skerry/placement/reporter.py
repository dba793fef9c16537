"""An agent's part in monitoring: hears what clients use, and reports it once a period.

When clients begin or end to use a topic, the site tells soon, not before a fifth of the period has
passed since it last did: so that a swarm that has come to another zone is noticed at once, and a
restless one costs five times the traffic at the most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from skerry.coords import Coordinate
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import SkerryError
from skerry.fabric.fabric import Fabric
from skerry.fabric.tasks import Tasks
from skerry.log.append import Publisher
from skerry.log.route import Routes
from skerry.model.fabric import CopyRecord, TopicEntry, site_key
from skerry.model.fabric import SiteRecord as KnownSite
from skerry.model.names import topic_of_stream
from skerry.model.placement import RECORDS, PlacementSettings, is_placed, usage_subject
from skerry.placement.book import LIFE, Book, Held
from skerry.placement.gauge import Gauge
from skerry.placement.records import SiteRecord, pack, place_of

log = logging.getLogger("skerry.placement")

SOONER = 5.0
"""A site whose clients change reports so many times as often at the most."""
FIRST = 1.2
"""Seconds before the first record: clients tell at their next tick, which takes one."""
GATHER = 0.2
"""Seconds to wait when a client changed: seldom does one come alone."""
WAITING = 2
"""Records under way at the most: what the leader cannot be told now is not kept for later."""
PLAIN_LINGER = 15.0
"""Seconds after its last event through the outbox that a plain publisher counts."""
SURE = 0.3
SURE_MS = 5.0
"""A site reports once its coordinate is wrong by no more than this share, or so many milliseconds:
a place that is a mere guess would have topics moved in vain."""
STREAMS_SHARE = 0.05
"""The part of the time that looking at all streams may take: with ten thousand of them it takes a
second, and is done less often."""


class Reporter:
    """Reports for one site. `gauge` measures its machine."""

    def __init__(self, part: Fabric, connection: Connection, gauge: Gauge, power: bool) -> None:
        self.book = Book()
        self.record_bytes = 0
        """The size of the last record."""
        self._part = part
        self._site = part.site
        self._connection = connection
        self._jetstream = JetStream(connection)
        self._gauge = gauge
        self._power = power
        self._settings = PlacementSettings()
        self._routes = Routes(self._jetstream)
        self._publisher: Publisher | None = None
        self._started = time.time_ns()
        self._number = 0
        self._changed = asyncio.Event()
        self._again = asyncio.Event()
        """Set when the settings change, or there was nothing to tell yet."""
        self._held: dict[str, Held] = {}
        self._looked = (0.0, 0.0)
        """When streams were looked at, and when they may be again."""
        self._last: dict[str, tuple[int, float]] = {}
        self._sid: bytes | None = None
        self._tasks = Tasks("monitoring")

    def start(self, settings: PlacementSettings) -> None:
        """Begin to listen and to report."""
        self._settings = settings
        self._sid = self._connection.subscribe(usage_subject(self._site), self._on_usage)
        self._tasks.spawn(self._run())

    def change(self, settings: PlacementSettings) -> None:
        """Report as `settings` say from now on."""
        self._settings = settings
        self._again.set()

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()
        if self._sid is not None:
            self._connection.unsubscribe(self._sid)
        if self._publisher is not None:
            self._publisher.close()

    def _on_usage(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        if self.book.take(data, self._connection.now()):
            self._changed.set()

    # The loop

    async def _run(self) -> None:
        since = self._connection.now()
        await asyncio.sleep(min(FIRST, self._settings.period))
        while True:
            now = self._connection.now()
            self._changed.clear()
            self._again.clear()
            try:
                if await self._report(now - since):
                    since = now
                else:
                    self._again.set()
            except (SkerryError, Down) as error:
                log.debug("no record this time: %s", error)
                self._again.set()  # soon once more
            await self._pause(now)

    async def _pause(self, began: float) -> None:
        """Until the next record is due; sooner when clients changed."""
        period = self._settings.period
        await asyncio.sleep(max(period / SOONER - (self._connection.now() - began), 0.01))
        waiting = [asyncio.create_task(e.wait()) for e in (self._changed, self._again)]
        try:
            left = max(period - (self._connection.now() - began), 0.0)
            await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if self._changed.is_set():
            await asyncio.sleep(min(GATHER, period / SOONER))

    async def _report(self, seconds: float) -> bool:
        """Whether there was anything to report."""
        record = await self.record(seconds)
        if record is None:
            return False
        publisher = self._publisher
        if publisher is None:
            timeout = min(max(2 * self._settings.period, 1.0), 60.0)
            publisher = self._publisher = Publisher(
                self._connection, self._routes, RECORDS, ack="home", timeout=timeout
            )
        if publisher.in_flight >= WAITING:
            log.debug("the leader takes no records; this one is left out")
            return True
        data = pack(record)
        self.record_bytes = len(data)
        await publisher.send(data, topic=f"{RECORDS}/{self._site}")
        return True

    # A record

    async def record(self, seconds: float) -> SiteRecord | None:
        """This site now; None: it does not know yet where it is."""
        part = self._part
        coordinate = part.distances.coordinate
        measured = sorted(part.distances.measured().values())
        if not is_sure(coordinate, measured[len(measured) // 2] if measured else 0.0):
            return None
        now = self._connection.now()
        self.book.expire(now, max(LIFE * self._settings.period, LIFE))
        await self._look(now)
        known = part.store.get(site_key(self._site), KnownSite)
        topics = self.book.columns(
            self._held,
            seconds,
            lambda name: is_placed(name) and part.copies.entry(name) is not None,
            [name for name, when in part.outbox.seen.items()
             if now - when < PLAIN_LINGER and is_placed(name)],
            [name for name in part.interest.wanted if is_placed(name)],
        )  # fmt: skip
        rate = float(topics.column("rate_in").sum() + topics.column("rate_out").sum())
        traffic = None
        with contextlib.suppress(SkerryError, Down):
            traffic = await part.operator.traffic()
        reading = self._gauge.read(traffic, rate, now)
        self._number += 1
        position, height = place_of(coordinate)
        return SiteRecord(
            site=self._site,
            started=self._started,
            number=self._number,
            position=position,
            height=height,
            capacity=reading.capacity,
            load=reading.load,
            draining=known.draining if known is not None else False,
            power=self._power,
            topics=topics,
        )

    async def _look(self, now: float) -> None:
        """See how the logs are whose home is here."""
        part = self._part
        homes = {
            entry.stream: entry
            for entry in part.store.all("topic.", TopicEntry).values()
            if entry.home == self._site and is_placed(entry.name)
        }
        if now >= self._looked[1] or any(e.name not in self._held for e in homes.values()):
            began = time.monotonic()
            infos = await self._jetstream.streams() if homes else []
            took = time.monotonic() - began
            self._looked = (now, now + took / STREAMS_SHARE)
            for info in infos:
                self._measure(info, homes.get(info["config"]["name"]), now)
        names = {entry.name for entry in homes.values()}
        self._held = {name: held for name, held in self._held.items() if name in names}
        self._last = {name: last for name, last in self._last.items() if name in names}
        for entry in homes.values():
            if entry.name in self._held:
                self._held[entry.name].copies = len(entry.members) - 1
        for key, copy in part.store.all("copy.", CopyRecord).items():
            name = topic_of_stream(key.rsplit(".", 1)[0])
            if name in self._held and copy.parent == self._site:
                self._held[name].copies += 1

    def _measure(self, info: dict[str, Any], entry: TopicEntry | None, now: float) -> None:
        if entry is None:
            return
        state = info["state"]
        last, messages = int(state["last_seq"]), int(state["messages"])
        held = self._held.setdefault(entry.name, Held())
        before = self._last.get(entry.name)
        if before is not None and now > before[1]:
            held.rate_in = max(last - before[0], 0) / (now - before[1])
        self._last[entry.name] = (last, now)
        held.stored_bytes = float(state["bytes"])
        held.event_bytes = held.stored_bytes / messages if messages else held.event_bytes


def is_sure(coordinate: Coordinate, usual: float) -> bool:
    """Whether a site knows where it is, if round trips from there usually take `usual` seconds."""
    return coordinate.error <= SURE or coordinate.error * usual * 500.0 <= SURE_MS
