"""Where topics are: what a client knows of the directory, from its own site's copy.

Outside a fabric there is no directory, and every topic is at the client's site. Inside one, an
entry is read from the copy of the store that the site keeps, and changes are told by its engine as
they arrive there; no agent is asked, so that it works while agents and other sites are away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Protocol

import msgspec

from skerry.directory.store import PREFIX, STREAM, news_of, news_subject
from skerry.engine.answers import open_answer
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Listener
from skerry.errors import SkerryError, Unavailable
from skerry.log.topics import unknown_topic
from skerry.model.control import Reach, TopicName, Want
from skerry.model.event import parse_headers
from skerry.model.fabric import TopicEntry, fits, topic_key
from skerry.model.names import check_topic, topic_of_stream
from skerry.model.records import read

WANT_EVERY = 20.0
"""Seconds after which a client that reads a copy asks for it again. Copies that nobody asks for go
after a minute."""


FIRST_TIME = 5.0
"""Seconds that a site may take to ask a topic's home what that keeps."""


class Follower(Protocol):
    """Told when a topic moves."""

    def on_route(self, entry: TopicEntry) -> None:
        """The topic's entry changed."""

    def on_gone(self) -> None:
        """The topic was deleted; nothing more is told of it."""


class Routes(Listener):
    """What one client knows of where topics are."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._in_fabric: bool | None = None
        self._entries: dict[str, tuple[int, TopicEntry]] = {}
        self._followers: dict[str, list[Follower]] = {}
        self._reading: Counter[str] = Counter()
        """Topics whose entries are just being read."""
        self._drops = 0
        """How often it was told that a topic is gone."""
        self._wanted: dict[tuple[str, str | None], float] = {}
        self._sid: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection.listen(self)

    @property
    def site(self) -> str:
        """The site that the client is connected to."""
        return self._connection.address.site

    async def in_fabric(self) -> bool:
        """Whether that site is part of a fabric."""
        if self._in_fabric is None:
            self._in_fabric = await self._read("fabric") is not None
            if self._in_fabric:
                await self._listen_here()
        return self._in_fabric

    async def find(self, topic: str) -> TopicEntry | None:
        """The entry of the topic that holds `topic`; None: there is no fabric. Raises
        `UnknownTopic`."""
        check_topic(topic)
        if not await self.in_fabric():
            return None
        names = _names_of(topic)
        for name in names:
            if name in self._entries:
                return self._entries[name][1]
        entry = await self._find_one(names)
        if entry is None:
            try:
                if await self._is_new(topic):
                    entry = await self._find_one(names)
            except (Unavailable, Down, TimeoutError) as error:
                if not await self._was_deleted(names):
                    if isinstance(error, Unavailable):
                        raise
                    raise self._connection.unavailable() from None
        if entry is None:
            raise unknown_topic(topic)
        return entry

    async def _find_one(self, names: list[str]) -> TopicEntry | None:
        self._reading.update(names)  # what is told from now on counts: it may overtake what is read
        try:
            drops = -1
            while drops != self._drops:
                drops = self._drops
                reads = (self._read(topic_key(name)) for name in names)
                all_found = await asyncio.gather(*reads)
        finally:
            self._reading.subtract(names)
            self._reading += Counter()  # without those that are 0
        for name, found in zip(names, all_found, strict=True):
            if found is not None and found[1] is not None:
                self._take(name, found[0], found[1])
                if name in self._entries:
                    return self._entries[name][1]
        return None

    async def _was_deleted(self, names: list[str]) -> bool:
        """Whether the client's site remembers that a topic of these names was deleted."""
        reads = (self._read(topic_key(name)) for name in names)
        return any(found is not None and found[1] is None for found in await asyncio.gather(*reads))

    async def _is_new(self, topic: str) -> bool:
        """Whether the topic was made elsewhere so lately that this site only hears of it now.
        Raises if the site cannot tell."""
        body = msgspec.json.encode(TopicName(topic))
        subject = f"_sk.{self.site}.open.topic.find"
        reply = await self._connection.request(subject, body, timeout=4.0)
        return msgspec.json.decode(open_answer(reply), type=bool)

    def follow(self, name: str, follower: Follower) -> None:
        """Tell `follower` whenever the entry of topic `name` changes."""
        self._followers.setdefault(name, []).append(follower)

    def unfollow(self, name: str, follower: Follower) -> None:
        """Undo `follow`."""
        followers = self._followers.get(name, [])
        if follower in followers:
            followers.remove(follower)

    def newest(self, name: str) -> TopicEntry | None:
        """The entry of topic `name` as far as it is known."""
        return self._entries[name][1] if name in self._entries else None

    async def reach(self, sites: list[str]) -> list[str]:
        """Ask the site's agent for links to `sites`; return those that no link can lead to. Other
        failures show when the links are used."""
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            reply = await self._connection.request(
                f"_sk.{self.site}.open.reach", msgspec.json.encode(Reach(sites)), timeout=2.0
            )
            return msgspec.json.decode(open_answer(reply), type=list[str])
        return []

    async def want(
        self, name: str, durable: str | None = None, *, now: bool = False
    ) -> TopicEntry | None:
        """Have a copy of topic `name` at the client's site, and that durable subscription; the
        entry that the site knows. None: it was asked a short while ago."""
        clock = self._connection.now()
        key = (name, durable)
        if not now and clock - self._wanted.get(key, -WANT_EVERY) < WANT_EVERY:
            return None
        body = msgspec.json.encode(Want(name, durable))
        reply = await self._jetstream.ask(f"_sk.{self.site}.open.topic.want", body)
        entry = msgspec.json.decode(open_answer(reply), type=TopicEntry)
        self._wanted[key] = clock
        return entry

    async def first_kept(self, name: str) -> int | None:
        """The first index that the home of topic `name` keeps; 0: that is here; None: it does not
        tell."""
        entry = self.newest(name)
        if entry is not None and entry.home == self.site:
            return 0
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            reply = await self._connection.request(
                f"_sk.{self.site}.open.topic.first",
                msgspec.json.encode(TopicName(name)),
                timeout=FIRST_TIME,
            )
            return msgspec.json.decode(open_answer(reply), type=int | None)
        return None

    async def forget(self, name: str, durable: str) -> None:
        """Have the fabric forget a durable subscription."""
        body = msgspec.json.encode((name, durable))
        open_answer(await self._jetstream.ask(f"_sk.{self.site}.open.unsubscribe", body))
        self._wanted.pop((name, durable), None)

    # Keeping up

    def on_up(self) -> None:
        """Perhaps at another site; and what changed meanwhile was told to nobody."""
        self._wanted.clear()
        if self._in_fabric is False:
            self._in_fabric = None  # the site may have joined one
        if self._in_fabric:
            if self._task is not None:
                self._task.cancel()
            self._task = asyncio.create_task(self._refresh())

    def on_closed(self, error: SkerryError) -> None:
        """The client is closed."""
        if self._task is not None:
            self._task.cancel()

    async def _refresh(self) -> None:
        """Take what the site knows of each topic, again and again until it knows, or can tell that
        the topic is gone. A site that is new, or was set back, hears of old topics late."""
        missing = list(self._entries)
        while missing:
            missing = [name for name in missing if not await self._is_read(name)]
            for name in list(missing):
                if await self._is_gone(name):
                    self._drop(name)
                    missing.remove(name)
            if missing:
                await asyncio.sleep(0.1)

    async def _is_read(self, name: str) -> bool:
        """Whether the site has an entry of a topic, or knows that it was deleted."""
        try:
            found = await self._read(topic_key(name))
        except (SkerryError, Down):
            return False
        known = self._entries.get(name)
        if found is None or known is None:
            return known is None
        revision, data = found
        if data is not None:
            self._take(name, revision, data)
        elif revision > known[0]:
            self._drop(name)
        return data is not None or revision > known[0]

    async def _is_gone(self, name: str) -> bool:
        """Whether there is no such topic; not so if that cannot be told."""
        *above, _ = _names_of(name)
        try:
            return await self._find_one(above) is not None or not await self._is_new(name)
        except (SkerryError, Down, TimeoutError):
            return False

    async def _listen_here(self) -> None:
        if self._sid is not None:
            return  # the connection takes it along to another site
        prefix = news_subject(self.site)

        def on_news(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            name = topic_of_stream(subject.decode().partition(".news.topic.")[2])
            if name is None or not self._cares_for(name):
                return
            news = news_of(subject, reply, head)
            if news is None:
                return
            _, revision, is_gone = news
            if is_gone:
                self._drop(name)
            else:
                self._take(name, revision, data)

        self._sid = self._connection.subscribe(prefix + "topic.>", on_news)

    async def read(self, key: str) -> bytes | None:
        """The value of a key of the store, as the client's site has it."""
        found = await self._read(key)
        return None if found is None else found[1]

    async def _read(self, key: str) -> tuple[int, bytes | None] | None:
        """The newest value in the copy of the store at the client's site, and its revision; without
        a value, it was deleted. None: nothing is known of it there."""
        reply = await self._jetstream.ask(
            f"$JS.API.DIRECT.GET.{STREAM}",
            msgspec.json.encode({"last_by_subj": PREFIX + key}),
            recovering=False,
        )
        if reply.status == NO_RESPONDERS and self._in_fabric:
            raise Unavailable(f"site {self.site} has no copy of the directory yet")
        if reply.status in (404, NO_RESPONDERS):
            return None
        fields = parse_headers(reply.head)
        is_gone = "KV-Operation" in fields or "Nats-Marker-Reason" in fields
        return int(fields["Nats-Sequence"]), None if is_gone else reply.data

    def _cares_for(self, name: str) -> bool:
        return name in self._entries or name in self._followers or self._reading[name] > 0

    def _drop(self, name: str) -> None:
        """The topic was deleted."""
        self._drops += 1
        self._entries.pop(name, None)
        for follower in self._followers.pop(name, []):
            follower.on_gone()

    def _take(self, name: str, revision: int, data: bytes) -> None:
        known = self._entries.get(name)
        if known is not None and known[0] >= revision:
            return
        key = topic_key(name)
        entry = read(data, TopicEntry, key, fits=lambda entry: fits(key, entry))
        if entry is None:
            return
        self._entries[name] = (revision, entry)
        changed = known is not None and (
            known[1].epoch < entry.epoch or known[1].settings.ack != entry.settings.ack
        )
        if changed:
            for follower in list(self._followers.get(name, [])):
                follower.on_route(entry)


def _names_of(topic: str) -> list[str]:
    """The topics that may hold `topic`, itself the last."""
    tokens = topic.split("/")
    return ["/".join(tokens[: depth + 1]) for depth in range(len(tokens))]
