"""`skerry query`: follow the feeds that match, whichever they are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, Timeout, connected, run
from skerry.cli.found import make_face
from skerry.cli.place import BEGINNING
from skerry.errors import BadSetting
from skerry.model.feeds import Received
from skerry.model.quantities import parse_duration, parse_time

EXAMPLE = """Examples:
  skerry query 'Location/Room = "410"'
  skerry query 'Type = "temp" and payload.celsius > 30' --from 10m --json
  skerry query 'has Type and not has Retired' --for 1h --count 1000"""


def query(
    text: Annotated[
        str,
        typer.Argument(
            metavar="QUERY", help="""Which feeds, and which of their events: 'Type = "temp"'."""
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from-time",
            "--from",
            metavar="TIME",
            help="Begin with what the feeds that match now published since a time "
            "(2026-11-15T08:00Z), since so long ago (10m), or since the first event (first).",
            show_default="new events",
        ),
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Go on where the query of this name was, also after a crash."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N events.")
    ] = None,
    limit: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="End after so long: 30s, 1h.")
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show the feeds of all sites that match a query as they come and go, and their events as they
    are stored, until Ctrl-C.

    At a terminal: a screen with the feeds, and the newest events below. Elsewhere one line for each
    feed that joins or leaves, each event, and each gap in what could be read."""
    from skerry.query.language import parse  # other commands need not wait for it

    parse(text)  # says what is wrong, without a site
    since = None if start is None else _time(start)
    seconds = None if limit is None else parse_duration(limit)
    with suppress(KeyboardInterrupt):
        run(_follow(text, since, durable, count, seconds, connect, timeout, as_json))


def _time(text: str) -> datetime:
    if text == "first":
        return BEGINNING
    try:
        return parse_time(text, datetime.now(UTC))
    except BadSetting as error:
        raise BadSetting(error.what, f"{error.advice[:-1]}, or first.") from None


async def _follow(
    text: str,
    since: datetime | None,
    durable: str | None,
    count: int | None,
    seconds: float | None,
    connect: Targets,
    timeout: float,
    as_json: bool,
) -> None:
    async with (
        connected(connect, timeout) as client,
        client.query(text, from_time=since, durable=durable) as found,
    ):
        with make_face(text, as_json) as face:
            ending = asyncio.timeout(seconds)
            try:
                async with ending:
                    async for item in found:
                        face.show(item)
                        if durable is not None:
                            found.ack(item)
                        if isinstance(item, Received) and count is not None:
                            count -= 1
                            if not count:
                                return
            except TimeoutError:
                if not ending.expired():
                    raise
