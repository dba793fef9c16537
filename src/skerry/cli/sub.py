"""`skerry sub`: follow a topic."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Targets,
    Timeout,
    TopicName,
    connected,
    run,
)
from skerry.cli.events import EventPrinter
from skerry.cli.output import note
from skerry.cli.place import Place, find_place

EXAMPLE = """Examples:
  skerry sub sensors
  skerry sub sensors/roof --from 10m --json
  skerry sub sensors --from first --durable audit --count 100"""


def sub(
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: an index (12), first, latest, a time (2026-11-15T08:00Z), "
            "or how long ago (10m).",
            show_default="new events",
        ),
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Follow under a name: acknowledge what was printed, and go on behind it the next "
            "time, wherever --from points.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N events.")
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print events of a topic and its sub-topics as they are stored, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        run(_follow(topic, start, durable, count, connect, timeout, as_json))


async def _follow(
    topic: str,
    start: str | None,
    durable: str | None,
    count: int | None,
    connect: Targets,
    timeout: float,
    as_json: bool,
) -> None:
    printer = EventPrinter(topic, as_json)
    async with connected(connect, timeout) as client:
        place = Place() if start is None else await find_place(client, topic, start)
        async with client.subscribe(
            topic,
            from_index=place.index,
            from_time=place.time,
            durable=durable,
        ) as subscription:
            if sys.stderr.isatty():
                note(f"following {topic}; Ctrl-C ends it")
            left = count
            async for event in subscription:
                printer.print(event)
                if durable is not None:
                    subscription.ack(event)
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
        if durable is not None:
            await client.latest_index(topic)  # its answer says that the acknowledgements arrived
