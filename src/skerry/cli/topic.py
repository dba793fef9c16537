"""`skerry topic`: create, list, show, set, delete; see `move` for the sixth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Timeout,
    TopicName,
    Yes,
    agreed,
    connected,
    names,
    run,
)
from skerry.cli.output import columns, count, draw, emit, emit_document, facts, note
from skerry.errors import BadSetting
from skerry.model.names import is_own
from skerry.model.quantities import parse_duration, parse_size, show_duration, show_size
from skerry.model.topic import MAX_REPLICAS, Ack, Durability, OnPartition, Topic, TopicSettings

CREATE_EXAMPLE = """Examples:
  skerry topic create sensors --max-age 7d --max-bytes 2GB
  skerry topic create orders --home farm --replicas 2 --ack quorum
  skerry topic create swarm --latency 40ms"""
LIST_EXAMPLE = "Example: skerry topic list"
SHOW_EXAMPLE = "Example: skerry topic show sensors --json"
SET_EXAMPLE = """Examples:
  skerry topic set sensors --max-events 100000 --max-age none
  skerry topic set orders --replicas 1 --spread lab
  skerry topic set swarm --latency 40ms"""
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
KeepLast = Annotated[
    str | None,
    typer.Option(metavar="N", help="Keep the newest N events of each sub-topic; 1: its state."),
]
_FABRIC = "Fabric"
Home = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SITE",
        help="Where the home should be, the best first: repeated, or SITE,SITE.",
        show_default="the site asked",
        rich_help_panel=_FABRIC,
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=MAX_REPLICAS,
        help="Copies at other sites. With N of them (N + 1) / 2 sites may be lost, rounded down.",
        show_default="0",
        rich_help_panel=_FABRIC,
    ),
]
Spread = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Where replicas go: distributed (far from each other), colocated (near the home), or "
        "SITE,SITE.",
        show_default="distributed",
        rich_help_panel=_FABRIC,
    ),
]
AckLevel = Annotated[
    Ack | None,
    typer.Option(
        "--ack",
        help="What publishers wait for: that the event is durable at their own site, at the home, "
        "or at enough replicas to survive the home.",
        show_default="home",
        rich_help_panel=_FABRIC,
    ),
]
Partition = Annotated[
    OnPartition | None,
    typer.Option(
        "--on-partition",
        help="Whether a home with replicas takes events while the coordination site is away.",
        show_default="stop",
        rich_help_panel=_FABRIC,
    ),
]

Latency = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="What an event may take from any publisher to any subscriber, such as 40ms; see "
        "`skerry placement`.",
        show_default="no bound",
        rich_help_panel=_FABRIC,
    ),
]


def create(
    name: TopicName,
    max_events: MaxEvents = None,
    max_bytes: MaxBytes = None,
    max_age: MaxAge = None,
    max_event_bytes: MaxEventBytes = None,
    keep_last: KeepLast = None,
    durability: Annotated[
        Durability,
        typer.Option(help="What an acknowledged event survives: kill -9, or also a power cut."),
    ] = "process",
    home: Home = None,
    replicas: Replicas = None,
    spread: Spread = None,
    ack: AckLevel = None,
    on_partition: Partition = None,
    latency: Latency = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    When a limit is reached the oldest events age out; without one it keeps everything. Creating it
    again with the same settings changes nothing."""
    settings = _settings(max_events, max_bytes, max_age, max_event_bytes, keep_last)
    settings |= _placement(replicas, spread, ack, on_partition, latency)
    if home is not None:
        settings["home"] = names(home)
    if not replicas and spread not in (None, "distributed", "colocated"):
        raise BadSetting(
            f"--spread {spread} names sites for replicas, and none are asked for",
            "Give --replicas, and --home for where the topic itself should be.",
        )

    async def ask() -> Topic:
        async with connected(connect, timeout) as client:
            return await client.create_topic(name, durability=durability, **settings)

    topic = run(ask())
    if as_json:
        emit_document(topic)
        return
    copies = f", with replicas at {', '.join(topic.replicas)}" if topic.replicas else ""
    emit(
        f"topic {topic.name} is ready at site {topic.home}{copies}; "
        f"it keeps {keeps(topic.settings)}"
    )
    if topic.settings.prefer and topic.home != topic.settings.prefer[0]:
        emit(
            f"Site {topic.settings.prefer[0]} could not take it now; see `skerry sites`, and move "
            f"it with `skerry topic move {topic.name} --to {topic.settings.prefer[0]}`."
        )
    if keeps(topic.settings) == "everything":
        emit(f"Limit it with `skerry topic set {topic.name} --max-age 7d`, --max-bytes or others.")


def list_topics(
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", metavar="", help="Also those that Skerry keeps for itself."),
    ] = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """List the topics of the site, in a fabric of all sites."""

    async def ask() -> list[Topic]:
        async with connected(connect, timeout) as client:
            return await client.topics()

    topics = [topic for topic in run(ask()) if everything or not is_own(topic.name)]
    if as_json:
        emit_document(topics)
        return
    if not topics:
        note("no topics yet; create one with `skerry topic create sensors`")
        return
    somewhere = any(topic.epoch for topic in topics)
    table = columns(
        "TOPIC", *(("HOME", ">EPOCH", "REPLICAS") if somewhere else ()),
        ">EVENTS", ">SIZE", ">FIRST", ">LATEST", ">SUBSCRIPTIONS", "KEEPS",
    )  # fmt: skip
    for topic in topics:
        place = (topic.home, str(topic.epoch), _replicas(topic) or "-")
        state = dict(_state(topic)).values()
        table.add_row(topic.name, *(place if somewhere else ()), *state, keeps(topic.settings))
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
    keep_last: KeepLast = None,
    durability: Annotated[
        Durability | None, typer.Option(help="What an acknowledged event survives.")
    ] = None,
    home: Home = None,
    replicas: Replicas = None,
    spread: Spread = None,
    ack: AckLevel = None,
    on_partition: Partition = None,
    latency: Latency = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; none lifts a limit.

    A lower limit ages out the oldest events at once. --home is a wish for the next home; `skerry
    topic move` moves a topic now. Needs the administrator's credentials, which
    the data folder holds."""
    changes = _settings(max_events, max_bytes, max_age, max_event_bytes, keep_last)
    changes |= _placement(replicas, spread, ack, on_partition, latency)
    if home is not None:
        changes["prefer"] = names(home)
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
    yes: Yes = False,
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
    if not yes and not agreed(f"Delete {name} with its {contents} for good?", "deleting"):
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
    if settings.keep_last is not None:
        limits.append(f"{settings.keep_last:,} of each sub-topic")
    return ", ".join(limits) or "everything"


def _settings(
    max_events: str | None,
    max_bytes: str | None,
    max_age: str | None,
    max_event_bytes: str | None,
    keep_last: str | None,
) -> dict[str, Any]:
    """The limits that were given; None for the ones to lift."""
    given = {
        "max_events": (max_events, _whole),
        "max_bytes": (max_bytes, parse_size),
        "max_age": (max_age, parse_duration),
        "max_event_bytes": (max_event_bytes, parse_size),
        "keep_last": (keep_last, _whole),
    }
    return {
        name: None if text == "none" else parse(text)
        for name, (text, parse) in given.items()
        if text is not None
    }


def _placement(
    replicas: int | None,
    spread: str | None,
    ack: Ack | None,
    on_partition: OnPartition | None,
    latency: str | None,
) -> dict[str, Any]:
    """What was said of where the copies are, and what they are for."""
    given = {"replicas": replicas, "spread": spread, "ack": ack, "on_partition": on_partition}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if latency is not None:
        found["latency"] = None if latency == "none" else parse_duration(latency)
    return found


def _whole(text: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise BadSetting(
            f"{text!r} is not a number of events", "Write one such as 100000."
        ) from None


def _state(topic: Topic) -> list[tuple[str, str]]:
    """The log in words. Nobody knows them while no site that holds it can be asked."""
    known = topic.created.timestamp() > 0
    pairs = [
        ("events", f"{topic.events:,}"),
        ("stored", show_size(topic.bytes)),
        ("first index", str(topic.first_index) if topic.events else "-"),
        ("latest index", str(topic.latest_index) if topic.latest_index else "-"),
        ("subscriptions", f"{topic.subscriptions:,}"),
    ]
    return [(name, value if known else "?") for name, value in pairs]


def _replicas(topic: Topic) -> str:
    """Where they are, and how many there should be if that is more; empty: there are none."""
    where = ", ".join(topic.replicas)
    if not topic.lacking:
        return where
    return f"{where or 'none'} ({len(topic.replicas)} of {topic.settings.replicas})"


def _place(topic: Topic) -> list[tuple[str, str]]:
    """Where the topic is, for a fabric."""
    settings = topic.settings
    if not topic.epoch:
        return [("home", topic.home)]
    preferred = f" (preferred: {', '.join(settings.prefer)})" if settings.prefer else ""
    return [
        ("home", topic.home + preferred),
        ("epoch", str(topic.epoch)),
        ("replicas", _replicas(topic) or "none"),
        ("spread", settings.spread),
        ("acknowledged", f"at {settings.ack}"),
        ("on partition", settings.on_partition),
        ("latency bound", show_duration(settings.latency) if settings.latency else "none"),
    ]


def _print(topic: Topic, as_json: bool) -> None:
    if as_json:
        emit_document(topic)
        return
    settings = topic.settings
    largest = settings.max_event_bytes
    known = topic.created.timestamp() > 0
    created = topic.created.strftime("%Y-%m-%dT%H:%M:%SZ") if known else "?"
    pairs = [
        ("topic", topic.name),
        *_place(topic),
        ("created", created),
        *_state(topic),
        ("keeps", keeps(settings)),
        ("largest event", "what the site takes" if largest is None else show_size(largest)),
        ("durability", settings.durability),
    ]
    draw(facts(pairs))
