"""Promises against logs: pure functions over what was written down."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """An event as a log holds it, or as a subscriber got it."""

    index: int
    id: str
    payload: str


class Promise(msgspec.Struct, frozen=True):
    """What a publisher was told of one event."""

    time: float
    payload: str
    index: int
    """0: not known."""


class Told(msgspec.Struct):
    """All that one publisher process wrote down."""

    topic: str
    level: str
    acknowledged: list[Promise] = []
    unknown: list[Promise] = []
    ended: bool = False
    sites: list[str] = []
    """Where its client could be."""

    def longest_gap(self) -> float:
        """Seconds between two acknowledgements, at the most."""
        times = [promise.time for promise in self.acknowledged]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def read_told(path: Path, topic: str, level: str) -> Told:
    """Read a publisher's file."""
    told = Told(topic, level)
    for line in _lines(path):
        kind, time, *rest = line.split(" ")
        if kind == "E":
            told.ended = True
        elif kind == "A":
            promise = Promise(float(time), f"{rest[0]}:{rest[1]}", int(rest[2]))
            told.acknowledged.append(promise)
        else:
            told.unknown.append(Promise(float(time), f"{rest[0]}:{rest[1]}", 0))
    return told


def read_received(path: Path) -> dict[str, list[Stored]]:
    """Read a subscriber's file, by topic."""
    received: dict[str, list[Stored]] = defaultdict(list)
    for line in _lines(path):
        topic, index, identity, payload, *_ = line.split(" ")
        received[topic].append(Stored(int(index), identity, payload))
    return received


def _lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1].splitlines()  # the last may be cut short by a kill
    return [line for line in whole if line]


def check_copies(topic: str, home: str, copies: Mapping[str, list[Stored]]) -> list[str]:
    """All copies of a topic hold the same, index by index."""
    found = []
    reference = {event.index: event for event in copies[home]}
    for site, events in sorted(copies.items()):
        mine = {event.index: event for event in events}
        differs = [
            index
            for index in sorted(reference.keys() | mine.keys())
            if reference.get(index) != mine.get(index)
        ]
        if differs:
            first = differs[0]
            found.append(
                f"copies of {topic} differ at {len(differs)} indexes, the first {first}: "
                f"home {home} has {_show(reference.get(first))}, {site} {_show(mine.get(first))}"
            )
    return found


def _show(event: Stored | None) -> str:
    return "nothing" if event is None else f"{event.payload} ({event.id})"


class Destroyed(msgspec.Struct, frozen=True):
    """A site that was lost for good, with its disk."""

    site: str
    time: float

    def excuses(self, promise: Promise, one: Told) -> bool:
        """Whether `docs/guarantees.md` lets go of an event with this site: one in its outbox, or
        one that the home alone had and whose publisher ended. A publisher that lived on, as later
        acknowledgements show, stores its events again."""
        if promise.time > self.time:
            return False
        if one.level == "outbox":
            return self.site in one.sites
        name = promise.payload.rpartition(":")[0]
        return one.level == "home" and not any(
            other.time > self.time + AFTERLIFE
            for other in one.acknowledged
            if other.payload.rpartition(":")[0] == name
        )


AFTERLIFE = 30.0
"""Seconds after which a publisher that still lives has stored again what was lost with a home."""


def excused(
    topic: str, events: list[Stored], told: Iterable[Told], destroyed: Destroyed
) -> list[Promise]:
    """What was acknowledged and is not in the log, and may be gone with a destroyed site."""
    there = {event.payload for event in events}
    return [
        promise
        for one in told
        if one.topic == topic
        for promise in one.acknowledged
        if promise.payload not in there and destroyed.excuses(promise, one)
    ]


def check_log(
    topic: str, events: list[Stored], told: Iterable[Told], gone: Iterable[Promise] = ()
) -> list[str]:
    """Everything acknowledged is there once and in order, but for what may be `gone`; nothing is
    there twice."""
    found = []
    missing = {promise.payload for promise in gone}
    where: dict[str, list[int]] = defaultdict(list)
    for event in events:
        where[event.payload].append(event.index)
    for payload, indexes in where.items():
        if len(indexes) > 1:
            found.append(f"{topic}: {payload} is stored {len(indexes)} times, at {indexes}")
    for one in told:
        if one.topic != topic:
            continue
        lost = [
            promise
            for promise in one.acknowledged
            if promise.payload not in where and promise.payload not in missing
        ]
        found += [
            f"{topic}: {promise.payload}, acknowledged at level {one.level} with index "
            f"{promise.index} at {promise.time:.3f}, is lost ({len(lost)} of this publisher are)"
            for promise in lost[:3]
        ]
        if one.level == "quorum":
            found += [
                f"{topic}: {promise.payload} was acknowledged at level quorum with index "
                f"{promise.index} and is at {where[promise.payload]}"
                for promise in one.acknowledged
                if promise.payload in where and promise.index not in where[promise.payload]
            ][:3]
    return found + _check_order(topic, events, told)


def _check_order(topic: str, events: list[Stored], told: Iterable[Told]) -> list[str]:
    known = {p.payload for one in told if one.topic == topic for p in one.acknowledged}
    highest: dict[str, int] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    seen: set[str] = set()
    for event in events:
        if event.payload in seen:
            continue  # reported as stored twice
        seen.add(event.payload)
        name, _, number = event.payload.partition(":")
        if event.payload not in known:
            continue  # a former home may bring it later, behind newer ones
        if int(number) < highest.get(name, -1):
            wrong[name].append(f"{number} at {event.index} behind {highest[name]}")
        highest[name] = max(highest.get(name, -1), int(number))
    return [
        f"{topic}: {name} is out of order {len(cases)} times, first {cases[0]}"
        for name, cases in wrong.items()
    ]


def check_received(
    name: str, topic: str, events: list[Stored], received: list[Stored]
) -> list[str]:
    """A durable subscriber was given every event of the log."""
    ids = {event.id for event in received}
    missed = [event for event in events if event.id not in ids]
    if not missed:
        return []
    return [
        f"subscriber {name} never got {len(missed)} events of {topic}, the first: "
        f"index {missed[0].index}, {missed[0].payload}; the last: index {missed[-1].index}"
    ]


def check_phantoms(name: str, topic: str, events: list[Stored], received: list[Stored]) -> str:
    """What a subscriber was given that the log does not hold in the end; no promise forbids it."""
    ids = {event.id for event in events}
    extra = [event for event in received if event.id not in ids]
    return f"{name} got {len(extra)} events of {topic} that are not in its log" if extra else ""


def repeats(received: list[Stored]) -> int:
    """How many events came more than once."""
    return sum(count - 1 for count in Counter(event.id for event in received).values())
