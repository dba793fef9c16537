"""The site's outbox: events for any topic, durable here at once, taken home when the way is free.

Everything published at level `outbox`, and everything that plain clients publish, is stored in one
stream of this site. When it holds events of a topic, we ask that topic's home to read them; its
engine takes them over the link, in order, and remembers in its own log how far it came, so that
neither a cut nor a change of home adds or loses one. They are removed here once so many members
hold them that an election would find them.

What a home remembers is an index. A site that starts anew may have an outbox that ends earlier than
it did: its machine lost power, its folder was set back, or it is another site of the same name. So
each start begins another *box* (`kept_subject`), of which homes remember nothing; the engine puts
what clients publish into the newest one. Boxes are read one after the other, for a publisher's
events stay in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from skerry.config import DUPLICATE_WINDOW
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import SkerryError, Unavailable
from skerry.fabric.copies import Copies
from skerry.fabric.links import Links
from skerry.fabric.peers import ANSWER, Peers, is_held
from skerry.fabric.streams import OUTBOX, source_config
from skerry.fabric.tasks import Tasks
from skerry.model.event import parse_headers
from skerry.model.fabric import TopicEntry
from skerry.model.names import (
    BoxText,
    TopicText,
    is_own,
    is_within,
    kept_subject,
    kept_topic,
    site_of_box,
    stream_of,
)

log = logging.getLogger("skerry.fabric")

NANO = 1_000_000_000
LOOK = 0.05
"""Seconds between looks at the outbox. The first event of a quiet topic waits for one."""
SOURCE_LIFE = 60.0
"""Seconds that a home goes on reading an outbox that has nothing for it."""
UNKNOWN = 10.0
"""Seconds that events wait for a topic that is not known here."""
STILL = 5.0
"""Seconds after which a home that reads no further is thought to be held up."""
TIDY = 1.0
"""Seconds between removals of what has arrived."""


Kept = tuple[str, str]
"""A topic's name, and a box."""


class SourceRequest(msgspec.Struct):
    """Asks a home to read a box; with `via`, a hub to take it into its own outbox, because no link
    leads from there to the home. If its log does not tell how far it has read, it begins at
    `start`."""

    name: TopicText
    box: BoxText
    via: bool = False
    start: int = 1


class Taken(msgspec.Struct):
    """How far a home has read an outbox, counting only what enough members hold; and at all."""

    seq: int = 0
    read: int = 0


class Outbox:
    """The outbox of one site, and the homes here that read others'."""

    def __init__(
        self,
        jetstream: JetStream,
        box: str,
        copies: Copies,
        links: Links,
        peers: Peers,
        ask_directory: Callable[[], Awaitable[bool]],
    ) -> None:
        self._jetstream = jetstream
        self._ask_directory = ask_directory
        """Has the directory here be as new as any; whether that was possible."""
        self._connection = jetstream.connection
        self._box = box
        """What is published now goes there."""
        self._site = site_of_box(box)
        self._copies = copies
        self._links = links
        self._peers = peers
        self._asked: dict[Kept, tuple[str, int, float]] = {}
        self._forwards: dict[Kept, float] = {}
        """Boxes that this hub takes into its own outbox, and until when."""
        self._unknown: dict[str, float] = {}
        self.on_stray: Callable[[str, str], Awaitable[None]] | None = None
        """Takes what is here for a topic that does not exist: its name and the subject."""
        self.on_large: Callable[[TopicEntry, str, int], Awaitable[None]] | None = None
        """Takes the first event that a box holds for a topic behind an index, if that is too
        large."""
        self._aside: asyncio.Task[None] | None = None
        self._still: dict[Kept, tuple[int, float, float]] = {}
        """How far homes have read, since when, and when they said so last."""
        self._read: dict[Kept, tuple[str, int, int]] = {}
        """Who had read a topic's events, in which epoch, and how far. It may forget that if its log
        has let go of them all, while too few members hold them for us to remove them here."""
        self._firsts: dict[str, int] = {}
        """An index in each earlier box: of two, the older one has lower indexes only."""
        self._lasts: dict[Kept, int] = {}
        """The last index of a topic's events in boxes into which nothing comes any more."""
        self.seen: dict[str, float] = {}
        """Topics, and when the outbox last held events of them: who publishes through it is no
        client that tells."""
        self._last = -1
        self._config: dict[str, Any] = {}
        self._tasks = Tasks("the outbox")

    async def open(self) -> None:
        """Make the stream, and begin to look after it."""
        engine, is_hub = self._connection.info, self._site == self._copies.hub
        config = {
            "name": OUTBOX,
            "subjects": [f"o.{self._site}.>"],
            "storage": "file",
            "num_replicas": 1,
            "discard": "new",
            # What is read from here grows on its way to the home, and more by way of the hub.
            "max_msg_size": engine.max_payload - engine.added // (4 if is_hub else 2),
            "allow_direct": True,
            "allow_msg_ttl": True,
            "duplicate_window": int(DUPLICATE_WINDOW * NANO),
        }
        self._config = config
        existing = await self._jetstream.stream(OUTBOX)
        if existing is None:
            await self._jetstream.call(f"STREAM.CREATE.{OUTBOX}", config)
        elif existing["config"]["max_msg_size"] != config["max_msg_size"]:
            with contextlib.suppress(SkerryError):  # it is checked again when something is read
                await self._jetstream.call(f"STREAM.UPDATE.{OUTBOX}", existing["config"] | config)
        self._tasks.spawn(self._keep())

    async def close(self) -> None:
        """Stop looking; what is in it stays."""
        await self._tasks.close()

    def on_link(self, peer: str) -> None:
        """A home is linked again; it may have forgotten that it was asked."""
        self._asked = {kept: ask for kept, ask in self._asked.items() if ask[0] != peer}
        self._last = -1

    # At the publisher's site

    async def _keep(self) -> None:
        tidied = 0.0
        while True:
            await asyncio.sleep(LOOK)
            try:
                if min(self._forwards.values(), default=self._connection.now()) < (
                    self._connection.now()
                ):
                    await self._set_forwards()
                info = await self._jetstream.stream(OUTBOX)
                if info is None or not info["state"]["messages"]:
                    continue
                now = self._connection.now()
                last = info["state"]["last_seq"]
                tidy = now - tidied > TIDY
                if last == self._last and not tidy:
                    continue
                self._last = last
                for entry, boxes in await self._waiting():
                    self.seen[entry.name] = now
                    for box in boxes:
                        await self._ask_home(entry, box, now)
                        if tidy:
                            await self._tidy(entry, box)
                        if box != boxes[-1] and not await self._is_read(entry, box):
                            break
                if tidy:
                    tidied = now
            except (SkerryError, Down) as error:
                log.debug("the outbox: %s", error)

    async def _waiting(self) -> list[tuple[TopicEntry, list[str]]]:
        """The topics that the outbox holds events of, and the boxes that do, the oldest first."""
        info = await self._jetstream.call(
            f"STREAM.INFO.{OUTBOX}", {"subjects_filter": f"o.{self._site}.>"}
        )
        found: dict[str, tuple[TopicEntry, set[str]]] = {}
        for subject in info["state"].get("subjects") or {}:
            box, topic = kept_topic(subject)
            name = next((name for name in found if is_within(topic, name)), None)
            entry = found[name][0] if name else self._copies.owner(topic)
            if entry is None:
                self._set_aside(topic, subject)
            else:
                found.setdefault(entry.name, (entry, set()))[1].add(box)
        old = set[str]().union(*(boxes for _, boxes in found.values())) - {self._box}
        for box in old - self._firsts.keys():
            self._firsts[box] = await self._index({"next_by_subj": f"o.{box}.>", "seq": 1})
        order = {**self._firsts, self._box: sys.maxsize}.__getitem__
        return [(entry, sorted(boxes, key=order)) for entry, boxes in found.values()]

    async def _index(self, asked: dict[str, Any]) -> int:
        """The index of an event here; 0: there is none."""
        subject = f"{self._jetstream.prefix}DIRECT.GET.{OUTBOX}"
        reply = await self._jetstream.ask(subject, msgspec.json.encode(asked))
        return 0 if reply.status else int(parse_headers(reply.head)["Nats-Sequence"])

    async def _is_read(self, entry: TopicEntry, box: str) -> bool:
        """Whether the home has read all events of a topic that a box holds."""
        target, _ = self._target(entry, box)
        reader, epoch, read = self._read.get((entry.name, box), ("", 0, 0))
        if (reader, epoch) != (target, entry.epoch):
            return False
        if read < self._lasts.get((entry.name, box), sys.maxsize):
            subject = kept_subject(box, entry.name)
            lasts = [await self._index({"last_by_subj": one}) for one in (subject, f"{subject}.>")]
            self._lasts[entry.name, box] = max(lasts)
        return read >= self._lasts[entry.name, box]

    def _set_aside(self, topic: str, subject: str) -> None:
        """Events of a topic that does not exist cannot go anywhere. It may be one that is just
        being made, so they wait a little; then others keep them, one topic after the other."""
        now = self._connection.now()
        since = self._unknown.setdefault(topic, now)
        is_busy = self._aside is not None and not self._aside.done()
        if now - since > UNKNOWN and not is_busy:
            self._aside = self._tasks.spawn(self._give_away(topic, subject))

    async def _give_away(self, topic: str, subject: str) -> None:
        try:
            if not await self._ask_directory() or self._copies.is_about_to_be(topic):
                raise Unavailable("the directory is away", "It may know the topic.")
            if self._copies.owner(topic) is not None:
                pass  # it was made where we did not hear of it
            elif self.on_stray is not None and not is_own(topic):
                await self.on_stray(topic, subject)
            else:
                await self._jetstream.call(f"STREAM.PURGE.{OUTBOX}", {"filter": subject})
            self._unknown.pop(topic, None)
        except (SkerryError, Down) as error:
            log.debug("events for %s, which does not exist, wait: %s", topic, error)
            self._unknown[topic] = self._connection.now()

    async def _ask_home(self, entry: TopicEntry, box: str, now: float) -> None:
        home, epoch, when = self._asked.get((entry.name, box), ("", 0, 0.0))
        if home == entry.home and epoch == entry.epoch and now - when < SOURCE_LIFE / 3:
            return
        target, body = self._target(entry, box)
        self._links.want(target)
        with contextlib.suppress(SkerryError):
            await self._peers.ask(target, "peer.source", body, timeout=1.0)
            self._asked[entry.name, box] = (entry.home, entry.epoch, now)

    def _target(self, entry: TopicEntry, box: str) -> tuple[str, SourceRequest]:
        """Whom to ask to read a box: the home, or the hub where no link leads there."""
        hub = self._copies.hub
        via = not self._links.can_reach(entry.home) and hub != self._site
        target = hub if via else entry.home
        reader, epoch, read = self._read.get((entry.name, box), ("", 0, 0))
        start = read + 1 if (reader, epoch) == (target, entry.epoch) else 1
        return target, SourceRequest(entry.name, box, via, start)

    async def _tidy(self, entry: TopicEntry, box: str) -> None:
        with contextlib.suppress(SkerryError):
            target, body = self._target(entry, box)
            data = await self._peers.ask(target, "peer.taken", body, 2 * ANSWER)
            told = msgspec.json.decode(data, type=Taken)
            if told.read:
                self._read[entry.name, box] = target, entry.epoch, told.read
            if taken := told.seq:
                subject = kept_subject(box, entry.name)
                for filter_ in (subject, f"{subject}.>"):
                    await self._jetstream.call(
                        f"STREAM.PURGE.{OUTBOX}", {"filter": filter_, "seq": taken + 1}
                    )
            self._watch(entry, box, told.read)

    def _watch(self, entry: TopicEntry, box: str, read: int) -> None:
        """A home that is asked time and again, and reads no further, may be held up."""
        now = self._connection.now()
        known = self._still.get((entry.name, box))
        if known is None or known[0] != read or now - known[2] > STILL:
            self._still[entry.name, box] = read, now, now
            return
        self._still[entry.name, box] = read, known[1], now
        is_busy = self._aside is not None and not self._aside.done()
        is_still = now - known[1] > STILL and entry.settings.max_event_bytes
        if is_still and not is_busy and self.on_large is not None:
            self._aside = self._tasks.spawn(self._unblock(entry, box, read))

    async def _unblock(self, entry: TopicEntry, box: str, read: int) -> None:
        assert self.on_large is not None
        try:
            await self.on_large(entry, box, read)
        except (SkerryError, Down) as error:
            log.debug("what holds up %s stays: %s", entry.name, error)

    # At the home

    async def read(self, request: SourceRequest) -> None:
        """Read a box, for a while."""
        self._links.want(site_of_box(request.box))
        until = self._connection.now() + SOURCE_LIFE
        if request.via:
            known = (request.name, request.box) in self._forwards
            self._forwards[request.name, request.box] = until
            self._copies.following.relay.begin(stream_of(request.name), request.box, request.start)
            if not known:
                await self._set_forwards()
            return
        await self._copies.add_source(request.name, request.box, until, request.start)

    async def taken(self, request: SourceRequest) -> Taken:
        """How far it was read, by enough members."""
        if request.via:
            read = await self._read_so_far(OUTBOX, request)
            return Taken(read, read)
        local = self._copies.local(request.name)
        entry = self._copies.entry(request.name)
        if local is None or entry is None or local.kind != "home":
            return Taken()
        seq = await self._read_so_far(local.stream, request)
        info = await self._jetstream.stream(local.stream)
        if info is None or not seq:
            return Taken()
        # What is removed must survive the loss of as many as an election may miss.
        is_safe = await is_held(self._peers, entry, info["state"]["last_seq"])
        return Taken(seq if is_safe else 0, seq)

    async def _read_so_far(self, stream: str, request: SourceRequest) -> int:
        info = await self._jetstream.stream(stream)
        subject = kept_subject(request.box, request.name)
        for source in (info or {}).get("sources") or []:
            filters = [transform["src"] for transform in source.get("subject_transforms") or []]
            if subject in filters:
                return int(source.get("seq", 0))
        return 0

    async def _set_forwards(self) -> None:
        """Have our own outbox read others', for the topics asked for."""
        now = self._connection.now()
        self._forwards = {key: until for key, until in self._forwards.items() if until > now}
        sources = [
            source_config(box, kept_subject(box, name), kept_subject(self._box, name), self._site)
            for name, box in sorted(self._forwards)
        ]
        await self._jetstream.call(
            f"STREAM.UPDATE.{OUTBOX}", {**self._config, **({"sources": sources} if sources else {})}
        )
