"""Events as they are printed: for people, for programs, or as they are."""

from __future__ import annotations

import sys
from base64 import b64encode
from datetime import datetime
from typing import Any

from skerry.cli.output import console, emit, emit_json
from skerry.model.event import Event

HEX_SHOWN = 24
"""Bytes of a binary payload that a person is shown."""


def as_text(data: bytes) -> str | None:
    """The payload as text, or None if it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def as_object(event: Event) -> dict[str, Any]:
    """The event as a JSON object; `data_base64` in place of `data` if the payload is no text."""
    text = as_text(event.data)
    payload = {"data_base64": b64encode(event.data).decode()} if text is None else {"data": text}
    return {
        "topic": event.topic,
        "index": event.index,
        "time": iso(event.time, "microseconds"),
        "key": event.key,
        "headers": event.headers,
        "id": event.id,
        **payload,
    }


def readable(data: bytes, kept: str = "") -> str:
    """A payload that cannot harm a terminal: control characters are spelled out, but for those
    in `kept`, and of a binary one the size and the beginning are shown."""
    text = as_text(data)
    if text is None:
        more = "…" if len(data) > HEX_SHOWN else ""
        return f"<{len(data):,} bytes: {data[:HEX_SHOWN].hex(' ')}{more}>"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else _spelled(c) for c in text)


class EventPrinter:
    """Prints events one a line: each at once, or with `flush` off in larger pieces."""

    def __init__(self, topic: str, as_json: bool, *, flush: bool = True) -> None:
        self._as_json = as_json
        self._flush = flush
        self._console = console() if not as_json and sys.stdout.isatty() else None
        self._topic_width = len(topic)

    def print(self, event: Event) -> None:
        """Print one event."""
        if self._as_json:
            emit_json(as_object(event), flush=self._flush)
            return
        time = iso(event.time, "milliseconds")
        topic = event.topic
        self._topic_width = max(self._topic_width, len(topic))
        place, name = f"{event.index:>7}", topic.ljust(self._topic_width)
        payload = readable(event.data)
        if self._console is None:
            emit(f"{time}  {place}  {name}  {payload}", flush=self._flush)
        else:
            from rich.text import Text

            line = Text.assemble((time, "dim"), (f"  {place}", "cyan"), (f"  {name}", "green"))
            self._console.print(line.append(f"  {payload}"), soft_wrap=True)


def iso(time: datetime, precision: str) -> str:
    """A time of an event as ISO 8601 has it."""
    return time.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
