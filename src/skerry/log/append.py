"""Append to a log: many events in flight, each acknowledged.

An acknowledgement means, by level:

- `outbox`: the event is written at the publisher's own site, and will be taken to the topic's home.
- `home`: the home assigned the index and wrote the event; it survives kill -9 of the engine (and a
  power cut at a site with durability `power`).
- `quorum`: besides, so many replicas hold it that any home that is elected holds it too.

Which event goes when is up to `skerry.log.sending`; here it is carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Mapping
from time import monotonic, time
from typing import Self

from skerry.config import DUPLICATE_WINDOW, check_timeout
from skerry.engine import lines
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection, Listener
from skerry.errors import AccessDenied, BadSetting, PublishFailed, SkerryError
from skerry.log.frames import ACK, aimed, check_size, new_id, payload_of
from skerry.log.recall import PAST, SKEW, first_since, last_stored, last_values, stored_ids
from skerry.log.reports import Reports
from skerry.log.route import Routes
from skerry.log.sending import RETRY_MOST, LastValues, Recall, Retry, Sending, Write
from skerry.model.event import check_id, extra_headers
from skerry.model.fabric import TopicEntry
from skerry.model.names import check_topic, outbox_subject, source_bytes
from skerry.model.placement import TopicUse
from skerry.model.topic import Ack

LOOK = 0.05
"""Seconds between looks whether acknowledgements come in."""
ROOM = 2048
"""Bytes: events that have less up to what their topic takes are looked at more closely."""


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
        self._timeout = connection.settings.timeout if timeout is None else check_timeout(timeout)
        self._sending = Sending(
            topic, ack, window, window_bytes, self._timeout, is_up=connection.is_up
        )
        self._name = new_id().encode()
        self._next = 0
        self._reports = Reports(
            connection, routes, self._name.decode(), self._on_report, self._give_up
        )
        self._senders = 0
        """Calls of `send` that wait."""
        self._has_room = asyncio.Event()
        self._idle = asyncio.Event()
        self._failed = 0
        self._first_failure: SkerryError | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._recalling: asyncio.Task[None] | None = None
        self._generation = 0
        self._head_size = len(lines.ID) + len(self._name) + len(b"-\r\n\r\n")
        self._large = connection.info.max_event
        """Bytes from which on it is worth a look whether an event is too large."""
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
        return len(self._sending.in_flight) + len(self._sending.waits)

    @property
    def is_idle(self) -> bool:
        """Whether closing it costs nobody anything: no call waits, nothing is in flight, and
        nothing is kept for a next home."""
        return not self._senders and self._sending.is_idle

    async def send(
        self,
        data: bytes | str,
        *,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lifespan: float | None = None,
        id: str | None = None,
        again: bool = True,
        mark: bytes = b"",
    ) -> asyncio.Future[int]:
        """Send one event; return the future of its index. Waits only for room in the window.

        `topic` names a sub-topic of the publisher's topic; `again=False` says that nobody has sent
        an event with this `id` before; `mark` is a header of Skerry's.
        """
        if type(data) is not bytes:
            data = payload_of(data)
        connection, sending = self._connection, self._sending
        if not sending.takes or connection.is_congested:
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
            check_size(size + len(data), connection.info.max_event, self._limit(topic))
        ack: asyncio.Future[int] = self._loop.create_future()
        now = 0.0
        if sending.entry is not None:  # the loop's own clock may stand still with it
            is_first = not sending.in_flight and not sending.kept.lost
            now = self._loop.time() if is_first else monotonic()
        given = id if id is not None and again else ""
        if sending.on_send(number, (ack, frame, connection.clock, topic), now, given):
            try:  # noqa: SIM105  a context manager would cost a tenth of this method
                connection.write(frame)
            except Down:
                pass  # `on_up` sends it
        if sending.actions or sending.told:
            self._carry_out()
        return ack

    def _limit(self, topic: str) -> int | None:
        """Bytes of the largest event that the topic takes, as far as it is known."""
        sending = self._sending
        entry = sending.entry and (self._routes.newest(sending.entry.name) or sending.entry)
        limit = entry.settings.max_event_bytes if entry is not None else None
        if entry is not None and limit is not None and sending.level == "outbox":
            site = self._connection.address.site
            limit -= source_bytes(site, entry.name, outbox_subject(site, topic))
        return limit

    async def _get_ready(self) -> None:
        """Wait until the topic's home is known and there is room."""
        self._senders += 1
        try:
            while not self._sending.takes or self._connection.is_congested:
                if not self._sending.is_open:
                    raise self._first_failure or PublishFailed("the publisher is closed")
                if self._sending.phase == "nowhere":
                    await self._locate()
                    continue
                if not self._sending.takes:
                    self._has_room.clear()
                    await self._has_room.wait()
                await self._connection.room()
        finally:
            self._senders -= 1

    async def _locate(self) -> None:
        """Find the topic's home, the first time."""
        entry = await self._routes.find(self._topic)
        if self._sending.phase == "nowhere" and self._sending.is_open:
            if entry is not None:
                self._large = min(
                    self._large, (entry.settings.max_event_bytes or self._large) - ROOM
                )
                self._routes.follow(entry.name, self)
            self._sending.on_located(entry, self._connection.address.site, self._loop.time())
            self._carry_out()

    async def flush(self) -> None:
        """Wait until nothing is in flight; raise `PublishFailed` if an event failed since the
        last flush."""
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()
        with contextlib.suppress(TimeoutError):  # these are acknowledged, and go on being sent
            async with asyncio.timeout(self._timeout):
                while self._sending.kept.lost:
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
        if self._sending.is_open:
            self._sending.on_close(self._loop.time())
            self._carry_out()

    def forget(self, ack: asyncio.Future[int]) -> None:
        """Send the event of this future no more; it may be stored all the same."""
        self._sending.forget(ack)
        self._carry_out()

    def _sub_topic(self, topic: str) -> str:
        check_topic(topic)
        if not topic.startswith(self._topic + "/") and topic != self._topic:
            raise BadSetting(
                f"{topic} is no sub-topic of {self._topic}", "Open a publisher for each topic."
            )
        return topic

    # What `Sending` wants done

    def _carry_out(self) -> None:
        sending = self._sending
        if told := sending.told:
            sending.told = {}
            for ack, index in told.items():
                if not ack.done():
                    ack.set_result(index)
        if failed := sending.failed:
            sending.failed = {}
            for ack, error in failed.items():
                if not ack.done():
                    self._failed += 1
                    self._first_failure = self._first_failure or error
                    ack.set_exception(error)
                    ack.exception()  # flush reports it even if nobody looks at the future
        if actions := sending.actions:
            sending.actions = []
            for action in actions:
                match action:
                    case Write(events):
                        with contextlib.suppress(Down):
                            for event in events:
                                frame = aimed(event[1], self._prefix, self._inbox)
                                self._connection.write(frame)
                    case Retry(after):
                        if self._retry is not None:
                            self._retry.cancel()
                        self._retry = self._loop.call_later(after, self._on_retry)
                    case Recall():
                        self._recalling = self._loop.create_task(self._recall(action))
                    case LastValues(topics):
                        self._recalling = self._loop.create_task(self._look_at(topics))
                    case "aim":
                        self._aim()
                    case "reach":
                        self._reach()
                    case "look":
                        self._watch = self._loop.call_later(LOOK, self._look)
                    case "end":
                        self._finish()
        if sending.takes or not sending.is_open or sending.phase == "nowhere":
            self._has_room.set()
        if not sending.in_flight and not sending.waits:
            self._idle.set()

    def _aim(self) -> None:
        connection, sending = self._connection, self._sending
        if sending.level == "outbox":
            prefix = f"o.{sending.outbox}."
        elif sending.entry is not None:
            prefix = f"s.{sending.entry.home}.{sending.entry.epoch}."
        else:
            prefix = f"s.{connection.address.site}.0."
        self._prefix = prefix.encode()
        self._subject = prefix + self._topic.replace("/", ".")
        if self._sid is not None:
            connection.unsubscribe(self._sid)
        self._generation += 1
        inbox = f"{connection.inbox}.p.{self._name.decode()}.{self._generation}."
        self._inbox = inbox.encode()
        self._template = lines.template(self._subject, self._inbox, self._name + b"-")
        self._sid = connection.subscribe(inbox + "*", self._on_ack, self._on_acks)
        self._pattern = None

    def _reach(self) -> None:
        sending, entry = self._sending, self._sending.entry
        if entry is not None and (sending.level != "outbox" or sending.kept):
            self._reports.reach(entry, 0.001 if sending.level == "quorum" else 0.05)

    async def _recall(self, question: Recall) -> None:
        connection, entry, last = self._connection, question.entry, question.last
        await asyncio.sleep(question.after)
        found = None
        with contextlib.suppress(Down, TimeoutError, SkerryError, LookupError, ValueError):
            place = (connection, entry.home, entry.stream)
            first = question.first
            if last is None:
                last = await last_stored(*place)
            if question.past:
                since = await first_since(*place, time() - DUPLICATE_WINDOW - SKEW)
                first = min(first, max(since, last + 1 - PAST))
            wanted = None if question.past else set(question.wanted)
            found = await stored_ids(*place, first, last, wanted)
        self._sending.on_recalled(question, found, self._loop.time())
        self._carry_out()

    async def _look_at(self, topics: set[str]) -> None:
        while True:
            with contextlib.suppress(TimeoutError, SkerryError, LookupError, ValueError):
                found = await last_values(JetStream(self._connection), self._subject, topics)
                break
            await asyncio.sleep(RETRY_MOST)
        self._sending.on_last_values(found, self._loop.time())
        self._carry_out()

    def _on_retry(self) -> None:
        self._sending.on_retry(self._loop.time())
        self._carry_out()

    def _look(self) -> None:
        now = self._loop.time()
        self._sending.on_look(now)
        if self._reports.is_due(now) and not self._sending.is_idle:
            self._reach()  # replicas forget us
        self._carry_out()

    def _finish(self) -> None:
        self._connection.unlisten(self)
        self._pause()
        self._reports.close()
        if self._sid is not None:
            self._connection.unsubscribe(self._sid)
        if self._sending.entry is not None:
            self._routes.unfollow(self._sending.entry.name, self)

    def _pause(self) -> None:
        """End everything that goes on by itself."""
        for each in (self._retry, self._watch, self._recalling):
            if each is not None:
                each.cancel()
        self._reports.pause()

    # What `Sending` is told

    def _on_acks(self, data: bytes, position: int) -> int:
        """Take a run of acknowledgements, each found by one match of a regular expression."""
        if self._pattern is None:  # not with every aim: most take no run
            self._pattern = re.compile(
                rb"MSG %b(\d+) %b \d+\r\n%b[^{}]*\}\r\n"
                % (re.escape(self._inbox), self._sid or b"", ACK.pattern)
            )
        match = self._pattern.match
        answers: dict[int, int] = {}
        while (found := match(data, position)) is not None:
            position = found.end()
            answers[int(found[1])] = int(found[2])
        self._sending.on_answers(answers, self._connection.clock)
        self._carry_out()
        return position

    def _on_ack(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        number, now = int(subject[len(self._inbox) :]), self._connection.clock
        if (match := ACK.match(data)) is not None:
            self._sending.on_answers({number: int(match[1])}, now)
        else:
            self._sending.on_refusal(number, head, data, now)
        self._carry_out()

    def _on_report(self) -> None:
        if self._sending.entry is not None:
            self._sending.on_report(self._reports.confirmed(self._sending.entry, sys.maxsize))
            self._carry_out()

    def _give_up(self, error: SkerryError) -> None:
        self._sending.give_up(error)
        self._carry_out()

    def on_up(self) -> None:
        """Send again, in order, what was not acknowledged."""
        self._reports.begin_anew()
        self._sending.on_up(self._connection.address.site, self._loop.time())
        self._carry_out()

    def on_down(self) -> None:
        """What was sent may be lost."""
        if self._recalling is not None and self._sending.entry is None:
            self._recalling.cancel()  # it asks anew when the connection is back
        self._sending.on_down()

    def on_route(self, entry: TopicEntry) -> None:
        """The topic has another home, or other replicas, or another level."""
        before = self._sending.entry
        self._reports.change()
        if before is not None and before.epoch != entry.epoch:
            self._reports.clear()
        if self._recalling is not None:
            self._recalling.cancel()
        self._sending.on_route(entry, self._loop.time())
        self._carry_out()

    def on_gone(self) -> None:
        """The topic was deleted."""
        self._pause()
        self._reports.clear()
        self._sending.on_gone(self._loop.time())
        self._carry_out()

    def on_tick(self, now: float) -> None:
        """Give up what takes too long."""
        if self._sending.is_overdue(now):
            self._sending.fail_all(f"no acknowledgement: {self.why()}")
        self._sending.on_tick(now)
        self._carry_out()

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """This user may not publish here."""
        if subject == self._subject or subject.startswith(self._subject + "."):
            self._give_up(error)

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed under the publisher."""
        self._sending.on_closed(error.what, self._loop.time())
        self._carry_out()

    def why(self) -> str:
        """What keeps the oldest event from being acknowledged."""
        return self._sending.why() or self._connection.unavailable().what

    def used(self) -> TopicUse | None:
        """What was published since this was last asked."""
        return self._sending.used()
