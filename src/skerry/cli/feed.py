"""`skerry feed`: register, set, list, remove."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, Timeout, connected, run
from skerry.cli.metadata import OWNER, as_object, parse_pairs, show_metadata, show_topic
from skerry.cli.output import columns, draw, emit, emit_document, facts, note
from skerry.client import Client
from skerry.errors import BadSetting, FeedTaken
from skerry.model.feeds import Change, Feed, Metadata, check_change, check_id, check_metadata

REGISTER_EXAMPLE = """Examples:
  skerry feed register Location/Building=Soda Type=temp Floor=4
  skerry feed register Location/Room='"410"' Tags='["new", "roof"]'
  skerry feed register Type=camera --topic video/door --hold"""
SET_EXAMPLE = """Examples:
  skerry feed set 6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11 Floor=5 State=moved
  skerry feed set 6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11 --unset State"""
LIST_EXAMPLE = """Examples:
  skerry feed list
  skerry feed list 'Location/Building = "Soda" and Floor > 3' --json"""
REMOVE_EXAMPLE = "Example: skerry feed remove 6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11"

FeedId = Annotated[
    str, typer.Argument(metavar="ID", help="The feed's UUID, as `skerry feed list` shows it.")
]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Metadata. A value that is a number, true, false or a list in JSON is that; others "
        """are text. Text that looks like a number stands in quotes: Room='"410"'.""",
        show_default=False,
    ),
]
Owner = Annotated[
    str, typer.Option(metavar="NAME", help="Who the feed belongs to: only they change it.")
]


def register(
    pairs: Pairs = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="UUID",
            help="The feed's id. One that is registered is made to be as this says.",
            show_default="a new one",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Where its events are published.",
            show_default="a log of the site",
        ),
    ] = None,
    owner: Owner = OWNER,
    permanent: Annotated[
        bool,
        typer.Option(
            "--permanent/--hold",
            help="Keep the feed until it is removed, or only while this command runs. A held feed "
            "stays half a minute longer if the command is killed, and as long as another command "
            "holds a feed of the same owner.",
        ),
    ] = True,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Register a feed: a stream of events that others find by its metadata.

    Publish to its topic with `skerry pub`; follow all that match a query with `skerry query`."""
    metadata = check_metadata(parse_pairs(pairs or ()))
    given = None if id is None else check_id(id)
    with nullcontext() if permanent else suppress(KeyboardInterrupt):
        run(_register(metadata, given, topic, owner, permanent, connect, timeout, as_json))


async def _register(
    metadata: Metadata,
    id: str | None,
    topic: str | None,
    owner: str,
    permanent: bool,
    connect: Targets,
    timeout: float,
    as_json: bool,
) -> None:
    async with (
        connected(connect, timeout) as client,
        await client.feed(metadata, id=id, topic=topic, permanent=permanent, owner=owner) as handle,
    ):
        feed = handle.feed
        if as_json:
            emit_document(as_object(feed))
        else:
            emit(f"feed {feed.id} is registered at site {feed.site}")
            emit(f"Publish to it with `skerry pub {feed.topic} DATA`.")
        if permanent:
            return
        if sys.stderr.isatty():
            note("it stays while this command runs; Ctrl-C ends both")
        await asyncio.Event().wait()


def change(
    id: FeedId,
    pairs: Pairs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Take a key away; may be repeated."),
    ] = None,
    owner: Owner = OWNER,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Change a feed's metadata: the keys that are given; others stay as they are.

    It is changed at the site where it is registered."""
    changes: Change = {**parse_pairs(pairs or ())}
    for key in unset or ():
        if key in changes:
            raise BadSetting(f"the key {key!r:.80} is set and taken away", "Give one of them.")
        changes[key] = None
    if not changes:
        raise BadSetting(f"there is nothing to change of {id}", "Give KEY=VALUE, or --unset KEY.")
    check_change(changes)

    async def ask() -> Feed:
        async with _owning(connect, timeout) as client:
            return await client.set_feed(check_id(id), changes, owner=owner)

    _print(run(ask()), as_json)


def list_feeds(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]",
            help="""Which feeds, such as 'Type = "temp" and Floor > 3'.""",
            show_default="all",
        ),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """List the feeds of all sites that match a query, or all."""
    if query is not None:
        from skerry.query.language import parse  # others need not wait for it

        parse(query)  # says what is wrong, without a site

    async def ask() -> list[Feed]:
        async with connected(connect, timeout) as client:
            return await client.feeds(query)

    feeds = run(ask())
    if as_json:
        emit_document([as_object(feed) for feed in feeds])
    elif feeds:
        table = columns("ID", "SITE", "TOPIC", "METADATA")
        table.columns[0].no_wrap = True
        for feed in feeds:
            table.add_row(feed.id, feed.site, show_topic(feed), show_metadata(feed.metadata) or "-")
        draw(table)
    elif query is None:
        note("no feeds yet; register one with `skerry feed register Type=temp`")
    else:
        note("no feed matches; see all with `skerry feed list`")


def remove(
    id: FeedId,
    owner: Owner = OWNER,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Remove a feed, at the site where it is registered. Its events stay."""
    given = check_id(id)

    async def ask() -> None:
        async with _owning(connect, timeout) as client:
            await client.remove_feed(given, owner=owner)

    run(ask())
    if as_json:
        emit_document({"removed": given})
    else:
        emit(f"feed {given} is removed; its events stay")


@asynccontextmanager
async def _owning(connect: Targets, timeout: float) -> AsyncIterator[Client]:
    """A connected client for a command that takes --owner."""
    async with connected(connect, timeout) as client:
        try:
            yield client
        except FeedTaken as error:
            raise FeedTaken(error.what, "Give --owner if you act for them.") from None


def _print(feed: Feed, as_json: bool) -> None:
    if as_json:
        emit_document(as_object(feed))
        return
    pairs = [
        ("feed", feed.id),
        ("site", feed.site),
        ("topic", feed.topic),
        ("owner", feed.owner),
        ("version", str(feed.version)),
        ("metadata", show_metadata(feed.metadata) or "-"),
    ]
    draw(facts(pairs))
