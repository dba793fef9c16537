"""Append to a log: many events in flight, each acknowledged.

An acknowledgement means, by level:

- `outbox`: the event is written at the publisher's own site, and will be taken to the topic's home.
- `home`: the home assigned the index and wrote the event; it survives kill -9 of the engine (and a
  power cut at a site with durability `power`).
- `quorum`: besides, so many replicas hold it that any home that is elected holds it too.

Exactly once. Every event carries an id, and a log refuses an id that it has seen within its
duplicate window, answering with the index of the first copy. So whatever was not acknowledged when
a connection was lost, or a home, is sent again, in order. It stops before the window ends: then the
caller gets `OutcomeUnknown`, not a guess.

Order. A publisher's events are stored in the order it sent them. Each connection delivers a prefix
of that order, beginning with the oldest event not yet acknowledged; two copies of one prefix,
interleaved, store every event behind all before it. Between sites a link may swallow some and
deliver later ones, so there the publisher looks: when nobody answers, or nothing is acknowledged
for a while, or the home changes, it holds back, sends the oldest alone, and the rest once that is
acknowledged. How long a while is goes by the trips that were measured; a link always takes longer
to come back. An acknowledgement that comes later all the same counts.

A lost home. What the home acknowledged and too few replicas have yet is kept. What of it the next
home lacks is sent there, in order, before anything newer, and for as long as that takes: its caller
relies on it. So even at level `home` a lost home costs nothing while the publisher lives; what a
publisher leaves behind is salvaged when the old home is back. What is older than the duplicate
window is looked for in the log before it is sent, for its former home may have brought it.

So an event is in one of four places, in this order of age: *kept*, acknowledged, and of that *lost*
what has to be stored again; *waiting* for replicas, at level `quorum`, or *in flight* to the home:
for these two a caller waits, and is told if it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from time import monotonic
from typing import Self

from skerry.config import DUPLICATE_WINDOW, check_timeout
from skerry.engine import lines
from skerry.engine.link import Down
from skerry.engine.wire import Connection, Listener
from skerry.errors import (
    AccessDenied,
    BadSetting,
    OutcomeUnknown,
    PublishFailed,
    SkerryError,
    StorageFull,
)
from skerry.log.frames import (
    ACK,
    InFlight,
    aimed,
    check_size,
    id_of,
    is_nobody,
    new_id,
    outcome_of,
    payload_of,
)
from skerry.log.kept import BYTES, EVENTS, Kept
from skerry.log.recall import last_stored, stored_ids
from skerry.log.reports import Reports
from skerry.log.route import Routes
from skerry.log.topics import unknown_topic
from skerry.model.event import check_id, extra_headers
from skerry.model.fabric import TopicEntry
from skerry.model.names import check_topic
from skerry.model.placement import TopicUse
from skerry.model.topic import Ack
from skerry.model.way import Way

log = logging.getLogger("skerry.publisher")

LINGER = 10.0
"""Seconds that a closed publisher goes on keeping what replicas lack."""
REMEMBERED = DUPLICATE_WINDOW - 10
"""Seconds for which a home surely refuses a second copy of an event."""
LOOK = 0.05
"""Seconds between looks whether acknowledgements come in."""
SUSPECT = 0.15
SUSPECT_MOST = 0.45
"""Seconds without an acknowledgement after which what was sent over a link counts as lost: half as
much again as the way there and back may take; the former at the least; at the most the latter and
two trips, as long as the shortest of late. A link is dialled again after 0.5 s, and needs more than
two trips then."""
RETRY_FIRST = 0.002
RETRY_MOST = 0.1
"""Seconds before the oldest event is tried again when nobody took it."""

TRIPS = 64
"""Acknowledgements of which it is remembered how long they took, until somebody asks: of events
that were sent while none was in flight, so that none waited behind another."""


class Publisher(Listener):
    """Publishes to one topic and its sub-topics with many events in flight.

    `send` returns as soon as there is room in the window, with a future of the event's index.
    Memory is bounded by the window: at most `window` events and about `window_bytes` bytes wait
    for their acknowledgement, then `send` waits. Leaving the `async with` block waits for all
    acknowledgements and raises `PublishFailed` if any event was refused or its outcome is unknown.
    At level `outbox` the home has not given an index yet: the future's result is 0.
    """

    def __init__(
        self,
        connection: Connection,
        routes: Routes,
        topic: str,
        *,
        ack: Ack | None = None,
        window: int = 4096,
        window_bytes: int = 32 * 1024 * 1024,
        timeout: float | None = None,
    ) -> None:
        if window < 1 or window_bytes < 1:
            raise BadSetting("a publisher's window is 1 or more")
        if ack not in (None, "outbox", "home", "quorum"):
            raise BadSetting(f"ack is 'outbox', 'home' or 'quorum', not {ack!r}")
        self._connection = connection
        self._routes = routes
        self._loop = asyncio.get_running_loop()
        self._topic = check_topic(topic)
        self._ack = ack
        self._level: Ack = "home"
        self._outbox = ""
        """The site whose outbox this publisher writes to: in another, its events could overtake."""
        self._entry: TopicEntry | None = None
        self._window = window
        self._window_bytes = window_bytes
        self._timeout = connection.settings.timeout if timeout is None else check_timeout(timeout)
        self._name = new_id().encode()
        self._next = 0
        self._in_flight: dict[int, InFlight] = {}
        self._kept = Kept()
        """What was acknowledged to its caller, and too few replicas have."""
        self._waits = Kept()
        """What the home has stored, and whose caller waits for replicas."""
        self._overflowed = False
        """Whether it was said that there is more to keep than there is room for."""
        self._acked_last = 0
        """The highest index in the topic's history of what was acknowledged to this publisher."""
        self._recalling: asyncio.Task[None] | None = None
        self._reports = Reports(
            connection, routes, self._name.decode(), self._on_report, self._give_up
        )
        self._senders = 0
        """Calls of `send` that wait."""
        self._bytes = 0
        self._open = True
        self._closing = 0.0
        self._is_full = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = 0
        self._first_failure: SkerryError | None = None
        self._located = False
        self._holding = False
        """Whether new events wait until the oldest one is acknowledged."""
        self._wait = RETRY_FIRST
        self._retry: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._progressed = 0.0
        self._suspect = SUSPECT
        self._first_sent = 0.0
        self._probe_sent = 0.0
        """When the event that went alone was sent, the first time and the last."""
        self._way = Way()
        self._shortest: deque[float] = deque(maxlen=8)
        """Seconds that the last of such trips took at the least."""
        self._generation = 0
        self._stored = 0
        self._stored_bytes = 0
        """What was acknowledged since `used` was asked, frames included."""
        self._timed = False
        """Whether `_progressed` is when the only event in flight was sent."""
        self._trips: deque[float] = deque(maxlen=TRIPS)
        self._head_size = len(lines.ID) + len(self._name) + len(b"-\r\n\r\n")
        self._large = connection.info.max_payload
        self._sid: bytes | None = None
        self._prefix = b""
        self._subject = ""
        self._pattern: re.Pattern[bytes] | None = None
        connection.listen(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                await self.flush()
        finally:
            self.close()

    @property
    def in_flight(self) -> int:
        """Events that wait for their acknowledgement."""
        return len(self._in_flight) + len(self._waits)

    @property
    def is_idle(self) -> bool:
        """Whether closing it costs nobody anything: no call waits, nothing is in flight, and
        nothing is kept for a next home."""
        return not (self._senders or self._in_flight or self._waits or self._kept)

    async def send(
        self,
        data: bytes | str,
        *,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lifespan: float | None = None,
        id: str | None = None,
        mark: bytes = b"",
    ) -> asyncio.Future[int]:
        """Send one event; return the future of its index. Waits only for room in the window.

        `topic` names a sub-topic of the publisher's topic; `mark` is a header of Skerry's.
        """
        if type(data) is not bytes:
            data = payload_of(data)
        connection = self._connection
        if not self._located or self._is_full or connection.is_congested:
            await self._get_ready()
        number = self._next
        self._next = number + 1
        if topic is None and headers is None and key is None and lifespan is None and id is None:
            topic = self._topic
            size = self._head_size + len(str(number))
            frame = self._template % (number, size, size + len(data), number, data)
        else:
            topic = self._topic if topic is None else self._sub_topic(topic)
            head = b"%b%b\r\n%b\r\n" % (
                lines.ID,
                b"%b-%d" % (self._name, number) if id is None else check_id(id).encode(),
                mark + extra_headers(headers, key, lifespan),
            )
            size = len(head)
            subject = self._prefix + topic.replace("/", ".").encode()
            frame = lines.pub(subject, data, b"%b%d" % (self._inbox, number), head)
        if len(frame) > self._large:
            check_size(connection, size + len(data))
        if not self._open:
            raise self._first_failure or PublishFailed("the publisher is closed")
        ack: asyncio.Future[int] = self._loop.create_future()
        in_flight = self._in_flight
        if self._entry is not None:
            if not in_flight and not self._kept.lost:
                self._progressed = self._first_sent = self._probe_sent = self._loop.time()
                self._timed = True
                if self._watch is None:
                    self._watch = self._loop.call_later(LOOK, self._look)
            elif monotonic() - self._progressed > self._suspect:
                self._holding = True  # the loop stood still, and `_look` has yet to look
        in_flight[number] = (ack, frame, connection.clock, topic)
        self._bytes += len(frame)
        if len(in_flight) >= self._window or self._bytes >= self._window_bytes:
            self._is_full = True
            self._has_room.clear()
        if not self._holding:
            try:  # noqa: SIM105  a context manager would cost a tenth of this method
                connection.write(frame)
            except Down:
                pass  # `on_up` sends it
        elif len(in_flight) == 1 and self._recalling is None and not self._kept.lost:
            self._probe()
        return ack

    async def _get_ready(self) -> None:
        """Wait until the topic's home is known and there is room."""
        self._senders += 1
        try:
            if not self._located:
                await self._locate()
            while self._is_full or self._connection.is_congested:
                await self._has_room.wait()
                await self._connection.room()
        finally:
            self._senders -= 1

    async def flush(self) -> None:
        """Wait until nothing is in flight; raise `PublishFailed` if an event failed since the
        last flush."""
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()
        with contextlib.suppress(TimeoutError):  # these are acknowledged, and go on being sent
            async with asyncio.timeout(self._timeout):
                while self._kept.lost:
                    self._idle.clear()
                    await self._idle.wait()
        if self._failed:
            count, first = self._failed, self._first_failure
            self._failed, self._first_failure = 0, None
            raise PublishFailed(
                f"{count} events to {self._topic} were not acknowledged; the first: "
                f"{first.what if first else '?'}",
                first.advice if first else "",
                count,
                first,
            )

    def close(self) -> None:
        """Stop at once. What is still in flight gets `OutcomeUnknown`."""
        if not self._open:
            return
        self._open = False
        self._fail_all("the publisher was closed before the acknowledgement")
        if self._kept:
            self._closing = self._loop.time() + LINGER  # replicas lack some: `_look` ends it
        else:
            self._finish()

    def _finish(self) -> None:
        self._connection.unlisten(self)
        self._let_go()
        self._pause()
        self._reports.close()
        if self._sid is not None:
            self._connection.unsubscribe(self._sid)
        if self._entry is not None:
            self._routes.unfollow(self._entry.name, self)

    def _let_go(self) -> None:
        """Keep nothing any more, and say what that may cost."""
        long_ago = self._loop.time() - LINGER  # replicas that are up have what is older
        alone = sum(event[2] < long_ago for _, (_, event) in self._kept.items())
        if self._kept.lost:
            log.warning(
                "%s: the publisher ends, and %d acknowledged events that were lost with their home "
                "are not stored again; that home brings them if it comes back",
                self._topic, len(self._kept.lost),
            )  # fmt: skip
        if alone:
            log.warning(
                "%s: the publisher ends, and %d acknowledged events have too few replicas; they "
                "are lost if their home is lost for good",
                self._topic, alone,
            )  # fmt: skip
        self._kept.clear()

    def _pause(self) -> None:
        """End everything that goes on by itself."""
        for timer in (self._retry, self._watch):
            if timer is not None:
                timer.cancel()
        self._reports.pause()
        if self._recalling is not None:
            self._recalling.cancel()
        self._retry = self._watch = self._recalling = None

    def forget(self, ack: asyncio.Future[int]) -> None:
        """Send the event of this future no more; it may be stored all the same."""
        for number, entry in self._in_flight.items():
            if entry[0] is ack:
                del self._in_flight[number]
                self._bytes -= len(entry[1])
                self._make_room()
                return

    def _sub_topic(self, topic: str) -> str:
        check_topic(topic)
        if not topic.startswith(self._topic + "/") and topic != self._topic:
            raise BadSetting(
                f"{topic} is no sub-topic of {self._topic}", "Open a publisher for each topic."
            )
        return topic

    # Where to

    async def _locate(self) -> None:
        """Find the topic's home, the first time."""
        entry = await self._routes.find(self._topic)
        if self._located:
            return
        self._located = True
        if entry is not None:
            self._entry = entry
            self._level = self._ack or entry.settings.ack
            self._routes.follow(entry.name, self)
            self._holding = True  # the first goes alone: a link may be just coming up
        self._aim()
        self._reach()

    def _aim(self) -> None:
        """Write to today's home; acknowledgements to what was sent before are ignored."""
        connection, entry = self._connection, self._entry
        site = connection.address.site
        if self._level == "outbox":
            self._outbox = self._outbox or site
            prefix = f"o.{self._outbox}."
        else:
            home, epoch = (entry.home, entry.epoch) if entry else (site, 0)
            prefix = f"s.{home}.{epoch}."
        self._prefix = prefix.encode()
        self._subject = prefix + self._topic.replace("/", ".")
        if self._sid is not None:
            connection.unsubscribe(self._sid)
        self._generation += 1
        inbox = f"{connection.inbox}.p.{self._name.decode()}.{self._generation}."
        self._inbox = inbox.encode()
        self._inbox_size = len(inbox)
        self._template = lines.template(self._subject, self._inbox, self._name + b"-")
        self._keeps = entry is not None and len(entry.members) > 1 and self._level != "outbox"
        self._sid = connection.subscribe(inbox + "*", self._on_ack, self._on_acks)
        self._pattern = None

    def _restart(self) -> None:
        """Send everything again that has to be stored, the oldest first and alone."""
        self._aim()
        self._holding = True
        self._timed = False  # what is sent again says nothing of the way
        self._progressed = self._first_sent = self._loop.time()
        if self._recalling is None:
            self._probe()

    def _doubt(self) -> None:
        """What was sent may be lost, or only late. Send the oldest again, alone; should what was
        sent before be acknowledged after all, it counts."""
        if self._holding:
            self._suspect = min(self._suspect * 2, 5.0)
        self._holding = True
        self._timed = False
        self._progressed = self._loop.time()
        self._probe()

    def _probe(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        oldest = next(self._to_store(), None)
        if self._outbox and self._outbox != self._connection.address.site:
            return  # until the client is back at its own site
        if oldest is not None:  # else the next one sent is the probe
            self._probe_sent = self._loop.time()
            with contextlib.suppress(Down):
                self._connection.write(aimed(oldest[1], self._prefix, self._inbox))

    def _to_store(self) -> Iterator[InFlight]:
        """What the home has not stored, the oldest first."""
        return chain(self._kept.lost.values(), self._in_flight.values())

    def _go_on(self) -> None:
        """The oldest was acknowledged: the way is free."""
        self._holding = False
        self._wait = RETRY_FIRST
        self._send_all()

    def _send_all(self) -> None:
        with contextlib.suppress(Down):
            for entry in self._to_store():
                self._connection.write(aimed(entry[1], self._prefix, self._inbox))

    def _stumble(self) -> None:
        """Nobody took an event: the home is shut, moving or lost. Try the oldest again soon."""
        self._holding = True
        if self._retry is None:
            self._retry = self._loop.call_later(self._wait, self._try_again)
            self._wait = min(self._wait * 1.6, RETRY_MOST)

    def _try_again(self) -> None:
        self._retry = None
        self._reach()
        self._restart()

    def _look(self) -> None:
        """Look after what no message tells: silence, replicas that forget us, the end."""
        now = self._loop.time()
        self._watch = None
        if not self._open and (not self._kept or now > self._closing):
            self._finish()
            return
        if not self._in_flight and not self._waits and not self._kept:
            return  # the next one sent looks again
        self._watch = self._loop.call_later(LOOK, self._look)
        sent = self._in_flight or self._kept.lost
        waits = sent and self._connection.is_up and self._recalling is None
        if waits and now - self._progressed > self._suspect:
            self._doubt()
        if self._reports.is_due(now):
            self._reach()

    def _reach(self) -> None:
        """Ask for links to home and replicas, and replicas to tell how far they are."""
        entry = self._entry
        if entry is None or (self._level == "outbox" and not self._kept):
            return
        self._reports.reach(entry, 0.001 if self._level == "quorum" else 0.05)

    # Acknowledgements

    def _on_acks(self, data: bytes, position: int) -> int:
        """Take a run of acknowledgements, each found by one match of a regular expression."""
        if self._pattern is None:  # not with every aim: most take no run
            self._pattern = re.compile(
                rb"MSG %b(\d+) %b \d+\r\n%b[^{}]*\}\r\n"
                % (re.escape(self._inbox), self._sid or b"", ACK.pattern)
            )
        match, take = self._pattern.match, self._in_flight.pop
        alone = self._entry is None
        taken, again, waiting = 0, False, self._bytes
        while (found := match(data, position)) is not None:
            position = found.end()
            number = int(found[1])
            entry = take(number, None)
            if entry is not None:
                taken += 1
                self._bytes -= len(entry[1])
                if not alone:
                    self._acknowledged(number, int(found[2]), entry)
                elif not entry[0].done():
                    entry[0].set_result(int(found[2]))
            elif (entry := self._kept.lost.pop(number, None)) is not None:
                again = True
                self._acknowledged(number, int(found[2]), entry)
        self._stored += taken
        self._stored_bytes += waiting - self._bytes
        if (taken or again) and not alone:
            self._progress()
        self._make_room()
        return position

    def _on_ack(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        number = int(subject[self._inbox_size :])
        match = ACK.match(data)
        if match is None and self._entry is not None and is_nobody(head):
            if number in self._in_flight or number in self._kept.lost:
                self._stumble()
            return
        if number in self._kept.lost:
            self._on_lost(number, match and int(match.group(1)), head, data)
            return
        entry = self._in_flight.pop(number, None)
        if entry is None:
            return
        self._bytes -= len(entry[1])
        if match is None:
            outcome = outcome_of(entry[3], head, data)
            assert not isinstance(outcome, int)
            self._fail(entry, outcome)
        elif self._entry is None:
            if not entry[0].done():
                entry[0].set_result(int(match.group(1)))
        else:
            self._stored += 1
            self._stored_bytes += len(entry[1])
            self._acknowledged(number, int(match.group(1)), entry)
            self._progress()
        self._make_room()

    def _on_lost(self, number: int, index: int | None, head: bytes, data: bytes) -> None:
        """The home answered to an event that was acknowledged before and lost with its home."""
        if index is None:
            error = outcome_of(self._kept.lost[number][3], head, data)
            assert not isinstance(error, int)
            if isinstance(error, StorageFull):  # until there is room; and none overtakes it
                self._give_up(error)
                self._stumble()
                return
            log.warning(
                "%s: an acknowledged event was lost with its home, and the next one refuses it: %s",
                self._kept.lost.pop(number)[3], error.what,
            )  # fmt: skip
        else:
            self._acknowledged(number, index, self._kept.lost.pop(number))
        self._progress()
        self._make_room()

    def _acknowledged(self, number: int, index: int, entry: InFlight) -> None:
        """The home, or the outbox, has stored an event."""
        if self._level == "outbox":
            index = 0  # of the outbox; the home gives another
        self._acked_last = max(self._acked_last, index)
        is_told = entry[0].done()
        if self._keeps:
            if self._level == "quorum" and not is_told:
                self._waits.add(number, index, entry)
                return
            self._kept.add(number, index, entry)
            if self._kept.trim() and not self._overflowed:
                self._overflowed = True
                log.warning(
                    "%s: replicas lack more acknowledged events than a publisher keeps (%d, or %d "
                    "bytes); the oldest are lost if their home is lost for good",
                    self._topic, EVENTS, BYTES,
                )  # fmt: skip
        if not is_told:
            entry[0].set_result(index)

    def _progress(self) -> None:
        """Acknowledgements came in."""
        now = self._loop.time()
        if self._timed or self._holding:
            self._shortest.append(now - self._probe_sent)
            most = SUSPECT_MOST + 2 * min(self._shortest)
            self._way.observe(min(now - self._first_sent, most))  # an outage is no distance
            self._suspect = min(max(SUSPECT, 1.5 * self._way.wait()), most)
        if self._timed:
            self._timed = False
            self._trips.append(now - self._progressed)
        self._progressed = now
        self._confirm()
        if self._holding:
            self._go_on()

    def _on_report(self) -> None:
        self._confirm()
        self._make_room()

    def _confirm(self) -> None:
        """Let go of what enough replicas have."""
        entry = self._entry
        if entry is None or not self._reports:
            return
        safe = self._reports.confirmed(entry, self._acked_last)
        for _ in self._kept.release(safe):
            self._overflowed = False
        for index, event in self._waits.release(safe):
            if not event[0].done():
                event[0].set_result(index)

    def _make_room(self) -> None:
        waiting = len(self._in_flight) + len(self._waits)
        size = self._bytes + self._waits.bytes
        if waiting < self._window and size < self._window_bytes:
            self._is_full = False
            self._has_room.set()
        else:
            self._is_full = True
            self._has_room.clear()
        if not waiting:
            self._idle.set()

    def _fail(self, entry: InFlight, error: SkerryError) -> None:
        if entry[0].done():
            return
        self._failed += 1
        self._first_failure = self._first_failure or error
        entry[0].set_exception(error)
        entry[0].exception()  # flush reports it even if nobody looks at the future

    def _fail_all(self, why: str) -> None:
        entries = self._waits.clear() | self._in_flight
        self._in_flight = {}
        for number, entry in entries.items():
            identity = f"{self._name.decode()}-{number}"
            self._fail(
                entry,
                OutcomeUnknown(
                    f"publishing to {entry[3]}: {why}",
                    f"It may or may not be stored; its id is {identity}.",
                ),
            )
        self._bytes = 0
        self._holding = bool(self._kept.lost)
        self._is_full = False
        self._has_room.set()
        self._idle.set()

    def used(self) -> TopicUse | None:
        """What was published since this was last asked."""
        if self._entry is None:
            return None
        stored, size, trips = self._stored, self._stored_bytes, sorted(self._trips)
        self._stored = self._stored_bytes = 0
        self._trips.clear()
        # The own site's outbox says nothing of the way to the home.
        trip = trips[len(trips) // 2] if trips and self._level != "outbox" else 0.0
        return TopicUse(self._entry.name, stored > 0, 0, stored, size, publish_s=trip)

    # Listener

    def on_up(self) -> None:
        """Send again, in order, what was not acknowledged."""
        if not self._located:
            return
        if self._entry is not None:
            self._reports.begin_anew()
            self._restart()
            return
        if self._inbox.startswith(self._connection.inbox.encode()):
            self._send_all()
        else:
            self._restart()

    def on_route(self, entry: TopicEntry) -> None:
        """The topic has another home, or other replicas, or another level."""
        before, self._entry = self._entry, entry
        assert before is not None
        if self._ack is None and self._level != entry.settings.ack:
            self._change_level(entry.settings.ack)
        self._wait = RETRY_FIRST
        self._reports.change()
        recalls = self._recalling is not None
        if self._recalling is not None:
            self._recalling.cancel()
            self._recalling = None
        if entry.epoch != before.epoch:
            self._reports.clear()
            self._take_back(entry.fork(before.epoch))
            recalls = entry.forgetful
        if recalls or self._is_old(self._loop.time()):
            self._look_back()
        if self._connection.is_up:
            self._restart()
            self._reach()

    def _take_back(self, fork: int) -> None:
        """Send again what a home stored and is not part of the history: beyond `fork`."""
        self._kept.lose_beyond(fork)
        self._wait_anew(self._waits.take_beyond(fork))
        self._acked_last = min(self._acked_last, fork)

    def _wait_anew(self, entries: dict[int, InFlight]) -> None:
        """What waited for replicas is in flight to the home again."""
        self._in_flight = entries | self._in_flight  # older than all in flight
        self._bytes += sum(len(entry[1]) for entry in entries.values())

    def _change_level(self, level: Ack) -> None:
        """The topic's owner asks for another level. What waits for replicas has reached its home,
        and if that is enough now, it waits no more."""
        self._level = level
        if level != "quorum":
            for number, (index, entry) in self._waits.items():
                self._kept.add(number, index, entry)
                if not entry[0].done():
                    entry[0].set_result(index)
            self._waits.clear()
            self._make_room()

    def on_gone(self) -> None:
        """The topic was deleted. One of its name may be made again, and is looked for then."""
        self._entry = None
        self._located = False
        self._holding = False
        self._pause()
        self._kept.clear()  # it is deleted with all its events
        self._wait_anew(self._waits.clear())
        self._acked_last = 0
        self._give_up(unknown_topic(self._topic))

    def _is_old(self, now: float) -> bool:
        """Whether the home may have had, and forgotten, what was lost with another."""
        oldest = next(iter(self._kept.lost.values()), None)
        return oldest is not None and now - oldest[2] > REMEMBERED

    def _look_back(self) -> None:
        """Send nothing again before it is known which of it the home has."""
        entry = self._entry
        if entry is not None and self._level != "outbox" and (self._in_flight or self._kept.lost):
            self._recalling = self._loop.create_task(self._recall(entry))

    async def _recall(self, entry: TopicEntry) -> None:
        """Find what the home has of what we would send it again; then go on. It knows the ids of
        what it took itself, unless that was long ago."""
        connection, home, stream = self._connection, entry.home, entry.stream
        places = self._kept.lost | self._in_flight
        numbers = {id_of(item[1]): number for number, item in places.items()}
        try:
            while self._entry is entry and (self._in_flight or self._kept.lost):
                first, last = self._acked_last + 1, entry.base
                began = self._loop.time()
                is_old = self._is_old(began)
                try:
                    if is_old:
                        last = await last_stored(connection, home, stream)
                    found = await stored_ids(connection, home, stream, first, last, set(numbers))
                except (Down, TimeoutError, SkerryError):
                    self._reach()
                    await asyncio.sleep(RETRY_MOST)
                    continue
                for identity, index in found.items():
                    number = numbers[identity]
                    item = self._kept.lost.pop(number, None)
                    if item is None and (item := self._in_flight.pop(number, None)) is not None:
                        self._bytes -= len(item[1])
                    if item is not None:
                        self._acknowledged(number, index, item)
                if is_old:
                    self._kept.stamp(began)
                break
        finally:
            if self._entry is entry:
                self._recalling = None
        self._make_room()
        if self._connection.is_up:
            self._progressed = self._loop.time()
            self._probe()

    def on_tick(self, now: float) -> None:
        """Give up what somebody waits for, and for too long. The oldest is first, and none behind
        it may be stored before it, so all of it is given up together."""
        oldest = next(iter(self._in_flight.values()), None) or self._waits.oldest()
        if oldest is not None and now - oldest[2] > self._timeout:
            self._fail_all(f"no acknowledgement: {self.why()}")
        if self._recalling is None and self._connection.is_up and self._is_old(now):
            self._look_back()
            self._restart()

    def why(self) -> str:
        """What keeps the oldest event from being acknowledged."""
        if self._entry is None or not self._connection.is_up:
            return self._connection.unavailable().what
        if self._waits and not self._in_flight:
            return f"too few replicas of {self._entry.name} have it"
        return f"the home of {self._entry.name}, {self._entry.home}, did not answer in time"

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """This user may not publish here."""
        if subject == self._subject or subject.startswith(self._subject + "."):
            self._give_up(error)

    def _give_up(self, error: SkerryError) -> None:
        """Nothing in flight can be stored."""
        entries, self._in_flight = self._in_flight, {}
        for entry in entries.values():
            self._bytes -= len(entry[1])
            self._fail(entry, error)
        self._make_room()

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed under the publisher."""
        self._open = False
        self._fail_all(error.what)
        self._finish()
