"""What clients of one site say they use, added up topic by topic. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from skerry.model.placement import TopicUse, Usage
from skerry.placement.records import TopicColumns, topic_columns
from skerry.placement.tables import FURTHEST, Array

LIFE = 3.0
"""Periods after which a client that says nothing is forgotten."""
MOST_CLIENTS = 100_000
MOST_TOPICS = 10_000
"""Of one client. Reports beyond are refused: no client may fill the agent's memory."""


class Held(msgspec.Struct, kw_only=True):
    """What the engine says of a topic that is at home here."""

    rate_in: float = 0.0
    event_bytes: float = 0.0
    stored_bytes: float = 0.0
    copies: int = 0
    """How many sites follow this one's log."""


class _Client(msgspec.Struct):
    heard: float
    access_ms: float
    topics: dict[str, TopicUse]


class _Row(msgspec.Struct):
    producers: int = 0
    consumers: int = 0
    producer_access: float = 0.0
    consumer_access: float = 0.0
    delivered: int = 0
    publish_ms: float = 0.0
    deliver_ms: float = 0.0
    deliver_most_ms: float = 0.0


class Book:
    """Who uses what at one site, by what clients tell.

    Topics are named as clients name them, which is by their logs; `rows` leaves out those that are
    not known to the directory.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._delivered: dict[str, int] = {}
        self.refused = 0
        """Reports that could not be right."""

    def __len__(self) -> int:
        return len(self._clients)

    def take(self, data: bytes, now: float) -> bool:
        """A client's report. Whether it uses other topics than before."""
        try:
            usage = _DECODER.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError):
            self.refused += 1
            return False
        if not _is_sound(usage):
            self.refused += 1
            return False
        before = self._clients.get(usage.client)
        if not usage.topics:
            return self._clients.pop(usage.client, None) is not None
        if before is None and len(self._clients) >= MOST_CLIENTS:
            self.refused += 1
            return False
        topics = {use.name: use for use in usage.topics}
        for use in usage.topics:
            self._delivered[use.name] = self._delivered.get(use.name, 0) + use.delivered
        if before is not None:
            for name, use in topics.items():
                _remember(use, before.topics.get(name))
        self._clients[usage.client] = _Client(now, usage.access * 500.0, topics)
        return before is None or _kinds(before.topics.values()) != _kinds(usage.topics)

    def expire(self, now: float, life: float) -> bool:
        """Forget clients that said nothing for `life` seconds. Whether there were any."""
        gone = [name for name, client in self._clients.items() if now - client.heard > life]
        for name in gone:
            del self._clients[name]
        return bool(gone)

    def columns(
        self,
        held: dict[str, Held],
        seconds: float,
        is_known: Callable[[str], bool],
        plain_producers: Iterable[str] = (),
        plain_consumers: Iterable[str] = (),
    ) -> TopicColumns:
        """A row for each topic that has clients here, or that this site holds as its home. What was
        delivered counts for the `seconds` since this was last asked."""
        rows: dict[str, _Row] = {name: _Row() for name in held}
        for client in self._clients.values():
            for name, use in client.topics.items():
                if name in rows or is_known(name):
                    _add(rows.setdefault(name, _Row()), use, client.access_ms)
        # Of plain clients is known only that there are some, and they are taken to be near.
        for name in plain_producers:
            row = rows.setdefault(name, _Row())
            row.producers = row.producers or 1
        for name in plain_consumers:
            rows.setdefault(name, _Row()).consumers += 1
        delivered, self._delivered = self._delivered, {}
        for name, number in delivered.items():
            if name in rows:
                rows[name].delivered = number
        return _columns(rows, held, seconds)


_DECODER = msgspec.msgpack.Decoder(Usage)


def _is_sound(usage: Usage) -> bool:
    numbers = [usage.access]
    for use in usage.topics:
        numbers += (use.publish_s, use.deliver_s, use.deliver_most_s)
        if min(use.subscriptions, use.events, use.bytes, use.delivered) < 0:
            return False
        if max(use.subscriptions, use.events, use.bytes, use.delivered) > 2**48:
            return False
    return (
        0 < len(usage.client) <= 64
        and len(usage.topics) <= MOST_TOPICS
        and all(number >= 0 and math.isfinite(number) for number in numbers)
    )


def _kinds(uses: Iterable[TopicUse]) -> set[tuple[str, bool, bool]]:
    return {(use.name, use.publishes, use.subscriptions > 0) for use in uses}


def _remember(use: TopicUse, before: TopicUse | None) -> None:
    """A client that measured nothing this time has what it measured last."""
    if before is not None:
        use.publish_s = use.publish_s or before.publish_s
        use.deliver_s = use.deliver_s or before.deliver_s
        use.deliver_most_s = use.deliver_most_s or before.deliver_most_s


def _add(row: _Row, use: TopicUse, access_ms: float) -> None:
    if use.publishes:
        row.producers += 1
        row.producer_access = max(row.producer_access, access_ms)
        row.publish_ms = max(row.publish_ms, use.publish_s * 500.0)
    if use.subscriptions:
        row.consumers += 1
        row.consumer_access = max(row.consumer_access, access_ms)
        row.deliver_ms = max(row.deliver_ms, use.deliver_s * 1000.0)
        row.deliver_most_ms = max(row.deliver_most_ms, use.deliver_most_s * 1000.0)


def _columns(rows: dict[str, _Row], held: dict[str, Held], seconds: float) -> TopicColumns:
    names = sorted(rows)
    nothing = Held()
    homes = [held.get(name, nothing) for name in names]
    mine = [rows[name] for name in names]

    def numbers(values: Iterable[float], most: float = 1e15) -> Array:
        found: Array = np.minimum(np.fromiter(values, "f8", len(names)), most)
        return found

    columns = {
        name: numbers((getattr(row, name) for row in mine), FURTHEST)
        for name in ("producer_access", "consumer_access", "publish_ms", "deliver_ms",
                     "deliver_most_ms")
    }  # fmt: skip
    rate_out = (
        row.delivered / max(seconds, 0.001) + home.copies * home.rate_in
        for row, home in zip(mine, homes, strict=True)
    )
    return topic_columns(
        names,
        producers=numbers((row.producers for row in mine), 2**32 - 1),
        consumers=numbers((row.consumers for row in mine), 2**32 - 1),
        rate_in=numbers(home.rate_in for home in homes),
        rate_out=numbers(rate_out),
        event_bytes=numbers(home.event_bytes for home in homes),
        stored_bytes=numbers(home.stored_bytes for home in homes),
        **columns,
    )
