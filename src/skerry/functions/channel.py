"""The host's end of the socket to a worker: frames, without ever waiting."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from skerry.functions.frames import HEADER, FromWorker, ToWorker

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of what a worker may say at once; one event's outputs are limited to a quarter of it."""
BUFFER = 128 * 1024
"""Bytes that are read at once, and kept for it."""
ROUNDS = 8
"""How often one worker is read from before it is another's turn."""

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[FromWorker])


class Nonsense(Exception):
    """What no worker says. `number` is the task of which it says so, 0 if that is not known."""

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class Channel:
    """Sends messages, and hands on what arrives: `on_messages` with the messages, `on_nonsense`
    once if they cannot be taken (it may raise `Nonsense` itself), `on_end` once when the worker's
    end is closed. `close` it before the socket."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        on_messages: Callable[[list[FromWorker]], None],
        on_nonsense: Callable[[Exception], None],
        on_end: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._on_messages = on_messages
        self._on_nonsense = on_nonsense
        self._on_end = on_end
        self._out: deque[memoryview] = deque()
        self._buffer = bytearray(BUFFER)
        self._filled = 0
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Send a frame, or what of it the worker takes now; the rest follows."""
        if not self._open:
            return
        data = _encode(messages)
        idle = not self._out
        self._out.append(memoryview(HEADER.pack(len(data))))
        self._out.append(memoryview(data))
        if idle:
            self._writable()

    def drain(self) -> None:
        """Take everything that a worker that is dead has said."""
        while self._open and self._read():
            pass

    def close(self) -> None:
        """Have no more to do with the socket."""
        self._open = False
        self._out.clear()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)

    def _writable(self) -> None:
        try:
            while self._out:
                sent = self._socket.sendmsg(list(itertools.islice(self._out, 16)))
                while self._out and sent >= len(self._out[0]):
                    sent -= len(self._out.popleft())
                if sent:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._writable)
            return
        except OSError:
            self._out.clear()  # it is dead, or has closed its end: reading tells
        self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        for _ in range(ROUNDS):
            if not self._open or not self._read():
                return

    def _read(self) -> bool:
        """Take what is there; whether there may be more."""
        with memoryview(self._buffer) as view:
            try:
                count = self._socket.recv_into(view[self._filled :])
            except BlockingIOError:
                return False
            except OSError:
                count = 0
        if count == 0:
            self.close()
            self._on_end()
            return False
        self._filled += count
        try:
            if messages := self._frames():
                self._on_messages(messages)
        except (msgspec.MsgspecError, Nonsense) as error:
            self.close()
            self._on_nonsense(error)
            return False
        return True

    def _frames(self) -> list[FromWorker]:
        """What is whole of what has arrived."""
        filled, start, needed = self._filled, 0, BUFFER
        messages: list[FromWorker] = []
        with memoryview(self._buffer) as view:
            while filled - start >= HEADER.size:
                (length,) = HEADER.unpack_from(view, start)
                end = start + HEADER.size + length
                if length > MAX_FRAME:
                    raise Nonsense(f"a frame of {length} bytes")
                if end > filled:
                    needed = max(needed, end - start)
                    break
                messages += _decoder.decode(view[start + HEADER.size : end])
                start = end
            if start:
                view[: filled - start] = view[start:filled]
        self._filled = filled - start
        if needed != len(self._buffer):
            other = bytearray(needed)
            other[: self._filled] = self._buffer[: self._filled]
            self._buffer = other
        return messages
