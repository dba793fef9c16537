"""The site's outbox: events for any topic, durable here at once, taken home when the way is free.

Everything published at level `outbox`, and everything that plain clients publish, is stored in one
stream of this site. When it holds events of a topic, we ask that topic's home to read them; its
engine takes them over the link, in order, and remembers in its own log how far it came, so that
neither a cut nor a change of home adds or loses one. They are removed here once so many members
hold them that an election would find them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skerry.config import DUPLICATE_WINDOW
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import SkerryError, Unavailable
from skerry.fabric.copies import Copies
from skerry.fabric.links import Links
from skerry.fabric.logs import Info
from skerry.fabric.peers import ANSWER, Peers, is_held
from skerry.fabric.streams import OUTBOX, differs, source_config
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry
from skerry.model.names import SiteText, TopicText, is_own, is_within, outbox_subject, stream_of

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


class SourceRequest(msgspec.Struct):
    """Asks a home to read the outbox of `site`; with `via`, a hub to take it into its own outbox,
    because no link leads from there to the home. If its log does not tell how far it has read, it
    begins at `start`, provided that it still ends where it did when that was so, at `last`."""

    name: TopicText
    site: SiteText
    via: bool = False
    start: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 1
    last: int = 0


class Taken(msgspec.Struct):
    """How far a home has read an outbox, counting only what enough members hold; and at all. And
    where its log ends."""

    seq: int = 0
    read: int = 0
    last: int = 0


class Outbox:
    """The outbox of one site, and the homes here that read others'."""

    def __init__(
        self,
        jetstream: JetStream,
        site: str,
        copies: Copies,
        links: Links,
        peers: Peers,
        ask_directory: Callable[[], Awaitable[bool]],
    ) -> None:
        self._jetstream = jetstream
        self._ask_directory = ask_directory
        """Has the directory here be as new as any; whether that was possible."""
        self._connection = jetstream.connection
        self._site = site
        self._copies = copies
        self._links = links
        self._peers = peers
        self._asked: dict[str, tuple[str, int, float]] = {}
        self._forwards: dict[tuple[str, str], float] = {}
        """Outboxes that this hub takes into its own: topic and site, and until when."""
        self._forwarded: dict[str, int] = {}
        """How far it had taken them when it was started, by subject."""
        self._unknown: dict[str, float] = {}
        self.on_stray: Callable[[str, str], Awaitable[None]] | None = None
        """Takes what is here for a topic that does not exist: its name and the subject."""
        self.on_large: Callable[[TopicEntry, int], Awaitable[None]] | None = None
        """Takes the first event that is here for a topic behind an index, if it is too large."""
        self._aside: asyncio.Task[None] | None = None
        self._still: dict[str, tuple[int, float, float]] = {}
        """How far homes have read, since when, and when they said so last."""
        self._read: dict[str, tuple[str, int, int, int]] = {}
        """Who had read a topic's events, in which epoch, how far, and where its log ended then. It
        may forget that if its log has let go of them all, while too few members hold them for us to
        remove them here."""
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
            await self._jetstream.call(
                f"STREAM.CREATE.{OUTBOX}", {**config, "first_seq": _first_index()}
            )
        else:
            self._forwarded = _read_by(existing)
            if differs(config, existing["config"]):
                with contextlib.suppress(SkerryError):  # checked again when something is read
                    await self._jetstream.call(f"STREAM.UPDATE.{OUTBOX}", config)
        self._tasks.spawn(self._keep())

    async def close(self) -> None:
        """Stop looking; what is in it stays."""
        await self._tasks.close()

    def on_link(self, peer: str) -> None:
        """A home is linked again; it may have forgotten that it was asked."""
        self._asked = {name: ask for name, ask in self._asked.items() if ask[0] != peer}
        self._last = -1

    # At the publisher's site

    async def _keep(self) -> None:
        tidied = 0.0
        while True:
            await asyncio.sleep(LOOK)
            try:
                now = self._connection.now()
                if any(until < now for until in self._forwards.values()):
                    await self._set_forwards()
                info = await self._jetstream.stream(OUTBOX)
                if info is None or not info["state"]["messages"]:
                    continue
                last = info["state"]["last_seq"]
                tidy = now - tidied > TIDY
                if last == self._last and not tidy:
                    continue
                self._last = last
                for entry in (await self._waiting()).values():
                    self.seen[entry.name] = now
                    await self._ask_home(entry, now)
                    if tidy:
                        await self._tidy(entry)
                if tidy:
                    tidied = now
            except (SkerryError, Down) as error:
                log.debug("the outbox: %s", error)

    async def _waiting(self) -> dict[str, TopicEntry]:
        """The topics that the outbox holds events of."""
        info = await self._jetstream.call(
            f"STREAM.INFO.{OUTBOX}", {"subjects_filter": f"o.{self._site}.>"}
        )
        found: dict[str, TopicEntry] = {}
        prefix = len(f"o.{self._site}.")
        for subject in info["state"].get("subjects") or {}:
            topic = subject[prefix:].replace(".", "/")
            if any(is_within(topic, name) for name in found):
                continue
            entry = self._copies.owner(topic)
            if entry is None:
                self._set_aside(topic, subject)
            else:
                found[entry.name] = entry
        return found

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

    async def _ask_home(self, entry: TopicEntry, now: float) -> None:
        target, body = self._target(entry)
        asked, epoch, when = self._asked.get(entry.name, ("", 0, 0.0))
        if asked == target and epoch == entry.epoch and now - when < SOURCE_LIFE / 3:
            return
        self._links.want(target)
        with contextlib.suppress(SkerryError):
            await self._peers.ask(target, "peer.source", body, timeout=1.0)
            self._asked[entry.name] = (target, entry.epoch, now)

    def _target(self, entry: TopicEntry) -> tuple[str, SourceRequest]:
        """Whom to ask to read this outbox: the home, or the hub where no link leads there."""
        hub = self._copies.hub
        via = not self._links.can_reach(entry.home) and hub != self._site
        target = hub if via else entry.home
        reader, epoch, read, last = self._read.get(entry.name, ("", 0, 0, 0))
        if (reader, epoch) != (target, entry.epoch):
            read = last = 0
        return target, SourceRequest(entry.name, self._site, via, read + 1, last)

    async def _tidy(self, entry: TopicEntry) -> None:
        with contextlib.suppress(SkerryError):
            target, body = self._target(entry)
            data = await self._peers.ask(target, "peer.taken", body, 2 * ANSWER)
            told = msgspec.json.decode(data, type=Taken)
            if told.read:
                self._read[entry.name] = target, entry.epoch, told.read, told.last
            if taken := told.seq:
                subject = f"o.{self._site}.{entry.name.replace('/', '.')}"
                for filter_ in (subject, f"{subject}.>"):
                    await self._jetstream.call(
                        f"STREAM.PURGE.{OUTBOX}", {"filter": filter_, "seq": taken + 1}
                    )
            self._watch(entry, told.read)

    def _watch(self, entry: TopicEntry, read: int) -> None:
        """A home that is asked time and again, and reads no further, may be held up."""
        now = self._connection.now()
        known = self._still.get(entry.name)
        if known is None or known[0] != read or now - known[2] > STILL:
            self._still[entry.name] = read, now, now
            return
        self._still[entry.name] = read, known[1], now
        is_busy = self._aside is not None and not self._aside.done()
        is_still = now - known[1] > STILL and entry.settings.max_event_bytes
        if is_still and not is_busy and self.on_large is not None:
            self._aside = self._tasks.spawn(self._unblock(entry, read))

    async def _unblock(self, entry: TopicEntry, read: int) -> None:
        assert self.on_large is not None
        try:
            await self.on_large(entry, read)
        except (SkerryError, Down) as error:
            log.debug("what holds up %s stays: %s", entry.name, error)

    # At the home

    async def read(self, request: SourceRequest) -> None:
        """Read the outbox of `request.site`, for a while."""
        self._links.want(request.site)
        until = self._connection.now() + SOURCE_LIFE
        local = None if request.via else self._copies.local(request.name)
        info = await self._jetstream.stream(local.stream if local else OUTBOX)
        # A log that ends earlier than it did has lost some of what it had read.
        is_sound = info is not None and info["state"]["last_seq"] >= request.last
        start = request.start if is_sound else 1
        if not request.via:
            await self._copies.add_source(request.name, request.site, until, start)
            return
        known = (request.name, request.site) in self._forwards
        self._forwards[request.name, request.site] = until
        taken = self._forwarded.get(outbox_subject(request.site, request.name), 0)
        self._copies.following.relay.begin(
            stream_of(request.name), request.site, max(start, taken + 1), not known
        )
        if not known:
            await self._set_forwards()

    async def taken(self, request: SourceRequest) -> Taken:
        """How far it was read, by enough members."""
        if request.via:
            read, last = await self._read_so_far(OUTBOX, request)
            return Taken(read, read, last)
        local = self._copies.local(request.name)
        entry = self._copies.entry(request.name)
        if local is None or entry is None or local.kind != "home":
            return Taken()
        if entry.home != self._site or local.epoch != entry.epoch:
            return Taken()  # others hold another log, up to whatever index
        seq, last = await self._read_so_far(local.stream, request)
        if not seq:
            return Taken()
        # What is removed must survive the loss of as many as an election may miss.
        is_safe = await is_held(self._peers, entry, last)
        return Taken(seq if is_safe else 0, seq, last)

    async def _read_so_far(self, stream: str, request: SourceRequest) -> tuple[int, int]:
        """How far a stream here has read an outbox, and its own last index then."""
        info = await self._jetstream.stream(stream)
        read = _read_by(info).get(outbox_subject(request.site, request.name)) if info else None
        if info is None or read is None:
            return 0, 0
        begun = self._copies.following.relay.begun(stream_of(request.name), request.site)
        return max(read, begun - 1), info["state"]["last_seq"]

    async def _set_forwards(self) -> None:
        """Have our own outbox read others', for the topics asked for."""
        now = self._connection.now()
        self._forwards = {key: until for key, until in self._forwards.items() if until > now}
        sources = [
            source_config(
                site, outbox_subject(site, name), outbox_subject(self._site, name), self._site
            )
            for name, site in sorted(self._forwards)
        ]
        await self._jetstream.call(
            f"STREAM.UPDATE.{OUTBOX}", {**self._config, **({"sources": sources} if sources else {})}
        )


def _read_by(info: Info) -> dict[str, int]:
    """How far a stream has read others, by the subjects that it reads."""
    return {
        transform["src"]: int(source.get("seq", 0))
        for source in info.get("sources") or []
        for transform in source.get("subject_transforms") or []
    }


def _first_index() -> int:
    """Homes remember how far they have read an outbox. That of a site that takes the place of a
    lost one of its name must not give those indexes again."""
    return int(time.time() * 1e6)
