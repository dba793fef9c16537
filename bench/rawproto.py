"""The engine's protocol with nothing around it: the ceiling for any client written in Python.

No reconnecting, no futures, no timeouts, no per-event objects. It frames many publishes with one
`bytes.join`, and looks at what comes back only as far as needed to count it correctly.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from typing import Self, cast

from skerry.engine.address import Address
from skerry.engine.link import WRITE_HIGH

ACK = b'"seq":'
"""Once in every acknowledgement of a publish, and nowhere else in one."""

BLOCK = 256 * 1024
"""Bytes framed and written at a time. Writing a whole window at once is slower, above all at 8 KB:
the engine then waits while we frame, and we while it stores (tried: 64 KB to everything)."""

PATIENCE = 60.0
"""Seconds after which a run that does not end has failed."""


class RawClient(asyncio.Protocol):
    """One connection that does one thing at a time. Make it with `RawClient.open`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.inbox = f"_INBOX_sk.{address.site}.{address.user}.raw{secrets.token_hex(4)}".encode()
        self._transport: asyncio.Transport
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive: Callable[[bytes], None] = self._greeted
        self._resume: Callable[[], None] = lambda: None
        self._paused = False
        self._rest = b""
        self._count = 0

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect as the user of `address`."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(address), address.host, address.port)
        await client._up
        return client

    def close(self) -> None:
        """Hang up."""
        self._done.cancel()
        self._transport.close()

    # Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._resume()

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._up, self._done):
            if not future.done():
                future.set_exception(error or ConnectionError("the engine hung up"))

    def _greeted(self, data: bytes) -> None:
        if self._up.done():
            return  # the engine introduces itself once more
        if data.startswith(b"INFO "):
            hello = {
                "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
                "protocol": 1, "user": self.address.user, "pass": self.address.password,
            }  # fmt: skip
            self._transport.write(
                b"CONNECT %b\r\nSUB %b 1\r\nPING\r\n" % (json.dumps(hello).encode(), self.inbox)
            )
        elif data.startswith(b"PONG\r\n"):
            self._up.set_result(None)
        elif data.startswith(b"-ERR"):
            self._up.set_exception(ConnectionError(data.decode("utf-8", "replace")))

    # Publishing

    async def publish(self, subject: str, data: bytes, events: int, window: int) -> float:
        """Publish `events` times, at most `window` unacknowledged; return the seconds it took
        until all were acknowledged. Each has an id of its own."""
        head = b"NATS/1.0\r\nNats-Msg-Id:%b-00000000\r\n\r\n" % secrets.token_hex(8).encode()
        before, _, after = head.partition(b"00000000")
        size = len(head)
        opening = b"HPUB %b %b %d %d\r\n%b" % (
            subject.encode(), self.inbox, size, size + len(data), before
        )  # fmt: skip
        closing = after + data + b"\r\n"
        between = closing + opening
        block = max(BLOCK // (len(between) + 8), 1)
        loop, write = asyncio.get_running_loop(), self._transport.write
        sent, scheduled = 0, False

        def send() -> None:
            nonlocal sent, scheduled
            scheduled = False
            room = min(self._count + window, events) - sent
            if room > 0 and not self._paused:
                ids = [b"%08d" % number for number in range(sent, sent + min(room, block))]
                write(b"".join((opening, between.join(ids), closing)))
                sent += len(ids)
                if room > block:
                    scheduled = True
                    loop.call_soon(send)

        def receive(chunk: bytes) -> None:
            chunk = self._rest + chunk
            self._count += chunk.count(ACK)
            # What ends the chunk may be the beginning of a mark, and cannot hold a whole one.
            self._rest = chunk[1 - len(ACK) :]
            if self._done.done():
                return
            if b'"error"' in chunk or b"-ERR" in chunk:
                self._done.set_exception(ConnectionError(chunk.decode("utf-8", "replace")))
            elif self._count == events:
                self._done.set_result(None)
            elif not scheduled:
                send()

        self._receive, self._resume, self._count, self._rest = receive, send, 0, b""
        began = time.perf_counter()
        send()
        async with asyncio.timeout(PATIENCE):
            await self._done
        return time.perf_counter() - began

    # Reading

    async def pull(
        self,
        stream: str,
        consumer: str,
        events: int,
        take: Callable[[int, bytes], None] | None,
        batch: int = 512,
    ) -> float:
        """Read `events` events with two requests for `batch` of them open; return the seconds.
        `take` is called with index and payload of each; without it they are only counted."""
        body = b'{"batch":%d,"expires":30000000000}' % batch
        ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.%b %b %d\r\n%b\r\n" % (
            stream.encode(), consumer.encode(), self.inbox, len(body), body
        )  # fmt: skip
        due, index = batch, 0

        def receive(chunk: bytes) -> None:
            nonlocal due, index
            chunk = self._rest + chunk
            position, last, end, count = 0, 0, len(chunk), self._count
            while (line_end := chunk.find(b"\n", position)) > 0:
                if chunk[position] != 72:  # no HMSG: every event has an id, and so a header
                    position = line_end + 1
                    continue
                # HMSG subject sid reply head-size size; the reply is $JS.ACK.stream.consumer.
                # deliveries.index.number.time.pending
                if take is None:
                    size = chunk[chunk.rfind(b" ", position, line_end) : line_end]  # int() strips
                    following = line_end + 3 + int(size)
                    if following > end:
                        break
                else:
                    words = chunk[position:line_end].split(b" ")
                    following = line_end + 3 + int(words[5])
                    if following > end:
                        break
                    index = int(words[3].split(b".")[5])
                    take(index, chunk[line_end + 1 + int(words[4]) : following - 2])
                last, position = position, following
                count += 1
            self._count, self._rest = count, chunk[position:]
            while count >= due:
                self._transport.write(ask)
                due += batch
            if count >= events and not self._done.done():
                # Had anything but events been counted, the last would not be the one that is due.
                index = int(chunk[last:].split(b" ", 4)[3].split(b".")[5])
                if index == events:
                    self._done.set_result(None)
                else:
                    self._done.set_exception(ConnectionError(f"the last event is {index}"))

        self._receive, self._count, self._rest = receive, 0, b""
        began = time.perf_counter()
        self._transport.write(ask + ask)
        async with asyncio.timeout(PATIENCE):
            await self._done
        return time.perf_counter() - began


async def deliver(
    writer: RawClient,
    reader: RawClient,
    data: bytes,
    events: int,
    window: int,
    take: Callable[[bytes], None],
) -> float:
    """Core publish and subscribe: nothing is stored, nothing acknowledged. `take` is called with
    the payload of each event; at most `window` are under way. Return the seconds until the last was
    taken."""
    subject = reader.inbox + b".core"
    frame = b"PUB %b %d\r\n%b\r\n" % (subject, len(data), data)
    block = max(BLOCK // len(frame), 1)
    loop, sent, scheduled = asyncio.get_running_loop(), 0, False

    def send() -> None:
        nonlocal sent, scheduled
        scheduled = False
        room = min(reader._count + window, events) - sent
        if room > 0 and not writer._paused:
            count = min(room, block)
            writer._transport.write(frame * count)
            sent += count
            if room > block:
                scheduled = True
                loop.call_soon(send)

    def receive(chunk: bytes) -> None:
        chunk = reader._rest + chunk
        position, end, count = 0, len(chunk), reader._count
        while (line_end := chunk.find(b"\n", position)) > 0:
            if chunk[position] != 77:  # no MSG: the answer to our PING
                position = line_end + 1
                ready.set()
                continue
            size = chunk[chunk.rfind(b" ", position, line_end) : line_end]  # int() strips
            following = line_end + 3 + int(size)
            if following > end:
                break
            take(chunk[line_end + 1 : following - 2])
            position = following
            count += 1
        reader._count, reader._rest = count, chunk[position:]
        if count >= events and not reader._done.done():
            reader._done.set_result(None)
        elif not scheduled:
            send()

    ready = asyncio.Event()
    reader._receive, reader._count, reader._rest = receive, 0, b""
    writer._receive, writer._resume = lambda chunk: None, send
    window, allowed = 0, window  # nothing is sent before the engine knows the subscription
    reader._transport.write(b"SUB %b 2\r\nPING\r\n" % subject)
    async with asyncio.timeout(PATIENCE):
        await ready.wait()
        window = allowed
        began = time.perf_counter()
        send()
        await reader._done
    return time.perf_counter() - began
