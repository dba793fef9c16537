"""What a site reports once a monitoring period: itself, and a row for each topic that is at home
there or has clients there.

All clients of a site share its coordinate, each behind a line of its own. Whatever a topic's home,
the one with the longest line is the farthest of them: so all that a row says is how many there are,
and how long that line is. A topic takes the same number of bytes however many clients it has
(ePulsar, sections 3.2 and 5.6): 48, and its name.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from skerry.coords import Coordinate
from skerry.errors import BadSetting
from skerry.placement.settings import RESOURCES
from skerry.placement.tables import FURTHEST, Array

_COLUMNS = {
    "producers": "<u4",
    "consumers": "<u4",
    "producer_access": "<f4",
    "consumer_access": "<f4",
    "rate_in": "<f4",
    "rate_out": "<f4",
    "event_bytes": "<f4",
    "stored_bytes": "<f8",
    "publish_ms": "<f4",
    "deliver_ms": "<f4",
    "deliver_most_ms": "<f4",
}
"""Columns of a record and how their numbers are packed."""

_TIMES = ("producer_access", "consumer_access", "publish_ms", "deliver_ms", "deliver_most_ms")


class TopicColumns(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Topics at a site: the names, and of each column the numbers one after the other."""

    names: list[str]
    producers: bytes = b""
    """How many clients of this site publish to it."""
    consumers: bytes = b""
    producer_access: bytes = b""
    """ms one way: the longest line from one of them to the site."""
    consumer_access: bytes = b""
    rate_in: bytes = b""
    """Events/s that its home stores; 0 elsewhere."""
    rate_out: bytes = b""
    """Events/s that this site hands to clients, and its home to copies."""
    event_bytes: bytes = b""
    stored_bytes: bytes = b""
    publish_ms: bytes = b""
    """Measured: half of what the slowest publisher waits for the home's acknowledgement; 0: nothing
    was measured."""
    deliver_ms: bytes = b""
    """Measured: from when the home stored an event until a subscriber had it, the median of the
    slowest subscriber. The home's clock is compared with the subscriber's: what they differ by is
    part of it."""
    deliver_most_ms: bytes = b""
    """… and the longest of all."""

    def column(self, name: str) -> Array:
        """A column as numbers, without a copy."""
        return np.frombuffer(getattr(self, name), _COLUMNS[name])


class SiteRecord(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One site at one moment."""

    site: str
    started: int
    """When the agent started, in ns since 1970 by its own clock: the numbers begin anew then."""
    number: int
    """1 for the first record since the start, then 2, …"""
    position: tuple[float, ...]
    """ms one way."""
    height: float
    capacity: tuple[float, float, float, float, float]
    """Of each of `RESOURCES`; inf: no limit."""
    load: tuple[float, float, float, float, float]
    draining: bool = False
    power: bool = False
    topics: TopicColumns


def place_of(coordinate: Coordinate) -> tuple[tuple[float, ...], float]:
    """Position and height, in ms one way: half of the round trips that coordinates stand for."""
    height = max(500.0 * (coordinate.height + coordinate.adjustment), 0.0)
    return tuple(500.0 * x for x in coordinate.vector), height


def topic_columns(names: list[str], **columns: Array) -> TopicColumns:
    """Pack columns; all of them have to be given, with a row for each name."""
    if set(columns) != set(_COLUMNS):
        raise BadSetting(f"a record has the columns {', '.join(_COLUMNS)}")
    packed = {name: np.asarray(columns[name]).astype(kind).tobytes()
              for name, kind in _COLUMNS.items()}  # fmt: skip
    return TopicColumns(names=names, **packed)


def pack(record: SiteRecord) -> bytes:
    """A record as MsgPack."""
    return msgspec.msgpack.encode(record)


_DECODER = msgspec.msgpack.Decoder(SiteRecord)


def unpack(data: bytes) -> SiteRecord:
    """A record that came from another site. Raises `BadSetting` for anything that is no record, is
    cut off, or holds what is no number: one bad site must not stop the placement of all."""
    try:
        record = _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadSetting(f"this is no record of a site: {error}") from None
    check_record(record)
    return record


def check_record(record: SiteRecord) -> None:
    """Raise `BadSetting` unless all columns are whole and all numbers within their range."""
    said = f"the record {record.number} of {record.site}"
    amounts = (*record.capacity, *record.load, record.height, *record.position)
    if any(map(math.isnan, amounts)) or not all(map(math.isfinite, record.load)):
        raise BadSetting(f"{said} holds what is no number")
    if min(record.capacity + record.load) < 0 or not 0 <= record.height <= FURTHEST:
        raise BadSetting(f"{said} holds a negative amount of {', '.join(RESOURCES)} or height")
    if not record.position or any(abs(x) > FURTHEST for x in record.position):
        raise BadSetting(f"{said} has no coordinate, or one too far away")
    topics, rows = record.topics, len(record.topics.names)
    if len(set(topics.names)) != rows:
        raise BadSetting(f"{said} names a topic twice")
    for name, kind in _COLUMNS.items():
        if len(getattr(topics, name)) != rows * np.dtype(kind).itemsize:
            raise BadSetting(f"the column {name} of {said} has not {rows} rows")
        column = topics.column(name)
        if column.dtype.kind != "f" or not column.size:
            continue
        if not np.isfinite(column).all():
            raise BadSetting(f"the column {name} of {said} holds what is no number")
        if column.min() < 0.0 or column.max() > (FURTHEST if name in _TIMES else 1e15):
            raise BadSetting(f"the column {name} of {said} holds a number out of range")
