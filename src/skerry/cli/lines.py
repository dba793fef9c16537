"""Lines of a file or a pipe, read in a thread, so that the connection lives on while none come.

A thread of our own: one of the event loop's would hold up Ctrl-C until the next line arrives.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from skerry.errors import EventTooLarge

CHUNK = 256 * 1024
"""Bytes read at once."""
AHEAD = 16
"""Chunks that may be read before they are used; it bounds the memory."""
LONGEST = 64 * 1024 * 1024
"""Bytes of a line; the most that an engine can be set to take as one event."""


class _Reader:
    """Hands what a thread reads from a descriptor to the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        threading.Thread(target=self._read, name="lines", daemon=True).start()

    async def chunk(self) -> bytes:
        """What comes next; empty at the end."""
        chunk = await self._chunks.get()
        self._room.release()
        if isinstance(chunk, OSError):
            raise chunk
        return chunk

    def _read(self) -> None:
        chunk: bytes | OSError = b"?"
        with suppress(RuntimeError):  # the loop is closed: nobody wants any more
            while chunk and not isinstance(chunk, OSError):
                self._room.acquire()
                try:
                    chunk = os.read(self._descriptor, CHUNK)
                except OSError as error:
                    chunk = error
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)


async def lines(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of what `descriptor` reads, without their ends (LF or CRLF), each as soon as it is
    complete. A last line without an end counts as well."""
    reader, rest = _Reader(descriptor), b""
    while chunk := await reader.chunk():
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST:
            raise EventTooLarge(
                f"a line is longer than {LONGEST} bytes", "Publish a file with no lines otherwise."
            )
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")
