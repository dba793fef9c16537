"""Answers what handlers ask for: they read topics with the host's eyes."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from skerry.errors import BadSetting
from skerry.functions.access import Access
from skerry.functions.frames import Answer, Ask
from skerry.model.event import Event

READ = 256
READ_BYTES = 1024 * 1024
"""What one answer holds at the most; the worker asks for the rest."""

Plain = tuple[str, int, int, str | None, dict[str, str], bytes]


async def answer(access: Access, ask: Ask) -> Answer:
    """The answer to a question about topics. Raises what reading raises."""
    reader = access.reader
    match ask.what, ask.arguments:
        case "latest_index", (str() as topic,):
            return Answer(await reader.latest_index(topic))
        case "get", (str() as topic, int() as index):
            return Answer(plain(await reader.get(topic, index)))
        case "read", (str() as topic, int() as first, last) if last is None or type(last) is int:
            return Answer(await _read(access, topic, first, last))
    raise BadSetting(f"{ask.what} is not asked for like this", "Give a topic's name and indexes.")


async def _read(access: Access, topic: str, first: int, last: int | None) -> list[Any]:
    found: list[Plain] = []
    size = 0
    async with aclosing(access.reader.read(topic, first, last)) as events:  # type: ignore[type-var]
        async for event in events:
            found.append(plain(event))
            size += len(event.data)
            if len(found) >= READ or size >= READ_BYTES:
                break
    return found


def plain(event: Event) -> Plain:
    """An event as a worker takes it."""
    return (
        event.topic, event.index, event.timestamp_ns, event.key, event.headers, bytes(event.data)
    )  # fmt: skip
