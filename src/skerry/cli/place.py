"""Places in a log as a person writes them: an index, `first`, `latest`, a time, a while ago."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from skerry.client import Client
from skerry.errors import BadSetting
from skerry.model.quantities import check_index, parse_time

BEGINNING = datetime.fromtimestamp(0, UTC)
"""Before any event: what begins here begins with the first one kept, also if older ones age out
meanwhile."""

FIRST_EVENT = 5.0
"""Seconds for the first event of a log to arrive."""


class Place(msgspec.Struct, frozen=True):
    """Where to begin or to end: at an index, or at a time."""

    index: int | None = None
    time: datetime | None = None


async def index_at(client: Client, topic: str, time: datetime) -> int | None:
    """The index of the first event of `topic` that was stored at `time` or later; None if there is
    none at this moment."""
    with suppress(TimeoutError):  # it may age out before we are given it
        async with (
            client.subscribe(topic, from_time=time, window=1) as events,
            asyncio.timeout(FIRST_EVENT),
        ):
            return (await anext(events)).index if events.pending else None
    return None


async def find_place(client: Client, topic: str, text: str) -> Place:
    """The place that `text` means in `topic` at this moment. A bare whole number is an index."""
    if text == "first":
        return Place(time=BEGINNING)
    if text == "latest":
        latest = await client.latest_index(topic)
        return Place(index=latest) if latest else Place(time=BEGINNING)
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        return Place(index=check_index(text))
    try:
        return Place(time=parse_time(text, datetime.now(UTC)))
    except BadSetting:
        raise BadSetting(
            f"{text!r} is no place in a log",
            "Write an index (12), first, latest, a time (2026-11-15T08:00Z), or a while ago (10m).",
        ) from None
