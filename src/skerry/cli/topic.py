"""`skerry topic`: create, list, show, set, delete."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, TopicName, connected, run
from skerry.cli.output import columns, count, draw, emit, emit_document, facts, note
from skerry.errors import BadSetting
from skerry.model.quantities import parse_duration, parse_size, show_duration, show_size
from skerry.model.topic import Durability, Topic, TopicSettings

CREATE_EXAMPLE = "Example: skerry topic create sensors --max-age 7d --max-bytes 2GB"
LIST_EXAMPLE = "Example: skerry topic list"
SHOW_EXAMPLE = "Example: skerry topic show sensors --json"
SET_EXAMPLE = "Example: skerry topic set sensors --max-events 100000 --max-age none"
DELETE_EXAMPLE = "Example: skerry topic delete sensors"

MaxEvents = Annotated[str | None, typer.Option(metavar="N", help="Keep the newest N events.")]
MaxBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Keep at most so much, such as 500MB or 2GiB.")
]
MaxAge = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Keep events for so long, such as 12h or 7d."),
]
MaxEventBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Refuse events that are larger.")
]


def create(
    name: TopicName,
    max_events: MaxEvents = None,
    max_bytes: MaxBytes = None,
    max_age: MaxAge = None,
    max_event_bytes: MaxEventBytes = None,
    durability: Annotated[
        Durability,
        typer.Option(help="What an acknowledged event survives: kill -9, or also a power cut."),
    ] = "process",
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    When a limit is reached the oldest events age out; without one it keeps everything. Creating it
    again with the same settings changes nothing."""
    settings = _settings(max_events, max_bytes, max_age, max_event_bytes)

    async def ask() -> Topic:
        async with connected(connect, timeout) as client:
            return await client.create_topic(name, durability=durability, **settings)

    topic = run(ask())
    if as_json:
        emit_document(topic)
        return
    emit(f"topic {topic.name} is ready at site {topic.home}; it keeps {keeps(topic.settings)}")
    if keeps(topic.settings) == "everything":
        emit(f"Limit it with `skerry topic set {topic.name} --max-age 7d`, --max-bytes or others.")


def list_topics(
    connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False
) -> None:
    """List the topics of the site."""

    async def ask() -> list[Topic]:
        async with connected(connect, timeout) as client:
            return await client.topics()

    topics = run(ask())
    if as_json:
        emit_document(topics)
        return
    if not topics:
        note("no topics yet; create one with `skerry topic create sensors`")
        return
    table = columns("TOPIC", ">EVENTS", ">SIZE", ">FIRST", ">LATEST", ">SUBSCRIPTIONS", "KEEPS")
    for topic in topics:
        table.add_row(
            topic.name,
            f"{topic.events:,}",
            show_size(topic.bytes),
            str(topic.first_index) if topic.events else "-",
            str(topic.latest_index) if topic.latest_index else "-",
            f"{topic.subscriptions:,}",
            keeps(topic.settings),
        )
    draw(table)


def show(
    name: TopicName,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show a topic's state and settings."""

    async def ask() -> Topic:
        async with connected(connect, timeout) as client:
            return await client.topic(name)

    _print(run(ask()), as_json)


def change(
    name: TopicName,
    max_events: MaxEvents = None,
    max_bytes: MaxBytes = None,
    max_age: MaxAge = None,
    max_event_bytes: MaxEventBytes = None,
    durability: Annotated[
        Durability | None, typer.Option(help="What an acknowledged event survives.")
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; none lifts a limit.

    A lower limit ages out the oldest events at once. Needs the administrator's credentials, which
    the data folder holds."""
    changes = _settings(max_events, max_bytes, max_age, max_event_bytes)
    if durability is not None:
        changes["durability"] = durability
    if not changes:
        raise BadSetting(
            f"there is nothing to change of {name}", "Give a setting, such as --max-age 7d."
        )

    async def ask() -> Topic:
        async with connected(connect, timeout, "admin") as client:
            return await client.set_topic(name, **changes)

    _print(run(ask()), as_json)


def delete(
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")] = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with all its events and subscriptions, for good.

    Needs the administrator's credentials, which the data folder holds."""

    async def look() -> Topic:
        async with connected(connect, timeout, "admin") as client:
            return await client.topic(name)

    async def remove() -> None:
        async with connected(connect, timeout, "admin") as client:
            await client.delete_topic(name)

    topic = run(look())
    contents = f"{count(topic.events, 'event')} and {count(topic.subscriptions, 'subscription')}"
    if not yes and not _agreed(f"Delete {name} with its {contents} for good?"):
        note("nothing was deleted")
        raise typer.Exit(1)
    run(remove())
    if as_json:
        emit_document({"deleted": name, "events": topic.events})
    else:
        emit(f"topic {name} is deleted, with its {contents}")


def keeps(settings: TopicSettings) -> str:
    """A retention in words."""
    limits = []
    if settings.max_events is not None:
        limits.append(count(settings.max_events, "event"))
    if settings.max_bytes is not None:
        limits.append(show_size(settings.max_bytes))
    if settings.max_age is not None:
        limits.append(show_duration(settings.max_age))
    return ", ".join(limits) or "everything"


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise BadSetting("deleting needs a confirmation", "Give --yes to delete without asking.")
    return typer.confirm(question, err=True)


def _settings(
    max_events: str | None, max_bytes: str | None, max_age: str | None, max_event_bytes: str | None
) -> dict[str, Any]:
    """The limits that were given; None for the ones to lift."""
    given = {
        "max_events": (max_events, _whole),
        "max_bytes": (max_bytes, parse_size),
        "max_age": (max_age, parse_duration),
        "max_event_bytes": (max_event_bytes, parse_size),
    }
    return {
        name: None if text == "none" else parse(text)
        for name, (text, parse) in given.items()
        if text is not None
    }


def _whole(text: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise BadSetting(
            f"{text!r} is not a number of events", "Write one such as 100000."
        ) from None


def _print(topic: Topic, as_json: bool) -> None:
    if as_json:
        emit_document(topic)
        return
    settings = topic.settings
    largest = settings.max_event_bytes
    pairs = [
        ("topic", topic.name),
        ("home", topic.home),
        ("created", topic.created.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ("events", f"{topic.events:,}"),
        ("stored", show_size(topic.bytes)),
        ("first index", str(topic.first_index) if topic.events else "-"),
        ("latest index", str(topic.latest_index) if topic.latest_index else "-"),
        ("subscriptions", f"{topic.subscriptions:,}"),
        ("keeps", keeps(settings)),
        ("largest event", "what the site takes" if largest is None else show_size(largest)),
        ("durability", settings.durability),
    ]
    draw(facts(pairs))
