"""One TCP connection to the engine: splits what comes in, gathers what goes out.

The receive path is one loop over the bytes of a read, without a task or a queue per message: that
is what makes it ten times cheaper than the general-purpose client (docs/adr/0002-wire.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from skerry.engine import lines
from skerry.engine.address import Address
from skerry.engine.lines import Frame
from skerry.errors import AccessDenied

log = logging.getLogger("skerry.wire")

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply, header block and payload of each message. Must not block."""

Run = Callable[[bytes, int], int]
"""A faster way for messages that come in long runs: called with what was received and the place
where a message of the subscription begins, takes as many whole messages as it knows how to, and
returns the place behind them. What it leaves goes to the handler."""

FLUSH_BYTES = 64 * 1024
"""Bytes gathered before they are handed to the socket within one turn of the loop."""

WRITE_HIGH = 4 * 1024 * 1024
"""Bytes that may wait in the socket's buffer before writers are asked to pause."""


class Down(Exception):
    """The connection was lost, or is not up; whether a request was carried out is unknown."""


class Owner(Protocol):
    """What a link tells the connection that it is part of."""

    address: Address
    clock: float

    def on_link_lost(self, link: Link, error: Exception | None) -> None:
        """The link is gone."""

    def on_complaint(self, text: str) -> None:
        """The engine sent -ERR after the link was ready."""

    def on_congested(self, is_so: bool) -> None:
        """The socket's buffer is full, or takes more again."""


class Link(asyncio.Protocol):
    """One TCP connection: splits what comes in, gathers what goes out."""

    def __init__(self, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        self.greeting: asyncio.Future[bytes] = loop.create_future()
        self.welcome: asyncio.Future[None] = loop.create_future()
        self.handlers: dict[bytes, Handler] = {}
        self.runs: dict[bytes, Run] = {}
        self.heard = loop.time()
        self.ready = False
        self.lost = False
        self.transport: asyncio.Transport
        self._owner = owner
        self._loop = loop
        self.trips: deque[float] = deque(maxlen=8)
        """Seconds that the last pings took, there and back."""
        self._asked: float | None = None
        self._pings: deque[float] = deque()
        """When those were sent that are not answered yet."""
        self._error: Exception | None = None
        self._out: list[Frame] = []
        self._out_bytes = 0
        self._flushing = False
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.secure(cast(asyncio.Transport, transport))  # uvloop's is none by inheritance

    def secure(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        for future in (self.greeting, self.welcome):
            if not future.done():
                future.set_exception(error or Down("the engine closed the connection"))
                future.exception()
        self._owner.on_link_lost(self, self._error or error)

    def route(self, sid: bytes, subject: bytes, handler: Handler, run: Run | None) -> Frame:
        """Send messages of subscription `sid` there; return the line that asks for them."""
        self.handlers[sid] = handler
        if run is not None:
            self.runs[sid] = run
        return lines.sub(subject, sid)

    def abort(self, error: Exception) -> None:
        self._error = error
        self.transport.abort()

    def pause_writing(self) -> None:
        self._owner.on_congested(True)

    def resume_writing(self) -> None:
        self._owner.on_congested(False)

    def overdue(self, now: float, interval: float) -> bool:
        if self._asked is not None and self.heard >= self._asked:
            self._asked = None  # answered
        if now - self.heard < interval:
            return False
        if self._asked is None:
            self._asked = now
            self.ping()
        return now - self._asked >= 2 * interval

    def ping(self, before: Frame | None = None) -> None:
        """Ask for a sign of life; how long it takes is noted in `trips`."""
        self._pings.append(self._loop.time())
        self.write(lines.PING if before is None else lines.joined([before, lines.PING]))

    def write(self, frame: Frame) -> None:
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._out and not self.lost:
            self.transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.heard = self._owner.clock = self._loop.time()
        position = 0
        if self._parts:
            self._have += len(data)
            if self._have < self._need:
                self._parts.append(data)
                return
            # Complete the message that was cut; what lies behind it is not copied. In the middle
            # of a control line nobody knows where that is, and everything is.
            position = len(data) - (self._have - self._need) if self._need else len(data)
            self._parts.append(data[:position])
            whole = b"".join(self._parts)
            self._parts.clear()
            self._split(whole, 0)
        if position < len(data):
            self._split(data, position)

    def _split(self, data: bytes, position: int) -> None:
        """Hand on every whole message from `position` on; keep what is behind the last."""
        end, need = len(data), 0
        handlers, runs = self.handlers, self.runs
        while position < end:
            # One byte is found three times faster than two, and no control line holds another \\n.
            line_end = data.find(b"\n", position) - 1
            if line_end < 0:
                break  # in the middle of a control line: nobody knows how much is missing
            first = data[position]
            if first == 72 or first == 77:  # HMSG, MSG
                if runs:
                    behind_subject = data.find(b" ", position + 5) + 1
                    sid = data[behind_subject : data.find(b" ", behind_subject)]
                    if (run := runs.get(sid)) is not None:
                        try:
                            behind = run(data, position)
                        except Exception:
                            log.exception("a run of messages failed; taking them one by one")
                            behind = position
                        if behind > position:
                            position = behind
                            continue
                words = data[position:line_end].split(b" ")
                body = line_end + 2
                body_end = body + int(words[-1])
                if body_end + 2 > end:
                    need = body_end + 2 - position
                    break
                handler = handlers.get(words[2])
                if handler is not None:
                    if first == 77:
                        reply = words[3] if len(words) == 5 else b""
                        head, payload = b"", data[body:body_end]
                    else:
                        reply = words[3] if len(words) == 6 else b""
                        split = body + int(words[-2])
                        head, payload = data[body:split], data[split:body_end]
                    try:
                        handler(words[1], reply, head, payload)
                    except Exception:
                        log.exception("a handler failed; the connection goes on")
                position = body_end + 2
            else:
                self._control(data[position:line_end])
                position = line_end + 2
        if position < end:
            self._parts = [data[position:] if position else data]
            self._have = end - position
            self._need = need

    def _control(self, line: bytes) -> None:
        if line == b"PING":
            self.write(lines.PONG)
        elif line == b"PONG":
            if self._pings:
                self.trips.append(self._loop.time() - self._pings.popleft())
            if not self.welcome.done():
                self.welcome.set_result(None)
        elif line.startswith(b"INFO "):
            if not self.greeting.done():
                self.greeting.set_result(line[5:])
        elif line.startswith(b"-ERR"):
            text = line[5:].strip(b" '").decode("utf-8", "replace")
            if self.ready:
                self._owner.on_complaint(text)
            elif "uthorization" in text or "uthentication" in text:
                if not self.welcome.done():
                    self.welcome.set_exception(denied(self._owner.address, text))
            elif not self.welcome.done():
                self.welcome.set_exception(Down(text))


def denied(address: Address, text: str) -> AccessDenied:
    """The engine's refusal as an error that says what to do."""
    if text.startswith("Permissions Violation"):
        return AccessDenied(
            f"user {address.user!r} may not do that ({text})",
            "Use the connection file of a user that may: see credentials/ in the data folder.",
        )
    return AccessDenied(
        f"{address} refused the credentials of user {address.user!r}",
        "Copy the connection file anew from credentials/ in the site's data folder.",
    )
