"""The coordination store: a key-value bucket at one site, with a copy at every other.

Theory of operation. The bucket is a stream at the *origin*, the coordination site; every other site
mirrors it. Each site's engine tells changes on `_sk.<site>.news.<key>` as its copy takes them, so
that agents and clients hear of them from their own engine, also of those made while they looked
elsewhere: after a reconnect everything is read anew. They always hear of a key's newest value, and
perhaps not of one that was soon replaced: a copy takes what the origin still has. Reading is local
and goes on while the origin is away. Writing is compare-and-set at the origin, by the revision that
the writer has seen.

What cannot be read, or does not belong where it stands, is set aside (`skerry.model.records`): the
value before it counts, and the next write takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from skerry.engine.jetstream import ApiError, JetStream, error_of
from skerry.engine.link import Down
from skerry.engine.pull import NANO
from skerry.engine.wire import NO_RESPONDERS, Listener
from skerry.errors import Conflict, EngineError, SkerryError, Unavailable
from skerry.model.event import ACK_PREFIX, ID_HEADER, index_of, parse_headers
from skerry.model.fabric import fits, kind_of
from skerry.model.records import ASIDE, read

log = logging.getLogger("skerry.directory")

BUCKET = "skerry"
STREAM = f"KV_{BUCKET}"
PREFIX = f"$KV.{BUCKET}."
WRONG_REVISION = 10071
WRITE_TIME = 5.0
ATTEMPT = 1.0
"""Seconds that one write may take before it counts as not done, and one attempt to ask the origin,
beside the way there and back."""
LOAD_TIME = 15.0
"""Seconds in which reading everything is begun again."""
MARKER_TTL = 3600
"""Seconds that the store remembers a deletion."""

T = TypeVar("T")
Watcher = Callable[[str, bytes | None], None]


class Entry(msgspec.Struct, frozen=True):
    """A value and the revision at which it was written."""

    revision: int
    value: bytes


def news_subject(site: str) -> str:
    """Where the engine of `site` tells changes of its copy."""
    return f"_sk.{site}.news."


def origin_config(site: str) -> dict[str, Any]:
    """The bucket at its origin."""
    return {
        "name": STREAM,
        "subjects": [PREFIX + ">"],
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "num_replicas": 1,
        "duplicate_window": 2 * NANO,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
        "subject_delete_marker_ttl": MARKER_TTL * NANO,
        "republish": {"src": PREFIX + ">", "dest": news_subject(site) + ">"},
    }


def mirror_config(site: str, api: str) -> dict[str, Any]:
    """The bucket's copy at `site`."""
    return {
        "name": STREAM,
        "storage": "file",
        "max_msgs_per_subject": 1,
        "num_replicas": 1,
        "allow_direct": True,
        "mirror_direct": True,
        "allow_msg_ttl": True,
        "mirror": {"name": STREAM, "external": {"api": api, "deliver": f"$JS.M.{site}"}},
        "republish": {"src": PREFIX + ">", "dest": news_subject(site) + ">"},
    }


class Store(Listener):
    """One site's view of the store."""

    def __init__(
        self, jetstream: JetStream, site: str, origin: str, way: Callable[[], float]
    ) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self.site = site
        self.origin = origin
        self._way = way
        """Seconds that the way to the origin and back may take."""
        self._entries: dict[str, Entry] = {}
        self._groups: dict[str, dict[str, Entry]] = {}
        """The entries below each beginning of a key that ends with a dot."""
        self._revisions: dict[str, int] = {}
        """The newest revision seen of each key, deletions included."""
        self._watchers: list[tuple[str, Watcher]] = []
        self._loading: asyncio.Task[None] | None = None
        self._sid = b""

    async def open(self) -> None:
        """Read everything and hear of changes from now on; the stream must be there."""
        prefix = news_subject(self.site)

        def on_news(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            news = news_of(subject, reply, head)
            if news is not None:
                key, revision, is_gone = news
                self._take(key, revision, None if is_gone else data)

        self._sid = self._connection.subscribe(prefix + ">", on_news)
        self._connection.listen(self)
        await self._load()

    async def close(self) -> None:
        """Stop."""
        self._connection.unlisten(self)
        self._connection.unsubscribe(self._sid)
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    # Reading

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of `key` in this site's copy."""
        entry = self._entries.get(key)
        return None if entry is None else read(entry.value, kind, key, is_newest=False)

    def revision(self, key: str) -> int:
        """The revision to name when changing `key`; 0: it never was there."""
        return self._revisions.get(key, 0)

    def all(self, prefix: str, kind: type[T]) -> dict[str, T]:
        """All values whose key begins with `prefix`, which ends with a dot, by the rest of the
        key. Takes as long as there are such values, however large the store is."""
        found = {
            key[len(prefix) :]: read(entry.value, kind, key, is_newest=False)
            for key, entry in self._groups.get(prefix, {}).items()
        }
        return {key: value for key, value in found.items() if value is not None}

    def keys(self, prefix: str) -> list[str]:
        """The rest of all keys that begin with `prefix`, which ends with a dot."""
        return [key[len(prefix) :] for key in self._groups.get(prefix, ())]

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call `watcher(key, value)` for changes from now on, in order; None: the key is gone."""
        self._watchers.append((prefix, watcher))

    async def fresh(self, timeout: float) -> bool:
        """Wait until this copy has everything that the origin had when asked. False: the origin
        could not be asked, or the copy did not catch up in time."""
        deadline = self._connection.now() + timeout
        while self._connection.now() < deadline:
            try:
                reply = await self._connection.request(
                    f"$JS.{self.origin}.API.STREAM.INFO.{STREAM}",
                    timeout=min(ATTEMPT + self._way(), timeout),
                )
                if reply.status != NO_RESPONDERS:
                    info = msgspec.json.decode(reply.data)
                    return await self._reach(int(info["state"]["last_seq"]), deadline)
            except (Down, TimeoutError, KeyError):
                pass
            await asyncio.sleep(0.02)
        return False

    async def _reach(self, last: int, deadline: float) -> bool:
        while self._connection.now() < deadline:
            info = await self._jetstream.stream(STREAM)
            if info is not None and info["state"]["last_seq"] >= last:
                await self._load()
                return True
            await asyncio.sleep(0.005)
        return False

    # Writing

    async def put(
        self, key: str, value: object, *, revision: int | None = None, ttl: float | None = None
    ) -> int:
        """Write `value` if `revision` is still the newest (None: the newest that this site has
        seen, 0: the key must be new). Raises `Conflict` or `Unavailable`."""
        data = msgspec.json.encode(value)
        head = f"Nats-TTL: {max(int(ttl), 1)}s\r\n" if ttl is not None else ""
        at = self.revision(key) if revision is None else revision
        try:
            done = await self._write(key, data, head, at)
        except Conflict:
            if key in self._entries or not at:
                raise
            # It is deleted, and the origin may have forgotten that it ever was there.
            done = await self._write(key, data, head, 0)
        self._take(key, done, data)
        return done

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Remove a key, as it was when last seen, or as it was at `revision`."""
        head = f"KV-Operation: DEL\r\nNats-TTL: {MARKER_TTL}s\r\n"
        at = self.revision(key) if revision is None else revision
        done = await self._write(key, b"", head, at)
        self._take(key, done, None)

    async def _write(self, key: str, data: bytes, more: str, revision: int) -> int:
        subject = PREFIX + key
        if self.origin != self.site:
            subject = f"$JS.{self.origin}.API.{subject}"
        identity = secrets.token_hex(8)
        head = (
            f"NATS/1.0\r\n{ID_HEADER}: {identity}\r\n"
            f"Nats-Expected-Last-Subject-Sequence: {revision}\r\n{more}\r\n"
        ).encode()
        deadline = self._connection.now() + WRITE_TIME + self._way()
        sent = 0
        while True:
            try:
                await self._connection.wait_up(deadline)
                left = max(deadline - self._connection.now(), 0.01)
                sent += 1
                attempt = min(ATTEMPT + self._way(), left)
                reply = await self._connection.request(subject, data, head, timeout=attempt)
            except (Down, TimeoutError):
                reply = None
            if reply is not None and reply.status != NO_RESPONDERS:
                try:
                    return self._written(key, reply.data)
                except Conflict:
                    # An answer may have been lost: the engine looks at the revision first, and
                    # refuses what it has taken before (2.15.1).
                    if sent > 1 and (done := await self._find(key, identity)) is not None:
                        return done
                    raise
            if self._connection.now() >= deadline:
                raise Unavailable(
                    f"the coordination site {self.origin} did not take a change of {key}",
                    "Is it up and linked? Look with `skerry links`.",
                )
            await asyncio.sleep(0.02)

    async def _find(self, key: str, identity: str) -> int | None:
        """The revision of the write with that id, if it is the newest of `key` at the origin."""
        try:
            reply = await self._connection.request(
                f"$JS.{self.origin}.API.DIRECT.GET.{STREAM}",
                msgspec.json.encode({"last_by_subj": PREFIX + key}),
                timeout=ATTEMPT + self._way(),
            )
        except (Down, TimeoutError):
            return None
        fields = parse_headers(reply.head) if reply.head and not reply.status else {}
        return int(fields["Nats-Sequence"]) if fields.get(ID_HEADER) == identity else None

    def _written(self, key: str, data: bytes) -> int:
        answer = msgspec.json.decode(data)
        error = error_of(answer)
        if error is None:
            return int(answer["seq"])
        if isinstance(error, ApiError) and error.code == WRONG_REVISION:
            raise Conflict(f"{key} was changed by somebody else at the same time", "Try again.")
        raise error

    # Keeping up

    def on_up(self) -> None:
        """The engine is back: what changed meanwhile was told to nobody."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        try:
            await self._load()
        except SkerryError as error:
            log.warning("the store could not be read: %s", error.what)
        finally:
            self._loading = None

    async def _load(self) -> None:
        """Read the newest value of every key; again, if the engine dies meanwhile."""
        deadline = self._connection.now() + LOAD_TIME
        while True:
            try:
                return await self._load_once()
            except EngineError:
                if self._connection.now() > deadline:
                    raise
            await asyncio.sleep(0.05)
            await self._connection.wait_up(deadline)

    async def _load_once(self) -> None:
        """The same, through a throw-away consumer."""
        before = dict(self._revisions)
        name = f"store-{secrets.token_hex(6)}"
        info = await self._jetstream.call(
            f"CONSUMER.CREATE.{STREAM}.{name}",
            {
                "stream_name": STREAM,
                "config": {
                    "name": name,
                    "deliver_policy": "last_per_subject",
                    "filter_subject": PREFIX + ">",
                    "ack_policy": "none",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": 10 * NANO,
                },
            },
        )
        left = info.get("num_pending", 0)
        found: set[str] = set()
        done = asyncio.Event()

        def on_message(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            if not reply.startswith(ACK_PREFIX):  # a status: the request ended early
                done.set()
                return
            key = subject[len(PREFIX) :].decode()
            fields = parse_headers(head) if head else {}
            self._take(key, index_of(reply), None if _is_deletion(fields) else data)
            found.add(key)
            if len(found) >= left:
                done.set()

        inbox = f"{self._connection.inbox}.k.{name}"
        sid = self._connection.subscribe(inbox, on_message)
        try:
            if left:
                body = msgspec.json.encode({"batch": left, "expires": int(WRITE_TIME * NANO)})
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"
                self._connection.publish(subject, body, reply=inbox)
                async with asyncio.timeout(WRITE_TIME):
                    await done.wait()
        except (Down, TimeoutError):
            raise EngineError("the coordination store could not be read in time") from None
        finally:
            self._connection.unsubscribe(sid)
        if len(found) < left:
            raise EngineError("the coordination store could not be read")
        for key, revision in before.items():
            if key in self._entries and key not in found and self._revisions[key] == revision:
                self._take(key, revision + 1, None)  # gone, and its marker too

    def _take(self, key: str, revision: int, value: bytes | None) -> None:
        if revision <= self._revisions.get(key, 0):
            return
        self._revisions[key] = revision
        kind = kind_of(key)
        if value is None:
            ASIDE.forget(key)
            self._remove(key)
        elif kind and read(value, kind, key, fits=lambda record: fits(key, record)) is None:
            return  # what was there before still counts
        else:
            self._entries[key] = entry = Entry(revision, value)
            for group in _groups(key):
                self._groups.setdefault(group, {})[key] = entry
        for prefix, watcher in list(self._watchers):
            if key.startswith(prefix):
                watcher(key, value)

    def _remove(self, key: str) -> None:
        if self._entries.pop(key, None) is None:
            return
        for group in _groups(key):
            members = self._groups[group]
            del members[key]
            if not members:
                del self._groups[group]


def _groups(key: str) -> list[str]:
    """The beginnings of `key` that end with a dot."""
    return [key[: place + 1] for place, letter in enumerate(key) if letter == "."]


def news_of(subject: bytes, reply: bytes, head: bytes) -> tuple[str, int, bool] | None:
    """The key that changed, its revision, and whether it is gone; None: that did not come out of
    the store. The engine says in the headers what it tells again. It sends other things as well
    to whatever subject somebody names for an answer: those have a reply, another subject, or
    headers that name another stream."""
    key = subject.partition(b".news.")[2].decode()
    fields = parse_headers(head)
    if reply or fields.get("Nats-Stream") != STREAM or fields.get("Nats-Subject") != PREFIX + key:
        log.warning("news of %s that are not the store's are not believed", key or subject.decode())
        return None
    return key, int(fields["Nats-Sequence"]), _is_deletion(fields)


def _is_deletion(fields: dict[str, str]) -> bool:
    return "Nats-Marker-Reason" in fields or "KV-Operation" in fields
