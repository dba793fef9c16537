"""What the user's code prints: lines, bounded. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable

MAX_LINE = 4096
"""Bytes of a line that are kept."""
RATE = 64 * 1024
"""Bytes a second that are kept, and at once after a silence."""


class Text:
    """Makes lines of bytes. What is too much is counted, and said once there is room again."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self._room = float(RATE)
        self._at = 0.0
        self._left_out = 0

    def feed(self, data: bytes, now: float) -> None:
        """The code printed `data`; `now` is a clock in seconds."""
        self._refill(now)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > 2 * MAX_LINE:
            # A line without an end: its beginning is kept, so that memory is bounded.
            self._left_out += len(self._rest) - 2 * MAX_LINE
            self._rest = self._rest[: 2 * MAX_LINE]

    def tick(self, now: float) -> None:
        """Some time passed: say what was left out, if there is room."""
        self._refill(now)
        if self._room >= MAX_LINE:
            self._say_left_out()

    def end(self) -> None:
        """Nothing follows."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        self._say_left_out()

    def _refill(self, now: float) -> None:
        self._room = min(RATE, self._room + (now - self._at) * RATE)
        self._at = now

    def _line(self, line: bytes) -> None:
        kept = line[:MAX_LINE]
        if self._room < len(kept) + 1:
            self._left_out += len(line) + 1
            return
        self._say_left_out()
        self._room -= len(kept) + 1
        text = kept.decode("utf-8", "replace").rstrip("\r")
        if len(line) > MAX_LINE:
            text += f" … ({len(line) - MAX_LINE} bytes more)"
        self._on_line(text)

    def _say_left_out(self) -> None:
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._on_line(f"({count} bytes of output were left out: it printed too much)")
