"""What a segment holds beyond the history goes to the topic's home, and then goes.

A site that rolls leaves events behind that the new home never had (`promotion.Copy.roll`). They
were acknowledged at level `home` at the most. They must not be read as part of the log, and must
not be lost. So they are first copied into a stream of their own, a *tail*, at the same engine, and
removed from the segment; then they are brought to whoever is the home, however long that takes.
What lies earlier in the log goes first: a publisher's events stay in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from skerry.engine.jetstream import ApiError, JetStream
from skerry.engine.link import Down
from skerry.engine.tide import Tide
from skerry.errors import FabricError, SkerryError, Unavailable
from skerry.fabric.links import Links
from skerry.fabric.logs import AT_ONCE, Logs
from skerry.fabric.peers import Peers, is_held
from skerry.fabric.salvage import events_of, kept_as, salvage
from skerry.fabric.streams import FIRST, Local
from skerry.fabric.tasks import Tasks
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry
from skerry.model.names import stream_of, tail_of, topic_of_tail
from skerry.model.promotion import fork_of, is_forgotten, is_forked

log = logging.getLogger("skerry.fabric")

ROOT = "skerry.root"
OF = "skerry.of"
"""What a tail is of: the stream, when that was made, and the index at which it was to end."""
COMPLETE = "skerry.complete"
"""The mark of a tail that has all that it is for."""
STORE = 5.0
"""Seconds that the engine may take to store some events."""
AGAIN = 0.25
HELD = 0.1
AGAIN_MOST = 10.0
"""Seconds after which what failed is tried again, at first and at the most; and after which members
are asked again whether they hold what was brought home."""
SOON = 3.0
"""Seconds in which no machine is back that lost power, and events with it."""


class Tails:
    """The tails of one site. `on_gone` is told of a log that has none any more."""

    def __init__(
        self,
        jetstream: JetStream,
        logs: Logs,
        links: Links,
        peers: Peers,
        on_gone: Callable[[Local], None],
    ) -> None:
        self._on_gone = on_gone
        self._jetstream = jetstream
        self._logs = logs
        self._links = links
        self._peers = peers
        self.tide: Tide | None = None
        """What is remembered of the logs on disk."""
        self.kept: set[str] = set()
        """Topics that have tails here, as far as is known."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of each topic one tail is made at a time."""
        self._tasks = Tasks("bringing home what only this site has")

    async def close(self) -> None:
        """Stop; what is not brought home yet stays."""
        await self._tasks.close()

    def load(self, streams: list[dict[str, Any]]) -> None:
        """Learn which tails are here."""
        self.kept |= set(filter(None, (topic_of_tail(s["config"]["name"]) for s in streams)))

    async def cut(self, local: Local) -> None:
        """Have every stream of the log end where it is to end. What a former home held beyond is
        kept as a tail. A copy's is not: the home that it followed has it, and with it the
        conditions on which it was written, which a copy never had."""
        async with self._locks[local.name]:
            await self._cut(local)

    async def _cut(self, local: Local) -> None:
        for number, end in list(local.ends.items()):
            stream = stream_of(local.name, number)
            await self._logs.come_to_rest(stream)
            info = await self._jetstream.stream(stream)
            if info is not None and info["state"]["last_seq"] > end:
                await self._keep(local, info, end)
                if local.ends.get(number) != end:
                    continue  # it is to end earlier by now, and so to be kept from there on
                if number in dict(local.places):
                    if self.tide is not None:
                        self.tide.expect(stream)
                    last = int(info["state"]["last_seq"])
                    await self._logs.remove(stream, range(end + 1, last + 1))
            if local.copy.aside is not None:
                continue  # an election may count on all of it
            if number not in dict(local.places):
                await self._logs.drop(local, [stream])
            if local.ends.get(number) == end:
                del local.ends[number]

    async def keep_rest(self, local: Local, entry: TopicEntry) -> None:
        """Copy what the log holds beyond the history, because it is about to be removed. If nobody
        remembers the fork that may be all of it; but not where the home may have let events age
        out."""
        await self.cut(local)
        copy, forgets = local.copy, entry.settings.forgets
        end = min(fork_of(copy.root, copy.last, entry.lineage), entry.base)
        if is_forgotten(copy.root, copy.last, entry.lineage) and not forgets:
            end = 0
        async with self._locks[local.name]:
            for segment in local.chain:
                if (info := await self._jetstream.stream(segment.stream)) is not None:
                    await self._keep(local, info, end)
        self.bring_home(local)

    async def _keep(self, local: Local, info: dict[str, Any], end: int) -> None:
        """Copy what a stream of the log holds beyond `end`."""
        stream, marks = info["config"]["name"], info["config"].get("metadata") or {}
        if marks.get("skerry.home") != self._logs.site:
            return
        root = marks.get(ROOT, "0")
        origin = f"{stream} {info['created']} {end}"
        tails = await self._all(local.name) if local.name in self.kept else []
        for kept in tails:
            marks = kept["config"].get("metadata") or {}
            if COMPLETE in marks and marks.get(OF) == origin:
                return
            if COMPLETE not in marks and _source(kept) == (stream, info["created"]):
                await self._delete(kept)  # an attempt that failed
        # A stream may have to end earlier than it did: so it may have several tails.
        taken = {kept["config"]["name"] for kept in tails}
        names = (tail_of(stream_of(local.name, number)) for number in itertools.count())
        name = next(name for name in names if name not in taken)
        last = await self._logs.newest(stream)
        if last <= end:
            return
        self.kept.add(local.name)
        config: dict[str, Any] = {
            "name": name,
            "storage": "file",
            "num_replicas": 1,
            "allow_direct": True,
            "subjects": [f"_tail.{name}.>"],
            "metadata": {ROOT: root, FIRST: str(end + 1), OF: origin},
        }
        await self._jetstream.call(f"STREAM.CREATE.{name}", config)
        some: list[Event] = []
        async for event in events_of(self._jetstream, local.name, stream, end + 1, last):
            some.append(event)
            if len(some) == AT_ONCE:
                await self._store(name, some)
                some = []
        await self._store(name, some)
        config["subjects"] = [f"_frozen.{name}"]
        config["metadata"][COMPLETE] = "1"
        await self._jetstream.call(f"STREAM.UPDATE.{name}", config)

    async def _store(self, name: str, events: list[Event]) -> None:
        """Have the tail `name` keep some events, in order."""
        connection = self._jetstream.connection
        frames = [(*kept_as(name, event), bytes(event.data)) for event in events]
        try:
            replies = await asyncio.gather(
                *(
                    connection.request(subject, data, head, timeout=STORE)
                    for subject, head, data in frames
                )
            )
        except (Down, TimeoutError):
            raise Unavailable(
                f"the engine did not say that it has stored {name}",
                "Look into engine.log in the data folder.",
            ) from None
        for reply in replies:
            if reply.status or b'"error"' in reply.data:
                raise FabricError(
                    f"{name} could not be stored: {reply.data.decode()}",
                    "Is there room on the disk, and below --max-store?",
                )

    def bring_home(self, local: Local) -> None:
        """Have the home take what it lacks of the tails here. If that is under way, and waits, it
        goes on at once."""
        task = self._running.get(local.name)
        if task is not None and not task.done():
            self._news[local.name].set()
        elif local.name in self.kept:
            self._news[local.name] = asyncio.Event()
            self._running[local.name] = self._tasks.spawn(self._run(local))

    async def _run(self, local: Local) -> None:
        wait = AGAIN
        while local.name in self.kept and (entry := self._logs.entry(local.name)) is not None:
            local = self._logs.get(local.name) or local
            try:
                await self._bring_home(local, entry)
                continue
            except (SkerryError, Down) as error:
                log.debug("what %s has beyond the history stays for now: %s", local.name, error)
            news = self._news[local.name]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await news.wait()
            wait = AGAIN if news.is_set() else min(wait * 2, AGAIN_MOST)
            news.clear()

    async def _bring_home(self, local: Local, entry: TopicEntry) -> None:
        tails = await self._all(local.name)
        if not tails:
            async with self._locks[local.name]:  # one may just be made
                if not await self._all(local.name):
                    self.kept.discard(local.name)
                    self._on_gone(local)
            return
        is_forked_here = is_forked(local.copy.root, local.copy.last, entry.lineage)
        if local.kind and (local.ends or is_forked_here):
            raise FabricError(f"{local.name} holds more that goes first")
        for info in sorted(tails, key=_place):
            first, root = _place(info)
            if entry.is_another(root):  # of a topic that was deleted
                await self._delete(info)
                continue
            if COMPLETE not in info["config"]["metadata"]:
                info = await self._unfinished(local.name, info)
            if entry.home != self._logs.site and not await self._links.reach(entry.home, 5.0):
                raise Unavailable(f"no link to {entry.home}")
            # Of a fork that nobody remembers, no more than is known: to look further back would
            # publish events again that the new home has let age out, or whose ids it never had.
            fork = min(first - 1, entry.known_fork(root), entry.base)
            count, last = await salvage(
                self._jetstream,
                self._logs.site,
                entry,
                info["config"]["name"],
                root,
                (1, info["state"]["last_seq"]),
                fork,
            )
            if count:
                log.warning("%d events that only this site had were added to %s", count, local.name)
            waited, wait = 0.0, HELD
            while not self._is_over(local, entry) and not await is_held(self._peers, entry, last):
                await asyncio.sleep(wait)
                waited, wait = waited + wait, min(wait * 1.5, AGAIN_MOST)
            if waited > SOON or self._is_over(local, entry):
                return  # the home may have lost it meanwhile: we look again
            await self._delete(info)

    def _is_over(self, local: Local, entry: TopicEntry) -> bool:
        """Whether the topic has another epoch than that of `entry`, or is gone."""
        newest = self._logs.entry(local.name)
        return newest is None or newest.epoch != entry.epoch

    async def _all(self, name: str) -> list[dict[str, Any]]:
        streams = await self._jetstream.streams()
        return [info for info in streams if topic_of_tail(info["config"]["name"]) == name]

    async def _unfinished(self, name: str, tail: dict[str, Any]) -> dict[str, Any]:
        """A tail that was not complete when it was looked at, as it is now: it has all that it will
        ever have. Raises `FabricError` if its stream is there, for then it is made anew."""
        stream, created = _source(tail)
        async with self._locks[name]:  # it may just be made
            source = await self._jetstream.stream(stream)
            if source is not None and source["created"] == created:
                raise FabricError("a tail is not complete yet")
            now = await self._jetstream.stream(tail["config"]["name"])
            if now is None or _source(now) != (stream, created) or _place(now) != _place(tail):
                raise FabricError("a tail was made anew")
            return now

    async def _delete(self, tail: dict[str, Any]) -> None:
        await self._jetstream.call(f"STREAM.DELETE.{tail['config']['name']}")

    async def forget(self, name: str) -> None:
        """The topic was deleted."""
        async with self._locks[name]:  # one may just be made
            if name in self.kept:
                for info in await self._all(name):
                    with contextlib.suppress(ApiError):
                        await self._delete(info)
                self.kept.discard(name)


def _place(tail: dict[str, Any]) -> tuple[int, int]:
    """Where a tail comes among others: the index of the first event that it may keep, and the epoch
    whose history its stream was part of."""
    marks = tail["config"]["metadata"]
    return int(marks[FIRST]), int(marks[ROOT])


def _source(tail: dict[str, Any]) -> tuple[str, str]:
    """The stream that a tail is of, and when that was made."""
    stream, created, _ = tail["config"]["metadata"][OF].split()
    return stream, created
