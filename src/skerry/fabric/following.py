"""Whom a copy follows, and where from others may follow this site.

Members follow the home; copies for readers form a tree (`skerry.fabric.tree`) and write their place
in it down. The engine asks each time it connects a mirror (`skerry.fabric.relay`); the answer is
the holder chosen here, once that one is known to hold the same history.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

import msgspec

from skerry.directory.store import STREAM as STORE_STREAM
from skerry.directory.store import Store
from skerry.engine.jetstream import JetStream
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.fabric.links import Links
from skerry.fabric.logs import Logs
from skerry.fabric.peers import Peers
from skerry.fabric.relay import Question, Relay
from skerry.fabric.streams import Local
from skerry.fabric.tasks import Tasks
from skerry.fabric.tree import FANOUT, choose_parent
from skerry.model.fabric import CopyRecord, TopicEntry, copy_key
from skerry.model.names import segment_of_stream

log = logging.getLogger("skerry.fabric")

RING = 1.0
"""Seconds after which a copy that follows another looks whether that one follows it: two that lose
their holder at the same moment may choose each other, from what they know of one another."""
FAR = 1.0
"""Seconds that an unmeasured distance counts for, and a link that is not there yet."""


class Holding(msgspec.Struct):
    """The log at a site that others may follow: the epoch of its history, its first and last index,
    the sites through which it follows the home itself, and its stream."""

    root: int
    first: int
    path: tuple[str, ...] = ()
    last: int = sys.maxsize
    stream: str = ""


class Following:
    """Points this site's copies at their holders. `welds` tells which segment a stream that is made
    of others reads next; `on_fork` is told of a copy that must roll."""

    def __init__(
        self,
        jetstream: JetStream,
        logs: Logs,
        store: Store,
        links: Links,
        peers: Peers,
        welds: Callable[[str, int], str | None],
        on_fork: Callable[[TopicEntry], None],
    ) -> None:
        self.relay = Relay(jetstream.connection, self._answer, self._begins, links.way)
        self._site = logs.site
        self._logs = logs
        self._store = store
        self._links = links
        self._peers = peers
        self._welds = welds
        self._on_fork = on_fork
        self._crowded: set[str] = set()
        """Streams whose tree of copies has changed since we looked at our place in it."""
        self._tasks = Tasks("following")

    def start(self) -> None:
        """Begin to hear of other copies."""
        self._crowded = {local.signpost for local in self._logs}
        self._store.watch("copy.", lambda key, value: self._crowded.add(key.split(".")[1]))

    async def close(self) -> None:
        """Stop."""
        await self.relay.close()
        await self._tasks.close()

    # The place in the tree

    def choose(self, local: Local, entry: TopicEntry, anywhere: bool = False) -> None:
        """Choose the holder to follow; with `anywhere`, as if this copy had no place yet."""
        if self._site in entry.members:
            local.parent = entry.home
        else:
            records = self._records(local)
            if anywhere:
                records.pop(self._site, None)
            links = self._links
            lost = links.missing()
            place = choose_parent(
                self._site,
                entry,
                records,
                self._store.origin,
                lambda site: site not in lost and links.can_reach(site),
                lambda site: links.rtt.get(site, FAR) + (0 if site in links.up else FAR),
            )
            local.parent = place.parent
            if records.get(self._site) != place:
                self._tasks.spawn(self._note(local, place))
        self._links.want(local.parent)

    def make_way(self, local: Local, entry: TopicEntry) -> None:
        """Copies that appeared at once may all have chosen one holder: the later ones go on. One of
        a topic with a latency bound goes to the home, as soon as there is a link."""
        if self._site in entry.members:
            return
        if entry.settings.latency is not None:
            self._go_home(local, entry)
            return
        if local.signpost not in self._crowded:
            return
        self._crowded.discard(local.signpost)
        records = self._records(local)
        followed = {record.parent for record in records.values()}
        # Those that are followed themselves stay: a tree is not moved by its branches.
        same = sorted(
            (site for site, record in records.items() if record.parent == local.parent),
            key=lambda site: (site not in followed, site),
        )
        is_late = self._site in same[FANOUT:] and self._site not in followed
        if is_late or self._site not in same:  # or our place was not noted
            self._crowded.add(local.signpost)  # look once more whether that was of use
            before = local.parent
            self.choose(local, entry, anywhere=is_late)
            if local.parent != before:
                self.relay.again(local.stream)

    def _go_home(self, local: Local, entry: TopicEntry) -> None:
        if not local.parent or local.copy.following != entry.epoch:
            return
        self._links.want(entry.home)
        noted = self._store.get(copy_key(local.name, self._site), CopyRecord)
        is_there = local.parent == entry.home
        if entry.home in self._links.up and not (is_there and noted and noted.parent == entry.home):
            self.choose(local, entry)
            if not is_there:
                self.relay.again(local.stream)

    def _records(self, local: Local) -> dict[str, CopyRecord]:
        return self._store.all(f"copy.{local.signpost}.", CopyRecord)

    async def _note(self, local: Local, record: CopyRecord) -> None:
        with contextlib.suppress(Conflict, Unavailable):
            await self._store.put(copy_key(local.name, self._site), record)

    async def leave(self, local: Local) -> None:
        """Give up the place in the tree: this is no reader's copy any more."""
        key = copy_key(local.name, self._site)
        if self._store.get(key, CopyRecord) is not None:
            with contextlib.suppress(Conflict, Unavailable):
                await self._store.delete(key)

    # What the engine asks

    async def _answer(self, question: Question) -> tuple[str, str] | None:
        """The holder that a mirror may read now, and its stream; see `Relay`."""
        if question.source:
            if self._links.is_locked:
                return None  # the engine has just opened a log that may be no home any more
            return question.source, question.stream
        if question.stream == STORE_STREAM:
            return self._store.origin, STORE_STREAM
        if (part := self._welds(question.stream, question.start)) is not None:
            return self._site, part
        name, _ = segment_of_stream(question.stream) or ("", 0)
        local = self._logs.get(name)
        if local is not None and local.stream != question.stream:
            return None  # it is no segment yet, or none any more
        entry = self._logs.entry(local.name) if local else None
        if local is None or entry is None or local.copy.following != entry.epoch:
            return None
        if local.parent not in self._links.up:
            self._links.want(local.parent)
            if self._site not in entry.members:
                self.choose(local, entry)
            if local.parent not in self._links.up:
                return None
        parent = local.parent
        try:
            data = await self._peers.ask(parent, "peer.holding", {"name": local.name}, 1.0)
        except SkerryError:
            return None
        if local.parent != parent:
            return None  # what this one has says nothing of the other
        holding = msgspec.json.decode(data, type=Holding | None)
        if holding is None or holding.root != entry.epoch:
            # It has not heard of this epoch yet, and may hold events that are not in its history.
            if parent != entry.home and self._site not in entry.members:
                local.parent = entry.home
                self._links.want(entry.home)
            return None
        if parent == entry.home and question.start > holding.last + 1:
            await self._renounce(local, entry, question.start - 1, holding.last)
            return None
        if self._site in holding.path:
            self._leave_ring(local, entry)
            return None
        is_joined = await self._join(local, entry, max(question.start - 1, 0))
        if not is_joined or local.parent != parent:
            return None
        local.path = (*holding.path, parent)
        if parent != entry.home:
            self._tasks.spawn(self._look_for_ring(local, parent))
        return parent, holding.stream

    async def _begins(self, question: Question, holder: str, first: int) -> bool:
        """A holder sends from `first` on, for it has let go of what is before: the copy here begins
        there. False: it is another one by now. (The holder says so itself, with its answer: what it
        had when it was chosen may be gone by then.)"""
        name, _ = segment_of_stream(question.stream) or ("", 0)
        local, entry = self._logs.get(name), self._logs.entry(name)
        is_copy = holder != self._site and not question.source and question.stream != STORE_STREAM
        if not is_copy or not 1 < question.start < first:
            return True
        if local is None or entry is None:
            return False
        log.warning(
            "the copy of %s here ends at %d, and %s keeps events from %d on: going on there",
            local.name, question.start - 1, holder, first,
        )  # fmt: skip
        return await self._skip(local, entry, question.stream, first)

    async def _skip(self, local: Local, entry: TopicEntry, stream: str, first: int) -> bool:
        """Have the log begin at `first`, which its active segment `stream` goes on with: before a
        hole nothing is kept, or whoever reads would go across it unawares. False: that segment, or
        whom it follows, is another by now."""
        async with local.lock:
            if local.stream != stream or local.copy.following != entry.epoch:
                return False
            # The active one last: should this fail, or the site die, the engine asks the same
            # again. What lies beyond a segment's end is left to `Tails`.
            for segment in local.chain[:-1]:
                await self._logs.begin_at(segment.stream, segment.last + 1)
            await self._logs.begin_at(stream, first)
            return True

    async def _join(self, local: Local, entry: TopicEntry, last: int) -> bool:
        """The engine asks for what follows `last`: it has stored all that was under way from the
        holder before. Whether the copy may read on."""
        if local.copy.is_joined:
            return True
        async with local.lock:
            if local.copy.following != entry.epoch:
                return False
            return await self.join(local, entry, last)

    async def join(self, local: Local, entry: TopicEntry, last: int) -> bool:
        """The copy ends at `last`, and what comes next is sent by the home of its epoch: mark that.
        False: it must roll. The lock is held."""
        joined = local.copy.twin()
        if not joined.join(last, entry.lineage):
            local.copy.following, local.copy.last = 0, last
            self._on_fork(entry)
            return False
        await self._logs.write_marks(local, joined)
        local.copy.root, local.copy.label = joined.root, joined.label
        local.copy.aside = joined.aside
        return True

    async def _renounce(self, local: Local, entry: TopicEntry, mine: int, last: int) -> None:
        """The home lost events that this copy holds: it is helped no more. A copy that is sealed
        for an epoch which does not come asks for it (`Upkeep`)."""
        if self._site not in entry.members:
            return
        log.error(
            "the copy of %s here ends at %d, and its home %s at %d: that has lost events",
            local.name, mine, entry.home, last,
        )  # fmt: skip
        async with local.lock:
            if local.copy.following == entry.epoch:
                local.copy.seal(entry.epoch + 1)
                await self._logs.write_marks(local)

    async def _look_for_ring(self, local: Local, parent: str) -> None:
        await asyncio.sleep(RING)
        if local.parent != parent or (entry := self._logs.entry(local.name)) is None:
            return
        with contextlib.suppress(SkerryError):
            data = await self._peers.ask(parent, "peer.holding", {"name": local.name}, 1.0)
            holding = msgspec.json.decode(data, type=Holding | None)
            if holding is not None and self._site in holding.path and local.parent == parent:
                self._leave_ring(local, entry)
                self.relay.again(local.stream)

    def _leave_ring(self, local: Local, entry: TopicEntry) -> None:
        """The holder that this copy follows follows it in turn: go to the home instead."""
        log.debug("the copies of %s here and at %s follow each other", local.name, local.parent)
        local.parent = entry.home
        local.path = ()
        self._links.want(entry.home)

    async def holding(self, name: str) -> Holding | None:
        """What a copy elsewhere that wants to follow the log here must know of it."""
        local = self._logs.get(name)
        info = await self._logs.info(local) if local is not None and local.kind else None
        if local is None or info is None or local.is_split:
            return None
        path = local.path if local.kind == "copy" else ()
        state = info["state"]
        return Holding(local.copy.root, state["first_seq"], path, state["last_seq"], local.stream)

    def on_link(self, peer: str, is_up: bool) -> None:
        """A link changed: mirrors and sources that use it must be told, or would wait."""
        if not is_up:
            self.relay.lost(peer)
        elif peer == self._store.origin and not self.relay.is_reading(STORE_STREAM):
            self.relay.again(STORE_STREAM)
        for local in self._logs:
            if local.kind == "copy" and local.parent == peer:
                entry = self._logs.entry(local.name)
                if not is_up and entry is not None and self._site not in entry.members:
                    self.choose(local, entry)
                if local.parent in self._links.up and not self.relay.is_reading(local.stream):
                    self.relay.again(local.stream)
            elif (
                local.kind == "home"
                and is_up
                and peer in local.sources
                and not self.relay.is_reading(local.signpost, peer)
            ):
                self.relay.again(local.signpost, peer)
