"""What the driver knows of the logs that a job reads: which there are, and how far they go.

All of it comes from the client's own site, as does what is read later: in a fabric from its copy of
the directory and its copies of the topics, so that a job goes on while other sites are away.

A topic with replicas is read only as far as a quorum holds it. An event that fewer hold may, if its
home is lost, turn out not to be part of the log, and come again under another index; a job that had
counted it already would count it twice. Replicas tell how far they are, as they tell publishers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec
import uvloop

from skerry.config import DUPLICATE_WINDOW, ClientSettings
from skerry.directory.store import PREFIX, STREAM
from skerry.engine.address import Address
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import SkerryError, Unavailable, UnknownTopic
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.log.segments import Moved, index_since, look, look_at_chain
from skerry.model.control import ProgressReport, ProgressRequest
from skerry.model.fabric import Step, TopicEntry
from skerry.model.names import stream_of, topic_of_stream
from skerry.model.pattern import Pattern
from skerry.model.promotion import State, confirmed
from skerry.model.records import read
from skerry.spark.options import Site

T = TypeVar("T")

ASK_AGAIN = 2.0
"""Seconds between asking replicas to tell how far they are; they tell for five."""
LOOK_AGAIN = 1.0
"""Seconds between looks for new topics of a pattern."""
SETTLE = 0.05
"""Seconds between looks at a log that is being put together anew."""
AWAY: Literal["away"] = "away"


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's log as it is at this site now."""

    topic: str
    epoch: int
    """0 outside a fabric."""
    since: str
    """Outside a fabric, when the log was made; it tells one that was deleted and made anew."""
    lineage: tuple[Step, ...]
    first: int
    last: int
    """The last index that may be read: what a quorum holds."""
    events: int
    bytes: int

    @property
    def event_bytes(self) -> float:
        """The mean size of an event."""
        return self.bytes / self.events if self.events else 0.0


class Logs:
    """A connection to a site, for one thread that waits for answers. Close it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listed: tuple[float, list[str]] = (0.0, [])
        self._reports: dict[str, dict[str, State]] = {}
        self._asked: dict[str, float] = {}
        try:
            self._run(self._open())
        except BaseException:
            self._end()
            raise

    async def _open(self) -> None:
        timeout = min(self._site.timeout, DUPLICATE_WINDOW - 10)
        settings = ClientSettings(timeout=timeout)
        self._connection = await Connection.open(self._site.addresses(), settings, "skerry-spark")
        self._jetstream = JetStream(self._connection)
        self._routes = Routes(self._jetstream)
        self._reader = Reader(self._jetstream, self._routes)
        self.in_fabric = await self._routes.in_fabric()
        self._inbox = f"q.{secrets.token_hex(4)}"
        self._sid: bytes | None = None

    def close(self) -> None:
        """Close the connection and end its thread."""
        with contextlib.suppress(SkerryError, Down):
            self._run(self._connection.close())
        self._end()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def find(self, pattern: Pattern, *, fresh: bool = False) -> list[str]:
        """The topics whose logs hold what is meant. Raises `UnknownTopic` for a plain name that
        there is not; for a pattern there may be none. Looks once a second, or now if `fresh`."""
        if pattern.is_plain:
            return [self._run(self._reader.owner(pattern.text))]
        when, names = self._listed
        if fresh or time.monotonic() - when > LOOK_AGAIN:
            found = self._run(self._names())
            names = [name for name in sorted(found) if pattern.subjects(name) is not None]
            self._listed = (time.monotonic(), names)
        return list(names)

    @property
    def addresses(self) -> list[Address]:
        """Where to read: the site that this is connected to, then the others that were given."""
        here = self._connection.address
        return [here, *(other for other in self._connection.addresses if other is not here)]

    def look(self, topics: Iterable[str]) -> dict[str, Log | None]:
        """Each of `topics` as it is now: None if it was deleted. One whose copy at this site is
        just being made is left out."""

        async def all_of_them() -> dict[str, Log | None]:
            names = list(topics)
            found = await asyncio.gather(*(self._look(topic) for topic in names))
            return {name: log for name, log in zip(names, found, strict=True) if log != AWAY}

        return self._run(all_of_them())

    def index_at(self, topic: str, when: datetime) -> int:
        """The index of the first event at `when` or later; behind the last if there is none. Raises
        `Unavailable` if the log does not come to rest."""
        return self._run(self._index_at(topic, when))

    async def _names(self) -> list[str]:
        if not self.in_fabric:
            names = await self._jetstream.stream_names()
            return [topic for name in names if (topic := topic_of_stream(name))]
        keys = f"{PREFIX}topic."
        answer = await self._jetstream.call(
            f"STREAM.INFO.{STREAM}", {"subjects_filter": f"{keys}>"}
        )
        streams = [key.removeprefix(keys) for key in answer["state"].get("subjects") or {}]
        topics = [topic for stream in streams if (topic := topic_of_stream(stream))]
        entries = await asyncio.gather(*(self._entry(topic) for topic in topics))
        return [entry.name for entry in entries if entry is not None]

    async def _entry(self, topic: str) -> TopicEntry | None:
        try:
            entry = await self._routes.find(topic)
        except UnknownTopic:
            return None
        return entry if entry is not None and entry.name == topic else None

    async def _look(self, topic: str) -> Log | Literal["away"] | None:
        entry = await self._entry(topic) if self.in_fabric else None
        if self.in_fabric and entry is None:
            return None
        if entry is not None:
            with contextlib.suppress(UnknownTopic):
                await self._reader.owner(topic)  # has the site keep a copy
        found = await look(self._jetstream, topic)
        if found is None and entry is not None:
            await self._routes.want(topic, now=True)
            return AWAY
        if found is None:
            return None
        last = found.last
        if entry is not None and len(entry.members) > 1:
            last = await self._confirmed(entry, last)
        return Log(
            topic=topic,
            epoch=entry.epoch if entry else 0,
            since="" if entry else found.infos[0]["created"],
            lineage=tuple(entry.lineage) if entry else (),
            first=found.first,
            last=last,
            events=found.events,
            bytes=found.bytes,
        )

    async def _confirmed(self, entry: TopicEntry, last: int) -> int:
        """How far a quorum has the log of which our copy ends at `last`."""
        now = time.monotonic()
        if now - self._asked.get(entry.name, 0.0) > ASK_AGAIN:
            first = entry.name not in self._reports
            self._asked[entry.name] = now
            await self._ask(entry)
            if first:
                await self._first_reports(entry)
        states = self._reports.get(entry.name, {}).values()
        # What was agreed on before this epoch began is agreed on for ever.
        return max(confirmed(last, entry.epoch, len(entry.members), states), min(last, entry.base))

    async def _ask(self, entry: TopicEntry) -> None:
        inbox = f"{self._connection.inbox}.{self._inbox}"
        if self._sid is None:
            self._sid = self._connection.subscribe(f"{inbox}.*", self._on_report)
        inbox = f"{inbox}.{stream_of(entry.name)}"
        body = msgspec.json.encode(ProgressRequest(entry.name, inbox, 0.005))

        async def ask(replica: str) -> None:
            with contextlib.suppress(Down, TimeoutError, SkerryError):
                await self._connection.request(f"_sk.{replica}.open.progress", body, timeout=1.0)

        await self._routes.reach([site for site in entry.members if site != self._routes.site])
        await asyncio.gather(*(ask(replica) for replica in entry.members[1:]))

    async def _first_reports(self, entry: TopicEntry) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while len(self._reports.get(entry.name, {})) < len(entry.members) // 2:
                    await asyncio.sleep(0.005)

    def _on_report(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        topic = topic_of_stream(subject.rpartition(b".")[2].decode())
        report = read(data, ProgressReport, "what a replica told")
        if topic is not None and report is not None:
            states = self._reports.setdefault(topic, {})
            states[report.site] = State(report.site, report.epoch, report.last)

    async def _index_at(self, topic: str, when: datetime) -> int:
        deadline = time.monotonic() + self._site.timeout
        while True:
            chain = await look_at_chain(self._jetstream, topic)
            with contextlib.suppress(Moved):
                index = await index_since(self._jetstream, chain or (), when)
                # Else a segment may have been emptied before it was asked.
                if await look_at_chain(self._jetstream, topic) == chain:
                    break
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the log of {topic} at site {self._routes.site} changes all the time: where "
                    f"{when.isoformat()} is in it cannot be told",
                    "Try again; look with `skerry doctor`.",
                )
            await asyncio.sleep(SETTLE)
        if index is not None:
            return index
        log = await self._look(topic)
        return log.last + 1 if isinstance(log, Log) else 1
