"""`skerry read`: a part of a log."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, cast

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, TopicName, connected, run
from skerry.cli.events import EventPrinter
from skerry.cli.output import note
from skerry.cli.place import Place, find_place, index_at
from skerry.client import Client
from skerry.model.event import Event

Events = AsyncGenerator[Event, None]

EXAMPLE = """Examples:
  skerry read sensors
  skerry read sensors/roof --from 100 --to 199 --json
  skerry read sensors --from 1h --to 30m"""


def read(
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: an index (12), first, latest, a time (2026-11-15T08:00Z), "
            "or how long ago (10m).",
            show_default="first",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where to end, included: an index, latest, a time, or how long ago.",
            show_default="latest",
        ),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print the events that a topic holds now, in order, and end."""

    async def show() -> int:
        printer, printed = EventPrinter(topic, as_json, flush=False), 0
        async with (
            connected(connect, timeout) as client,
            aclosing(_events(client, topic, start, end)) as events,
        ):
            async for event in events:
                printer.print(event)
                printed += 1
        return printed

    if not run(show()) and sys.stderr.isatty():
        note(f"{topic} holds no events there")


async def _events(client: Client, topic: str, start: str | None, end: str | None) -> Events:
    first = Place() if start in (None, "first") else await find_place(client, topic, start)
    last = Place() if end in (None, "latest") else await find_place(client, topic, end)
    index = first.index
    if first.time is not None:
        index = await index_at(client, topic, first.time)
        if index is None or (last.index is not None and index > last.index):
            return
    async with aclosing(cast(Events, client.read(topic, index, last.index))) as events:
        async for event in events:
            if last.time is not None and event.time > last.time:
                return
            yield event
