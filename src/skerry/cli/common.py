"""What the commands share: their common options, and a connected client."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import typer

from skerry.cli.output import note
from skerry.client import Client, connect
from skerry.errors import BadSetting, NotInFabric

T = TypeVar("T")

Targets = list[str] | None
"""The sites to connect to, as `--connect` takes them; None: what the environment says."""

TIMEOUT = 10.0
"""Seconds that a command waits for its site. A person waits less patiently than a program."""

PATIENCE = 1.0
"""Seconds without a connection after which a person is told what we wait for."""

Connect = Annotated[
    Targets,
    typer.Option(
        "--connect",
        metavar="TARGET",
        help="The site: a connection file, a data folder, or nats://user:password@host:port. "
        "Several, repeated or with commas between them: the nearest that is there. "
        "Put a URL with a password into the variable: arguments can be seen by others.",
        show_default="$SKERRY_CONNECT or the default data folder",
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
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic or sub-topic, such as sensors/roof.")
]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work to its end."""
    import uvloop

    return uvloop.run(work)


def find_targets(given: Targets) -> list[str]:
    """The sites that `--connect` names, or else `$SKERRY_CONNECT`; none: the default folder's."""
    named = given or list(filter(None, [os.environ.get("SKERRY_CONNECT")]))
    return [target for text in named for target in _split(text)]


def _split(text: str) -> list[str]:
    """The parts between commas, if each can be a target; else the comma belongs to a path or to a
    password."""
    parts = [part.strip() for part in text.split(",")]
    if all("://" in part or os.path.exists(os.path.expanduser(part)) for part in parts):
        return parts
    return [text]


def names(given: list[str] | None) -> list[str]:
    """Names as they are given to an option: repeated, or with commas between them, or `none`."""
    if given == ["none"]:
        return []
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


@asynccontextmanager
async def connected(given: Targets, timeout: float, user: str = "sdk") -> AsyncIterator[Client]:
    """A connected client; a person at a terminal is told when that takes a while."""
    client = connect(find_targets(given) or None, user=user, timeout=timeout, name="skerry-cli")
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


@asynccontextmanager
async def in_fabric(given: Targets, timeout: float, user: str = "sdk") -> AsyncIterator[Client]:
    """A connected client for a command that only a site in a fabric can do."""
    async with connected(given, timeout, user) as client:
        try:
            yield client
        except BadSetting:
            if await _stands_alone(client):
                raise NotInFabric(
                    f"site {client.site} stands alone: it is part of no fabric",
                    "Begin one with `skerry fabric init`, or join one with `skerry up --join`.",
                ) from None
            raise


async def _stands_alone(client: Client) -> bool:
    try:
        await client.links()
    except BadSetting:  # there is nothing in the question to be wrong: nobody answers such ones
        return True
    return False


def agreed(question: str, doing: str) -> bool:
    """Ask a person whether to go on; where there is none, `doing` needs --yes."""
    if not sys.stdin.isatty():
        raise BadSetting(f"{doing} needs a confirmation", "Give --yes to do it without asking.")
    return typer.confirm(question, err=True)
