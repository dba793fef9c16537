"""Bring home what only a former home has.

A home that was replaced while it was away may hold events that the new home never saw: it had
acknowledged them at level `home` and died before a replica had them. Each is published to the new
home with its own id, unless the new home has it already, because its publisher sent it again.

What was written on a condition that does not hold any more counts for nothing, and is left behind.
So is what the new home would have let go by now, had it been there in time: it may have had it, and
nobody can tell. An event that its topic does not take any more is left behind with a warning.
Events that came out of an outbox are left alone: their outbox keeps them until enough replicas
have them, and the new home reads it from where its own log ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from skerry.engine.jetstream import ApiError, JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.errors import Conflict, EventTooLarge, SkerryError, Unavailable
from skerry.log.follow import Start
from skerry.log.frames import number_of, outcome_of
from skerry.log.live import LiveSubscription
from skerry.log.segments import Moved, is_home, next_index
from skerry.model.event import ID_HEADER, Event, reply_of
from skerry.model.fabric import TopicEntry
from skerry.model.names import write_subject
from skerry.model.topic import TopicSettings

log = logging.getLogger("skerry.fabric")

SOURCE_HEADER = "Nats-Stream-Source"
PATIENCE = 10.0
"""Seconds that the new home may take for one event."""
ATTEMPT = 4.0
"""Seconds after which it is asked again."""
AT_ONCE = 128
BYTES = 1 << 18
"""Events that are under way to it at the most, and bytes of them, but for a single larger one."""
HEADERS = 65535
"""Bytes of headers that the engine stores."""
TIE = b"Nats-Expected-Last-Subject-Sequence:"
STORED_HEADER = "Skerry-Stored"
"""When an event that was brought home was first stored, in nanoseconds since 1970. It is told where
events age out: what is older must not look newer because it came later."""
HEADERS_TOO_LARGE = 10097
"""The engine's refusal of an event whose headers it cannot store."""


async def salvage(
    jetstream: JetStream,
    site: str,
    entry: TopicEntry,
    stream: str,
    root: int,
    range: tuple[int, int],
    fork: int,
) -> tuple[int, int]:
    """Publish the events in `range` of this site's `stream` that the new home lacks behind `fork`.
    Return how many they were, and the last index of the home then."""
    mine: list[tuple[str, Event]] = []
    async for kept in events_of(jetstream, entry.name, stream, *range):
        event = restored(stream, kept)
        fields = event._all()
        if SOURCE_HEADER not in fields:
            mine.append((fields.get(ID_HEADER) or f"salvage-{site}-{root}-{event.index}", event))
    if not mine:
        return 0, 0
    remote = jetstream if entry.home == site else JetStream(jetstream.connection, entry.home)
    info = await remote.call(f"STREAM.INFO.{entry.stream}", timeout=PATIENCE)
    if not is_home(info, entry.epoch):
        raise Unavailable(f"{entry.home}, the home of {entry.name}, has no log yet")
    end = int(info["state"]["last_seq"])
    there = There(entry.settings, info["state"]["first_seq"] > fork + 1, time.time_ns())
    if end > fork:
        async for event in events_of(remote, entry.name, entry.stream, fork + 1, end):
            there.add(event)
    lacked = [
        Lacked(entry, identity, event)
        for identity, event in mine
        if identity not in there.ids and not there.is_past(event)
    ]
    busy: set[str] = set()
    if entry.settings.keep_last:
        busy = await _tie(remote, entry.stream, lacked, end)
    indexes = await _publish(jetstream, entry, [one for one in lacked if one.place not in busy])
    if busy:
        raise Unavailable(f"the home has taken events of {', '.join(sorted(busy)[:3])} meanwhile")
    return sum(index > 0 for index in indexes), max([end, *indexes])


class There:
    """What a home has behind a fork, `now` (nanoseconds since 1970); and whether it `has_let_go` of
    events that were there."""

    def __init__(self, settings: TopicSettings, has_let_go: bool, now: int) -> None:
        self.ids: set[str | None] = set()
        self._settings = settings
        self._has_let_go = has_let_go
        self._now = now
        self._stored: defaultdict[bytes, list[tuple[int, str | None]]] = defaultdict(list)
        """Of each sub-topic, when its events were stored, and their ids."""
        self._aged: dict[bytes, list[Aged]] = {}
        self._numbers: dict[str, int] = {}
        """By publisher, the highest number that it has."""
        self._first: int | None = None

    def add(self, event: Event) -> None:
        """The next event that the home has."""
        self.ids.add(event.id)
        if self._first is None:
            self._first = stored_at(event)
        if (own := number_of(event.id)) is not None:
            self._numbers[own[0]] = max(own[1], self._numbers.get(own[0], 0))
        if self._settings.keep_last:
            self._stored[event._subject].append((stored_at(event), event.id))
            self._aged.pop(event._subject, None)

    def is_past(self, event: Event) -> bool:
        """Whether the home would have let go of an event by now, had it been given it in time."""
        settings, stored = self._settings, stored_at(event)
        if settings.keep_last and self._count_newer(event, stored) >= settings.keep_last:
            return True
        if settings.max_age and stored < self._now - settings.max_age * 1e9:
            return True
        # Else the first that it has is only the first that it was given.
        is_limited = settings.max_events or settings.max_bytes or settings.max_age
        if is_limited and self._has_let_go and self._first is not None:
            # It was given what a publisher sent before, whenever that came here.
            publisher, number = number_of(event.id) or ("", 0)
            return stored < self._first or number < self._numbers.get(publisher, 0)
        return False

    def _count_newer(self, event: Event, stored: int) -> int:
        """How many of the home's events of the same sub-topic came later than this one."""
        subject = event._subject
        if subject not in self._aged:
            self._aged[subject] = _aged(self._stored[subject])
        publisher, number = number_of(event.id) or ("", 0)
        others, since = self._aged[subject], stored
        if publisher:
            mine = [one for one in others if one.publisher == publisher]
            since = min([stored, *(one.since for one in mine if one.number > number)])
            others = [one for one in others if one.publisher != publisher or one.number > number]
        return sum((one.since, one.number) > (since, number) for one in others)


class Aged(NamedTuple):
    """What tells which of some events of a sub-topic came later: when the first of a publisher's
    events from this one on was stored, in nanoseconds since 1970, and the event's number there.
    (What waits on a link that is cut is stored when that is mended; its publisher may have sent it
    elsewhere meanwhile, and more behind it.)"""

    since: int
    number: int = 0
    publisher: str = ""
    """Empty: somebody who does not number events."""


def _aged(events: Iterable[tuple[int, str | None]]) -> list[Aged]:
    """The same of several, of which it is known when each was stored, and its id."""
    aged = []
    numbered = []
    for when, id in events:
        if (own := number_of(id)) is None:
            aged.append(Aged(when))
        else:
            numbered.append(Aged(when, own[1], own[0]))
    firsts: dict[str, int] = {}
    for one in sorted(numbered, key=lambda one: one.number, reverse=True):
        first = firsts[one.publisher] = min(one.since, firsts.get(one.publisher, one.since))
        aged.append(one._replace(since=first))
    return aged


def stored_at(event: Event) -> int:
    """When an event was first stored, in nanoseconds since 1970, also if it was brought home."""
    text = event._all().get(STORED_HEADER, "")
    return int(text) if text.isdecimal() else event.timestamp_ns


_KEPT = b"Kept-"


def kept_as(stream: str, event: Event) -> tuple[str, bytes]:
    """Subject and headers under which the tail `stream` keeps an event. What means something to the
    engine must not do so there. (To mirror it would not do: the engine drops conditions.) The first
    line is ours: index and time."""
    lines = [b"%b%b" % (_KEPT, line) for line in event._head.split(b"\r\n")[1:] if line]
    own = b"%bIndex:%d %d" % (_KEPT, event.index, event.timestamp_ns)
    return f"_tail.{stream}.{event._subject.decode()}", _block([own, *lines])


def restored(stream: str, kept: Event) -> Event:
    """The event that a tail keeps."""
    lines = [line for line in kept._head.split(b"\r\n")[1:] if line.startswith(_KEPT)]
    own, *rest = (line[len(_KEPT) :] for line in lines)
    index, nanoseconds = map(int, own.removeprefix(b"Index:").split())
    subject = kept._subject[len(f"_tail.{stream}.") :]
    return Event(subject, index, _block(rest), kept.data, reply_of(index, nanoseconds))


def _block(lines: list[bytes]) -> bytes:
    return b"\r\n".join([b"NATS/1.0", *lines, b"", b""])


async def events_of(jetstream: JetStream, topic: str, stream: str, start: int, end: int):  # type: ignore[no-untyped-def]
    subscription = LiveSubscription(jetstream, topic, topic, Start(index=start), stream=stream)
    async with await subscription.open(), aclosing(subscription.drain(end)) as events:
        async for event in events:
            yield event


class Lacked:
    """An event that the new home lacks, as it is sent there."""

    def __init__(self, entry: TopicEntry, identity: str, event: Event) -> None:
        self._event = event
        self._identity = identity
        self._subject = write_subject(entry.home, event.topic, entry.epoch)
        self._data = bytes(event.data)
        self._head = _block([b"Nats-Msg-Id:" + identity.encode(), *_kept_lines(event._head)])
        self._is_conditional = b"\r\nNats-Expected-" in self._head
        self._room = HEADERS - len(self._head)
        """Bytes that can be added without its home taking it for too large."""
        if limit := entry.settings.max_event_bytes:
            self._room = min(self._room, limit - len(self._head) - len(self._data))
        if entry.settings.forgets and STORED_HEADER not in event._all():
            line = f"{STORED_HEADER}:{event.timestamp_ns}\r\n".encode()
            if len(line) <= self._room:
                self._room -= len(line)
                self._head = _with(self._head, line)
        self._newest: dict[str, int] | None = None
        self.place = event._subject.decode()
        """The subject that it is stored under."""
        self.index: int | None = None
        """Which it has there; 0: it was not taken; None: that is not known."""

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._head) + len(self._data)

    @property
    def is_tied(self) -> bool:
        """Whether it is sent on condition that nothing newer of its sub-topic has come."""
        return self._newest is not None and not self._is_conditional and self._room >= len(TIE) + 20

    def tie(self, newest: dict[str, int]) -> None:
        """Heed the last indexes that the home has of each sub-topic."""
        self._newest = newest

    async def send(self, connection: Connection) -> None:
        """Send it, and note its index; raise what the home says against it."""
        head = self._head
        if self.is_tied and self._newest is not None:
            head = _with(head, TIE + b"%d\r\n" % self._newest.get(self.place, 0))
        try:
            reply = await connection.request(self._subject, self._data, head, timeout=ATTEMPT)
        except (Down, TimeoutError):
            return
        if reply.status == NO_RESPONDERS:
            return
        outcome = outcome_of(self._event.topic, reply.head, reply.data)
        if isinstance(outcome, int):
            self.index = outcome
            if self._newest is not None:
                # It may have been there before, and newer ones of its sub-topic since.
                self._newest[self.place] = max(outcome, self._newest.get(self.place, 0))
        elif isinstance(outcome, Conflict) and not self.is_tied:
            self.index = 0
        elif is_unfit(outcome):
            self.index = 0
            log.warning(
                "an event of %s that only this site had, index %d, id %s, %d bytes, is lost: %s",
                self._event.topic, self._event.index, self._identity, len(self._data), outcome.what,
            )  # fmt: skip
        else:
            raise outcome  # among others: something newer has come, so we look again


def _kept_lines(head: bytes) -> list[bytes]:
    """The header lines of an event that are kept: not its id, nor the tie by which it was brought
    home before (a condition of its publisher names the subject as well)."""
    lines = [line for line in head.split(b"\r\n")[1:] if line]
    is_tied = TIE in head and b"\r\n" + TIE.rstrip(b":") + b"-Subject:" not in head
    return [
        line
        for line in lines
        if not line.lower().startswith(b"nats-msg-id:") and not (is_tied and line.startswith(TIE))
    ]


def _with(head: bytes, line: bytes) -> bytes:
    return head[:-2] + line + b"\r\n"


async def _tie(remote: JetStream, stream: str, lacked: list[Lacked], end: int) -> set[str]:
    """Events of which the home keeps the last must not take the place of newer ones that come in
    meanwhile. Returns the subjects of which one has come since its log was read up to `end`."""

    async def last_of(subject: str) -> tuple[str, int]:
        return subject, await next_index(remote, stream, {"last_by_subj": subject}) or 0

    subjects = list({one.place: None for one in lacked})
    newest: dict[str, int] = {}
    try:
        for start in range(0, len(subjects), AT_ONCE):
            some = subjects[start : start + AT_ONCE]
            newest.update(await asyncio.gather(*(last_of(subject) for subject in some)))
    except Moved:
        raise Unavailable(f"the home has no {stream} any more") from None
    for one in lacked:
        one.tie(newest)
    return {subject for subject, last in newest.items() if last > end}


async def _publish(jetstream: JetStream, entry: TopicEntry, lacked: list[Lacked]) -> list[int]:
    """Send events, in order; return their indexes. Many are under way at once; but the first alone,
    and the next after one of which nothing is known: a link, or a home, that is only just there
    would take the later ones of those that are on their way to it."""
    connection = jetstream.connection
    deadline = connection.now() + PATIENCE
    is_steady = False
    while left := [one for one in lacked if one.index is None]:
        if connection.now() > deadline:
            raise Unavailable(f"the new home of {entry.name} took no salvaged event in time")
        await connection.wait_up(deadline)
        some = _some(left) if is_steady else left[:1]
        await asyncio.gather(*(one.send(connection) for one in some))
        is_steady = all(one.index is not None for one in some)
        if any(one.index is not None for one in some):
            deadline = connection.now() + PATIENCE
        if not is_steady:
            await asyncio.sleep(0.05)
    return [one.index or 0 for one in lacked]


def _some(lacked: list[Lacked]) -> list[Lacked]:
    """As many as may be under way at once: of a sub-topic whose last index counts, one."""
    some: list[Lacked] = []
    size, tied = 0, set[str]()
    for one in lacked[:AT_ONCE]:
        size += one.size
        if some and (size > BYTES or one.place in tied):
            break
        some.append(one)
        if one.is_tied:
            tied.add(one.place)
    return some


def is_unfit(refusal: SkerryError) -> bool:
    """Whether it is the event itself that its topic does not take, now or later."""
    is_head = isinstance(refusal, ApiError) and refusal.code == HEADERS_TOO_LARGE
    return is_head or isinstance(refusal, EventTooLarge)
