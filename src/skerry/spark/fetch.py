"""Reads a range of one log from the engine, in large pieces, on a plain blocking socket.

It runs in Spark's Python workers, where there is nothing to do besides. The engine sends what was
asked for through a throw-away consumer without acknowledgements; at most two requests are open, so
that a slow job slows nobody and the engine holds little for it. When the connection is lost or the
engine restarts, a new consumer goes on behind the last event taken: each event comes once, and
in order. A range that lies in several segments of the log (`skerry.log.segments`) is read from one
after the other.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from skerry.engine import lines
from skerry.engine.address import Address
from skerry.engine.jetstream import STREAM_NOT_FOUND
from skerry.engine.lines import Frame
from skerry.engine.link import denied
from skerry.errors import AccessDenied, AgedOut, SkerryError, Unavailable
from skerry.log.segments import Chain, Extent, Info, Segment, chain_of, segment_at
from skerry.log.topics import unknown_topic
from skerry.model.event import status_of
from skerry.model.names import inbox_of, stream_of
from skerry.spark.frames import Frames, Other, split

log = logging.getLogger("skerry.spark")

BATCH = 16384
"""Events asked for at a time."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes asked for at a time; two of them are what the engine may hold for one reader."""
PIECE = 1024 * 1024
"""Bytes gathered before they are taken apart: the cost of starting on a piece (about 0.3 ms) is
shared by some thousand events."""
GAP = 0.002
"""Seconds without a byte after which a smaller piece is taken."""
SILENCE = 6.0
"""Seconds without an answer after which the connection counts as lost."""
IDLE_CONSUMER = 60
"""Seconds after which the engine forgets the consumer of a reader that vanished."""
NANO = 1_000_000_000


class Lost(Exception):
    """The connection, or the consumer, is gone; go on with another."""


class Range(msgspec.Struct, frozen=True):
    """What to read: events of `topic` from `first` to `last`, both included."""

    topic: str
    first: int
    last: int
    subjects: tuple[str, ...] = ()
    """The engine's filters; empty: the whole topic."""
    in_fabric: bool = False
    """Whether the site makes a copy of the topic when it is asked to."""
    strict: bool = True
    """Whether events that aged out unread are an error."""


class Socket:
    """A connection to the engine, with calls that wait for their answer."""

    def __init__(self, addresses: Sequence[Address], timeout: float) -> None:
        self.buffer = bytearray(2 * PIECE)
        self.filled = 0
        self._numbers = 0
        fault: Exception = OSError("no address")
        for address in addresses:
            try:
                self._dial(address, min(timeout, SILENCE))
            except (OSError, Lost) as error:
                fault = error
            else:
                self.address = address
                return
        raise Lost(str(fault)) from fault

    def _dial(self, address: Address, timeout: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout)
        try:
            self._greet(address)
        except BaseException:
            self._socket.close()
            raise
        self.inbox = f"{inbox_of(address.site, address.user or 'x')}.{secrets.token_hex(8)}"
        self._socket.settimeout(SILENCE)
        self.send(lines.sub(f"{self.inbox}.>", b"1"))

    def _greet(self, address: Address) -> None:
        line = self._line()
        info = msgspec.json.decode(line.removeprefix(b"INFO "))
        self.max_payload = int(info.get("max_payload", 1048576))
        if info.get("tls_required"):
            context = address.tls_context()
            self._socket = context.wrap_socket(
                self._socket, server_hostname=address.verify or address.host
            )
        hello: dict[str, object] = {
            "verbose": False, "headers": True, "no_responders": True, "lang": "skerry-spark",
            "version": "1", "name": "skerry-spark", "user": address.user,
            "pass": address.password, "auth_token": address.token, "tls_required": address.tls,
        }  # fmt: skip
        self.send(lines.joined([lines.connect(hello), lines.PING]))
        while (line := self._line()) != b"PONG":
            if line.startswith(b"-ERR"):
                text = line[5:].strip(b" '").decode("utf-8", "replace")
                raise denied(address, text) if "uthor" in text else Lost(text)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            if not (byte := self._socket.recv(1)):
                raise Lost("the engine closed the connection")
            line += byte
        return line.strip()

    def send(self, frame: Frame) -> None:
        """Send whole protocol messages."""
        self._socket.sendall(frame)

    def publish(self, subject: str, reply: str, body: bytes) -> None:
        """Send a message."""
        self.send(lines.pub(subject, body, reply))

    def ask(self, subject: str, body: object = None) -> tuple[int, Any]:
        """A request and its answer: the engine's status, 0 if there is none, and what it says."""
        self._numbers += 1
        inbox = f"{self.inbox}.c.{self._numbers}".encode()
        self.publish(subject, inbox.decode(), b"" if body is None else msgspec.json.encode(body))
        while True:
            _, _, others = self.receive()
            for other in others:
                if other.subject == inbox:
                    status = status_of(other.head) if other.head else 0
                    return status, msgspec.json.decode(other.data) if other.data else {}

    def receive(self, wanted: int = 0) -> tuple[bytes, Frames, list[Other]]:
        """What comes in: at least a message, and about `wanted` bytes if they come quickly."""
        while True:
            self._fill(wanted)
            data = bytes(memoryview(self.buffer)[: self.filled])
            chunk = split(data)
            rest = self.filled - chunk.used
            self.buffer[:rest] = data[chunk.used :]
            self.filled = rest
            if rest > len(self.buffer) // 2:
                self.buffer.extend(bytes(len(self.buffer)))
            others = []
            for other in chunk.others:
                if other.subject:
                    others.append(other)
                elif other.data == b"PING":
                    self.send(lines.PONG)
                elif other.data.startswith(b"-ERR"):
                    raise _complaint(self.address, other.data)
            if len(chunk.frames.indexes) or others:
                return data, chunk.frames, others

    def _fill(self, wanted: int) -> None:
        view = memoryview(self.buffer)
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        while True:
            count = self._socket.recv_into(view[self.filled :])
            if not count:
                raise Lost("the engine closed the connection")
            self.filled += count
            if self.filled >= min(wanted, len(self.buffer)) or not ready.poll(GAP * 1000):
                return

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _complaint(address: Address, line: bytes) -> Exception:
    text = line[5:].strip(b" '").decode("utf-8", "replace")
    return denied(address, text) if text.startswith("Permissions") else Lost(text)


class Fetch:
    """The events of a range, as pieces of bytes and where the events are in them."""

    def __init__(self, addresses: Sequence[Address], range: Range, timeout: float = 30.0) -> None:
        self._addresses = list(addresses)
        self._range = range
        self._signpost = stream_of(range.topic)
        self._timeout = timeout
        self._next = range.first
        self._deadline = 0.0

    def __iter__(self) -> Iterator[tuple[bytes, Frames]]:
        """Raises `AgedOut` if events aged out unread (and the range is strict), `UnknownTopic`,
        `AccessDenied`, and `Unavailable` after `timeout` seconds without progress."""
        wait, fault = 0.02, ""
        self._deadline = time.monotonic() + self._timeout
        while self._next <= self._range.last:
            try:
                with contextlib.closing(Socket(self._addresses, self._timeout)) as wire:
                    for piece in self._read(wire):
                        yield piece
                        wait, self._deadline = 0.02, time.monotonic() + self._timeout
                continue
            except ssl.SSLCertVerificationError as error:
                raise AccessDenied(f"the engine's certificate is not trusted: {error}") from None
            except (Lost, OSError) as error:
                fault = str(error)
            if time.monotonic() > self._deadline:
                raise Unavailable(
                    f"{self._addresses[0]} was not reached for {self._timeout:.0f} s ({fault})",
                    "Look with `skerry doctor`; is `skerry up` running there?",
                )
            time.sleep(wait)
            wait = min(wait * 2, 1.0)

    def _read(self, wire: Socket) -> Iterator[tuple[bytes, Frames]]:
        """Read what one segment holds. The next one is read on another connection: on this one
        something that lies beyond the end may still be under way."""
        wanted = self._range
        chain = self._settle(wire)
        if self._next > wanted.last:
            return
        segment = segment_at(chain, self._next)
        stream = segment.stream
        consumer = f"spark-{secrets.token_hex(8)}"
        config: dict[str, Any] = {
            "name": consumer, "deliver_policy": "by_start_sequence", "opt_start_seq": self._next,
            "ack_policy": "none", "replay_policy": "instant", "mem_storage": True,
            "num_replicas": 1, "inactive_threshold": IDLE_CONSUMER * NANO,
        }  # fmt: skip
        if wanted.subjects:
            config["filter_subjects"] = list(wanted.subjects)
        name = f"CONSUMER.CREATE.{stream}.{consumer}"
        status, answer = wire.ask(f"$JS.API.{name}", {"stream_name": stream, "config": config})
        if status or "error" in answer:
            raise Lost(f"the engine made no consumer: {answer.get('error', status)}")
        if segment not in self._chain(wire):
            raise Lost("the log was changed")  # if it is later, the engine tells
        if answer.get("num_pending", 0):
            yield from self._pull(wire, segment, consumer)
        with contextlib.suppress(OSError):
            wire.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}", wire.inbox + ".d", b"")
        if segment.last < wanted.last:
            self._end_segment(wire, segment)
        else:
            self._next = wanted.last + 1

    def _pull(
        self, wire: Socket, segment: Segment, consumer: str
    ) -> Iterator[tuple[bytes, Frames]]:
        last = min(self._range.last, segment.last)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{segment.stream}.{consumer}"
        requests: deque[list[int]] = deque()
        number = 0
        while True:
            while len(requests) < 2:
                batch = min(BATCH, last - self._next + 1)
                most = max(BATCH_BYTES, wire.max_payload + 65536)
                body = {"batch": batch, "no_wait": True, "max_bytes": most}
                wire.publish(subject, f"{wire.inbox}.n.{number}", msgspec.json.encode(body))
                requests.append([number, batch])
                number += 1
            data, frames, others = wire.receive(PIECE)
            if count := len(frames.indexes):
                _count(requests, count)
                over = frames.indexes[-1] >= last or frames.pending[-1] == 0
                if frames.indexes[-1] > last:
                    keep = int((frames.indexes <= last).sum())
                    frames = Frames(*(column[:keep] for column in frames))
                if len(frames.indexes):
                    self._check_gap(wire, frames)
                    self._next = int(frames.indexes[-1]) + 1
                    yield data, frames
                if over:
                    return
            for other in others:
                status = status_of(other.head)
                if status == 404:
                    return
                if status == 503 or b"Deleted" in other.head:
                    raise Lost("the consumer is gone")
                ended = int(other.subject.rpartition(b".")[2])
                requests = deque(request for request in requests if request[0] != ended)

    def _settle(self, wire: Socket) -> Chain:
        """Wait until the log at this site is there and has the whole range; check its start."""
        wanted = self._range
        while True:
            log = self._look(wire)
            if log is None:
                if not wanted.in_fabric:
                    raise unknown_topic(wanted.topic)
                self._want(wire)
            elif log.last >= wanted.last:
                self._check_start(log.first, self._next)
                return log.chain
            if time.monotonic() > self._deadline:
                raise Unavailable(
                    f"the copy of {wanted.topic} at site {wire.address.site} does not come to "
                    f"index {wanted.last}",
                    "Look with `skerry doctor`. Was the topic deleted and made anew, or did its "
                    "home lose events that no replica had?",
                )
            time.sleep(0.05)

    def _look(self, wire: Socket) -> Extent | None:
        """What the log at this site holds; None: there is none."""
        signpost = self._info(wire, self._signpost)
        if signpost is None:
            return None
        chain = chain_of(self._range.topic, signpost)
        infos = []
        for stream in (segment.stream for segment in chain):
            info = signpost if stream == self._signpost else self._info(wire, stream)
            if info is None:
                raise Lost("the log was changed")
            infos.append(info)
        return Extent(chain, tuple(infos))

    def _chain(self, wire: Socket) -> Chain:
        signpost = self._info(wire, self._signpost)
        return () if signpost is None else chain_of(self._range.topic, signpost)

    def _info(self, wire: Socket, stream: str) -> Info | None:
        _, info = wire.ask(f"$JS.API.STREAM.INFO.{stream}")
        if "state" in info:
            found: Info = info
            return found
        error = info.get("error", {})
        if error.get("err_code") != STREAM_NOT_FOUND:
            raise Lost(str(error.get("description")))
        return None

    def _want(self, wire: Socket) -> None:
        site = wire.address.site
        _, answer = wire.ask(f"_sk.{site}.open.topic.want", {"name": self._range.topic})
        if answer.get("error"):
            raise SkerryError(answer["error"].get("what", "?"), answer["error"].get("advice", ""))

    def _check_start(self, first: int, needed: int) -> None:
        if first <= needed:
            return
        if self._range.strict:
            raise aged_out(self._range.topic, needed, first)
        log.warning("events %d to %d of %s aged out unread", needed, first - 1, self._range.topic)
        self._next = max(self._next, first)

    def _check_gap(self, wire: Socket, frames: Frames) -> None:
        """Where indexes are skipped in a whole topic, lifespans ended, or events aged out while
        they were read; the log's first index tells which."""
        if self._range.subjects or int(frames.indexes[-1]) == self._next + len(frames.indexes) - 1:
            return
        expected = self._next
        for index in frames.indexes.tolist():
            if index != expected:
                self._check_first(wire, expected)
                return
            expected += 1

    def _end_segment(self, wire: Socket, segment: Segment) -> None:
        """A frozen segment has nothing more: go on behind it."""
        if segment not in self._chain(wire):
            raise Lost("the log was changed")  # it was emptied, and another holds what it had
        if self._next <= segment.last and not self._range.subjects:
            self._check_first(wire, self._next)
        self._next = max(self._next, segment.last + 1)

    def _check_first(self, wire: Socket, needed: int) -> None:
        with contextlib.closing(Socket([wire.address], self._timeout)) as second:
            log = self._look(second)
        if log is None:
            raise Lost("the log is gone")
        self._check_start(log.first, needed)


def aged_out(topic: str, needed: int, first: int) -> AgedOut:
    """The error for events that are gone before they were read."""
    return AgedOut(
        f"events {needed} to {first - 1} of {topic} aged out before this job read them",
        "Read more often, or keep more events (`skerry topic set`). To go on without them set "
        'option("failOnDataLoss", "false").',
        first,
    )


def _count(requests: deque[list[int]], count: int) -> None:
    while count and requests:
        taken = min(count, requests[0][1])
        requests[0][1] -= taken
        count -= taken
        if not requests[0][1]:
            requests.popleft()
