"""What a user may say with `.option(name, value)`, checked before anything else happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from skerry.engine.address import Address, find_address
from skerry.errors import BadSetting, SkerryError
from skerry.model.pattern import Pattern
from skerry.model.quantities import parse_size

Format = Literal["binary", "text", "json", "msgpack", "arrow"]
Mode = Literal["permissive", "drop", "fail"]

FORMATS = ("binary", "text", "json", "msgpack", "arrow")
MODES = ("permissive", "drop", "fail")


class Place(msgspec.Struct, frozen=True):
    """Where to begin or to end: with the first or latest event, at an index, or at a time."""

    kind: Literal["earliest", "latest", "index", "time"]
    index: int = 0
    time: datetime | None = None


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Which site to work with."""

    data: str = ""
    connection: tuple[str, ...] = ()
    user: str = "sdk"
    timeout: float = 30.0
    """Seconds without progress after which a job fails."""

    def addresses(self) -> list[Address]:
        """The addresses, read anew: a site that restarts may have other ports."""
        targets: tuple[str | None, ...] = (self.data,) if self.data else self.connection
        return [find_address(target, self.user) for target in targets or (None,)]


class SourceOptions(Site, frozen=True, kw_only=True):
    """The options of a source."""

    topic: Pattern
    start: Place | None = None
    """None: a batch begins with the earliest event, a stream with the next."""
    end: Place = Place("latest")
    max_rows: int | None = None
    """Events that one trigger takes at the most, over all topics."""
    max_bytes: int | None = None
    """The same in bytes, estimated by the mean size of the topic's events."""
    partitions: int | None = None
    """Tasks that a batch is read with, about; by default one a core, if there is work for it."""
    fail_on_data_loss: bool = True
    format: Format = "binary"
    mode: Mode = "permissive"


class SinkOptions(Site, frozen=True, kw_only=True):
    """The options of a sink."""

    topic: str | None = None
    """None: the column `topic` says where each row goes."""
    ack: Literal["home", "quorum"] | None = None
    """None: what the topic says. Not `outbox`: only the home can tell what it has already."""
    window: int = 4096
    """Events that may wait for their acknowledgement; then the task waits."""
    checkpoint: str = ""
    """Where the query keeps its checkpoint; Spark tells."""


_Reader = Callable[[str], Any]


def _one_of(*allowed: str) -> _Reader:
    def read(value: str) -> str:
        if value.lower() not in allowed:
            raise BadSetting(f"is one of {', '.join(allowed)}")
        return value.lower()

    return read


def _whole(value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1:
        raise BadSetting("is a whole number of 1 or more")
    return int(value)


def _size(value: str) -> int:
    return parse_size(value)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise BadSetting("is a number of seconds from 1 to 3600")
    return seconds


def read_place(value: str) -> Place:
    """`earliest`, `latest`, an index, or a time in ISO form (UTC unless it says otherwise)."""
    text = value.strip().lower()
    if text in ("earliest", "latest"):
        return Place("earliest" if text == "earliest" else "latest")
    if re.fullmatch(r"[0-9]+", text):
        if int(text) < 1:
            raise BadSetting("indexes begin with 1")
        return Place("index", index=int(text))
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        raise BadSetting(
            "is earliest, latest, an index, or a time such as 2026-11-15T10:30:00Z"
        ) from None
    return Place("time", time=time if time.tzinfo else time.replace(tzinfo=UTC))


def _targets(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


_SITE: dict[str, tuple[str, _Reader]] = {
    "data": ("data", str),
    "connection": ("connection", _targets),
    "user": ("user", str),
    "timeout": ("timeout", _seconds),
}
_SOURCE: dict[str, tuple[str, _Reader]] = {
    **_SITE,
    "topic": ("topic", Pattern.parse),
    "start": ("start", read_place),
    "end": ("end", read_place),
    "maxRowsPerTrigger": ("max_rows", _whole),
    "maxBytesPerTrigger": ("max_bytes", _size),
    "partitions": ("partitions", _whole),
    "failOnDataLoss": ("fail_on_data_loss", lambda v: _one_of("true", "false")(v) == "true"),
    "format": ("format", _one_of(*FORMATS)),
    "mode": ("mode", _one_of(*MODES)),
}
_SINK: dict[str, tuple[str, _Reader]] = {
    **_SITE,
    "topic": ("topic", str),
    "ack": ("ack", _one_of("home", "quorum")),
    "window": ("window", _whole),
    "checkpointLocation": ("checkpoint", str),
}
_SPARKS = {"queryname"}
"""Options that Spark sets by itself, lower-cased."""


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source; `BadSetting` names the one that is wrong, and those there are."""
    found = _read(options, _SOURCE, "source")
    if "topic" not in found:
        raise BadSetting(
            "the option topic is missing",
            'Say what to read: .option("topic", "sensors/roof"), or a pattern: "sensors/#".',
        )
    return SourceOptions(**found)


def read_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink."""
    return SinkOptions(**_read(options, _SINK, "sink"))


def _read(
    options: Mapping[str, str], known: dict[str, tuple[str, _Reader]], what: str
) -> dict[str, Any]:
    by_name = {name.lower(): (name, *how) for name, how in known.items()}
    found: dict[str, Any] = {}
    for given, value in options.items():
        if given.lower() in _SPARKS:
            continue
        if given.lower() not in by_name:
            raise BadSetting(
                f"the {what} has no option {given!r}", f"It has {', '.join(sorted(known))}."
            )
        name, field, read = by_name[given.lower()]
        try:
            found[field] = read(value)
        except SkerryError as error:
            raise BadSetting(
                f"the option {name} {error.what}, not {value!r}", error.advice
            ) from None
    if found.get("data") and found.get("connection"):
        raise BadSetting("data and connection both name a site", "Give one of them.")
    return found
