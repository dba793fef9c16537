"""`skerry get`: one event by its index."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, TopicName, connected, run
from skerry.cli.events import as_object, readable
from skerry.cli.output import emit, emit_document
from skerry.errors import NotYet
from skerry.model.event import Event
from skerry.model.quantities import check_index

EXAMPLE = """Examples:
  skerry get sensors 12
  skerry get photos latest > photo.jpg"""


def get(
    topic: TopicName,
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index, or latest.")],
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print the payload of one event: the bytes as they are, when piped."""

    async def ask() -> Event:
        async with connected(connect, timeout) as client:
            if index != "latest":
                return await client.get(topic, check_index(index))
            if latest := await client.latest_index(topic):
                return await client.get(topic, latest)
            raise NotYet(
                f"{topic} has no events yet", f"Publish one with `skerry pub {topic} hello`."
            )

    event = run(ask())
    if as_json:
        emit_document(as_object(event))
    elif sys.stdout.isatty():
        emit(readable(event.data, kept="\n\t"))
    else:
        sys.stdout.buffer.write(event.data)
