"""MQTT 3.1.1 with nothing around it, QoS 1: the ceiling for any client written in Python.

As `bench.rawproto` does with the engine's protocol, so that the broker is measured and not a client
library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Self, cast

BLOCK = 256 * 1024
"""Bytes framed and written at a time."""
PATIENCE = 120.0
"""Seconds after which a run that does not end has failed."""

CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x32, 0x40, 0x90


class MqttClient(asyncio.Protocol):
    """One connection, MQTT 3.1.1, that does one thing at a time. Make it with `open`."""

    def __init__(self, name: str, clean: bool) -> None:
        self._name = name
        self._clean = clean
        self._transport: asyncio.Transport
        loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._rest = b""
        self._paused = False
        self._resume: Callable[[], None] = lambda: None
        self._take: Mapping[int, Callable[[bytes, int, int], None]] = {}
        self._after: Callable[[], None] = lambda: None

    @classmethod
    async def open(cls, port: int, name: str, *, clean: bool = True) -> Self:
        """Connect. Without `clean`, the session and its subscriptions last."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(name, clean), "127.0.0.1", port)
        async with asyncio.timeout(10):
            await client._up
        return client

    def close(self) -> None:
        """Hang up, in order."""
        self._done.cancel()
        self._transport.write(b"\xe0\x00")
        self._transport.close()

    # Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._take = {CONNACK: self._greeted}
        flags = 0x02 if self._clean else 0x00
        body = _text("MQTT") + bytes([4, flags, 0, 0]) + _text(self._name)
        self._transport.write(_packet(0x10, body))

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._up, self._done):
            if not future.done():
                future.set_exception(error or ConnectionError("the broker hung up"))
                future.exception()  # nobody need wait for it

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._resume()

    def data_received(self, data: bytes) -> None:
        chunk = self._rest + data
        position, end, take = 0, len(chunk), self._take
        while position + 1 < end:
            # The length: seven bits a byte, the lowest first, the last byte below 128.
            size, shift, body = 0, 0, position + 1
            while body < end:
                byte = chunk[body]
                size |= (byte & 127) << shift
                shift += 7
                body += 1
                if byte < 128:
                    break
            else:
                break
            if chunk[body - 1] > 127 or body + size > end:
                break
            take[chunk[position]](chunk, body, body + size)
            position = body + size
        self._rest = chunk[position:]
        self._after()

    def _greeted(self, chunk: bytes, body: int, end: int) -> None:
        if chunk[body + 1] == 0:
            self._up.set_result(None)
        else:
            self._up.set_exception(ConnectionError(f"refused with code {chunk[body + 1]}"))

    # Publishing

    async def publish(self, topic: str, data: bytes, last: bytes, count: int, window: int) -> None:
        """Publish `count` messages with QoS 1, at most `window` unacknowledged, the last of them
        `last`; return when all are acknowledged."""
        size = len(topic) + 4 + len(data)
        opening = bytes([PUBLISH]) + _length(size) + _text(topic)
        between = data + opening
        block = max(BLOCK // len(between), 1)
        loop, write = asyncio.get_running_loop(), self._transport.write
        sent = acked = 0
        scheduled = False

        def send() -> None:
            nonlocal sent, scheduled
            scheduled = False
            room = min(acked + window, count) - sent
            if room > 0 and not self._paused:
                numbers = range(sent, sent + min(room, block))
                ids = [(number % 65535 + 1).to_bytes(2, "big") for number in numbers]
                sent += len(ids)
                write(b"".join((opening, between.join(ids), last if sent == count else data)))
                if room > block:
                    scheduled = True
                    loop.call_soon(send)

        def confirmed(chunk: bytes, body: int, end: int) -> None:
            nonlocal acked
            acked += 1

        def after() -> None:
            if acked == count and not self._done.done():
                self._done.set_result(None)
            elif not scheduled:
                send()

        if len(last) != len(data):
            raise ValueError("the last message has another length")
        self._take, self._after, self._resume = {PUBACK: confirmed}, after, send
        send()
        async with asyncio.timeout(PATIENCE):
            await self._done
        self._done = loop.create_future()
        self._resume = self._after = lambda: None

    # Consuming

    async def consume(
        self,
        topic: str,
        handler: Callable[[str, int, bytes], object],
        ready: Callable[[], None],
        *,
        last: Callable[[bytes], bool],
    ) -> None:
        """Call `handler(topic, number, data)` for each message, and acknowledge it behind that,
        until one is the last."""
        acks: list[bytes] = []
        number = 0

        def subscribed(chunk: bytes, body: int, end: int) -> None:
            if chunk[end - 1] != 1:
                self._done.set_exception(ConnectionError("QoS 1 was not granted"))
            ready()

        def received(chunk: bytes, body: int, end: int) -> None:
            nonlocal number
            start = body + 2 + (chunk[body] << 8) + chunk[body + 1]
            number += 1
            data = chunk[start + 2 : end]
            handler(chunk[body + 2 : start].decode(), number, data)
            acks.append(chunk[start : start + 2])
            if last(data) and not self._done.done():
                self._done.set_result(None)

        def after() -> None:
            if acks:
                self._transport.write(b"".join(b"\x40\x02" + ack for ack in acks))
                acks.clear()

        # A message that comes again, or that the broker kept, has another first byte.
        again = {PUBLISH | flag: received for flag in (0, 1, 8, 9)}
        self._take, self._after = {SUBACK: subscribed, **again}, after
        self._transport.write(_packet(0x82, b"\x00\x01" + _text(topic) + b"\x01"))
        await self._done


def _text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def _length(size: int) -> bytes:
    out = bytearray()
    while True:
        size, low = divmod(size, 128)
        out.append(low | (128 if size else 0))
        if not size:
            return bytes(out)


def _packet(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _length(len(body)) + body
