"""What the commands share: their common options, and a connected client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import typer

from skerry.cli.output import note
from skerry.client import Client, connect

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds that a command waits for its site. A person waits less patiently than a program."""

PATIENCE = 1.0
"""Seconds without a connection after which a person is told what we wait for."""

Connect = Annotated[
    str | None,
    typer.Option(
        "--connect",
        envvar="SKERRY_CONNECT",
        metavar="TARGET",
        help="The site: a connection file, a data folder, or nats://user:password@host:port. "
        "Put a URL with a password into the variable: arguments can be seen by others.",
        show_default="the default data folder",
        rich_help_panel="Connection",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait for the site.",
        rich_help_panel="Connection",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, for programs.")]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic or sub-topic, such as sensors/roof.")
]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work to its end."""
    import uvloop

    return uvloop.run(work)


@asynccontextmanager
async def connected(target: str | None, timeout: float, user: str = "sdk") -> AsyncIterator[Client]:
    """A connected client; a person at a terminal is told when that takes a while."""
    client = connect(target, user=user, timeout=timeout, name="skerry-cli")
    waiting = None
    if sys.stderr.isatty():
        waiting = asyncio.get_running_loop().call_later(
            PATIENCE, note, f"waiting for {client.address} …"
        )
    try:
        await client.open()
    finally:
        if waiting is not None:
            waiting.cancel()
    try:
        yield client
    finally:
        await client.close()
