"""Append to a log: one event at a time, or many in flight.

An acknowledgement means: the home assigned the index and wrote the event; it survives kill -9 of
the engine (and a power cut at a site with durability `power`).

Exactly once. Every event carries an id, and a log refuses an id that it has seen within its
duplicate window, answering with the index of the first copy. So whatever was not acknowledged when
a connection was lost is sent again, in order. It stops before the window ends: then the caller
gets `OutcomeUnknown`, not a guess.

Order. A publisher's events are stored in the order it sent them. Each connection delivers a prefix
of that order, beginning with the oldest event not yet acknowledged; two copies of one prefix,
interleaved, store every event behind all before it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from typing import Self

import msgspec

from skerry.config import check_timeout
from skerry.engine.jetstream import error_of
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection, Listener
from skerry.errors import (
    AccessDenied,
    BadSetting,
    EngineError,
    EventTooLarge,
    OutcomeUnknown,
    PublishFailed,
    SkerryError,
)
from skerry.log.topics import unknown_topic
from skerry.model.event import check_id, extra_headers, status_of
from skerry.model.names import check_topic, write_subject

_ACK = re.compile(rb'\{"stream":"[^"]*",(?:"domain":"[^"]*",)? ?"seq":(\d+)')


def new_id() -> str:
    """An id that nobody else has."""
    return secrets.token_hex(8)


def check_size(connection: Connection, size: int) -> None:
    """Refuse what the engine would end the connection for."""
    if size > connection.info.max_payload:
        raise EventTooLarge(
            f"the event has {size} bytes, the engine takes {connection.info.max_payload}",
            "Split the payload, or raise the site's --max-event-bytes.",
        )


def payload_of(data: bytes | str) -> bytes:
    """What a caller may publish, as bytes."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise BadSetting(f"a payload is bytes or text, not {type(data).__name__}", "Encode it first.")


async def append(
    connection: Connection,
    site: str,
    topic: str,
    data: bytes | str,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    lifespan: float | None = None,
    id: str | None = None,
    timeout: float | None = None,
) -> int:
    """Append one event; return its index once it is stored."""
    subject = write_subject(site, check_topic(topic))
    payload = payload_of(data)
    identity = new_id() if id is None else check_id(id)
    head = b"NATS/1.0\r\nNats-Msg-Id:%b\r\n%b\r\n" % (
        identity.encode(),
        extra_headers(headers, key, lifespan),
    )
    check_size(connection, len(head) + len(payload))
    limit = connection.settings.timeout if timeout is None else check_timeout(timeout)
    deadline = connection.now() + limit
    sent = False
    while True:
        try:
            await connection.wait_up(deadline)
            sent = True
            reply = await connection.request(
                subject, payload, head, timeout=max(deadline - connection.now(), 0.001)
            )
        except Down:
            continue
        except (TimeoutError, SkerryError) as error:
            if isinstance(error, AccessDenied) or (isinstance(error, SkerryError) and not sent):
                raise
            raise _unknown_outcome(connection, topic, identity) from None
        outcome = outcome_of(topic, reply.head, reply.data)
        if isinstance(outcome, int):
            return outcome
        raise outcome


def outcome_of(topic: str, head: bytes, data: bytes) -> int | SkerryError:
    """What the engine answered to a publish: an index, or why there is none."""
    if match := _ACK.match(data):
        return int(match.group(1))
    if head and status_of(head) == NO_RESPONDERS:
        return unknown_topic(topic)
    try:
        return error_of(msgspec.json.decode(data)) or EngineError("the engine answered nonsense")
    except msgspec.DecodeError:
        return EngineError(f"the engine answered a publish with {data[:80]!r}")


def _unknown_outcome(connection: Connection, topic: str, identity: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"publishing to {topic} was not acknowledged in time: {connection.unavailable().what}",
        f"It may or may not be stored. Publishing again with id={identity!r} adds nothing twice.",
    )


InFlight = tuple[asyncio.Future[int], bytes, float, str]
"""What waits for its acknowledgement: the caller's future, the frame to send again, when it was
sent, and its topic. A bare tuple: one is made for every event."""


class Publisher(Listener):
    """Publishes to one topic and its sub-topics with many events in flight.

    `send` returns as soon as there is room in the window, with a future of the event's index.
    Memory is bounded by the window: at most `window` events and about `window_bytes` bytes wait
    for their acknowledgement, then `send` waits. Leaving the `async with` block waits for all
    acknowledgements and raises `PublishFailed` if any event was refused or its outcome is unknown.
    """

    def __init__(
        self,
        connection: Connection,
        site: str,
        topic: str,
        *,
        window: int = 4096,
        window_bytes: int = 32 * 1024 * 1024,
        timeout: float | None = None,
    ) -> None:
        if window < 1 or window_bytes < 1:
            raise BadSetting("a publisher's window is 1 or more")
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._site = site
        self._topic = check_topic(topic)
        self._subject = write_subject(site, topic)
        self._window = window
        self._window_bytes = window_bytes
        self._timeout = connection.settings.timeout if timeout is None else check_timeout(timeout)
        self._name = new_id().encode()
        self._next = 0
        self._in_flight: dict[int, InFlight] = {}
        self._bytes = 0
        self._open = True
        self._is_full = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = 0
        self._first_failure: SkerryError | None = None
        inbox = f"{connection.inbox}.p.{self._name.decode()}."
        self._inbox = inbox.encode()
        self._inbox_size = len(inbox)
        self._opening = b"HPUB %b %b" % (self._subject.encode(), self._inbox)
        self._head = b"NATS/1.0\r\nNats-Msg-Id:%b-" % self._name
        self._head_size = len(self._head) + 4
        self._large = connection.info.max_payload
        self._sid = connection.subscribe(inbox + "*", self._on_ack, self._on_acks)
        self._pattern = re.compile(
            rb"MSG %b(\d+) %b \d+\r\n%b[^{}]*\}\r\n"
            % (re.escape(self._inbox), self._sid, _ACK.pattern)
        )
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
        return len(self._in_flight)

    async def send(
        self,
        data: bytes | str,
        *,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lifespan: float | None = None,
        id: str | None = None,
    ) -> asyncio.Future[int]:
        """Send one event; return the future of its index. Waits only for room in the window.

        `topic` names a sub-topic of the publisher's topic.
        """
        if type(data) is not bytes:
            data = payload_of(data)
        number = self._next
        self._next = number + 1
        if topic is None and headers is None and key is None and lifespan is None and id is None:
            topic = self._topic
            digits = b"%d" % number
            size = self._head_size + len(digits)
            frame = b"%b%b %d %d\r\n%b%b\r\n\r\n%b\r\n" % (
                self._opening, digits, size, size + len(data), self._head, digits, data
            )  # fmt: skip
        else:
            topic = self._topic if topic is None else self._sub_topic(topic)
            head = b"NATS/1.0\r\nNats-Msg-Id:%b\r\n%b\r\n" % (
                b"%b-%d" % (self._name, number) if id is None else check_id(id).encode(),
                extra_headers(headers, key, lifespan),
            )
            size = len(head)
            frame = b"HPUB %b %b%d %d %d\r\n%b%b\r\n" % (
                write_subject(self._site, topic).encode(), self._inbox, number,
                size, size + len(data), head, data,
            )  # fmt: skip
        if len(frame) > self._large:
            check_size(self._connection, size + len(data))
        connection = self._connection
        while self._is_full or connection.is_congested:
            await self._has_room.wait()
            await connection.room()
        if not self._open:
            raise self._first_failure or PublishFailed("the publisher is closed")
        ack: asyncio.Future[int] = self._loop.create_future()
        in_flight = self._in_flight
        in_flight[number] = (ack, frame, connection.clock, topic)
        self._bytes += len(frame)
        if len(in_flight) >= self._window or self._bytes >= self._window_bytes:
            self._is_full = True
            self._has_room.clear()
        try:  # noqa: SIM105  a context manager would cost a tenth of this method
            connection.write(frame)
        except Down:
            pass  # `on_up` sends it
        return ack

    async def flush(self) -> None:
        """Wait until nothing is in flight; raise `PublishFailed` if an event failed since the
        last flush."""
        while self._in_flight:
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
        self._connection.unlisten(self)
        self._connection.unsubscribe(self._sid)
        self._fail_all("the publisher was closed before the acknowledgement")

    def _sub_topic(self, topic: str) -> str:
        check_topic(topic)
        if not topic.startswith(self._topic + "/") and topic != self._topic:
            raise BadSetting(
                f"{topic} is no sub-topic of {self._topic}", "Open a publisher for each topic."
            )
        return topic

    def _on_acks(self, data: bytes, position: int) -> int:
        """Take a run of acknowledgements, each found by one match of a regular expression."""
        match, take = self._pattern.match, self._in_flight.pop
        while (found := match(data, position)) is not None:
            position = found.end()
            entry = take(int(found[1]), None)
            if entry is not None:
                self._bytes -= len(entry[1])
                if not entry[0].done():
                    entry[0].set_result(int(found[2]))
        self._make_room()
        return position

    def _on_ack(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        entry = self._in_flight.pop(int(subject[self._inbox_size :]), None)
        if entry is None:
            return
        match = _ACK.match(data)
        if match is not None:
            if not entry[0].done():
                entry[0].set_result(int(match.group(1)))
        else:
            outcome = outcome_of(entry[3], head, data)
            assert not isinstance(outcome, int)
            self._fail(entry, outcome)
        self._release(entry)

    def _release(self, entry: InFlight) -> None:
        self._bytes -= len(entry[1])
        self._make_room()

    def _make_room(self) -> None:
        if len(self._in_flight) < self._window and self._bytes < self._window_bytes:
            self._is_full = False
            self._has_room.set()
        if not self._in_flight:
            self._idle.set()

    def _fail(self, entry: InFlight, error: SkerryError) -> None:
        self._failed += 1
        self._first_failure = self._first_failure or error
        if not entry[0].done():
            entry[0].set_exception(error)
            entry[0].exception()  # flush reports it even if nobody looks at the future

    def _fail_all(self, why: str) -> None:
        entries, self._in_flight = self._in_flight, {}
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
        self._is_full = False
        self._has_room.set()
        self._idle.set()

    # Listener

    def on_up(self) -> None:
        """Send again, in order, what was not acknowledged."""
        for entry in self._in_flight.values():
            self._connection.write(entry[1])

    def on_tick(self, now: float) -> None:
        """Give up what waits for too long. The oldest is first, and none behind it may be stored
        before it, so all of it is given up together."""
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is not None and now - oldest[2] > self._timeout:
            self._fail_all(f"no acknowledgement: {self._connection.unavailable().what}")

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """This user may not publish here."""
        if subject == self._subject or subject.startswith(self._subject + "."):
            for number, entry in list(self._in_flight.items()):
                del self._in_flight[number]
                self._fail(entry, error)
                self._release(entry)

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed under the publisher."""
        self._open = False
        self._fail_all(error.what)
