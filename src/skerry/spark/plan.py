"""Pure rules: where a job begins and ends, how a range is cut into tasks, what a filter allows.

Nothing here asks anybody; everything is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

LEAST = 20_000
"""Events for which a further task is worth its start (about 15 ms, measured)."""


class Bounds(msgspec.Struct, frozen=True):
    """What filters leave of a log: indexes and times, both ends included; topics, or all."""

    first: int = 1
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    topics: frozenset[str] | None = None


def cut(
    sizes: Mapping[str, tuple[int, int]], tasks: int, least: int = LEAST
) -> list[tuple[str, int, int]]:
    """Cut the ranges of topics, first and last index each, into about `tasks` pieces of about the
    same size, and of about `least` events or more; no index is left out or doubled."""
    total = sum(last - first + 1 for first, last in sizes.values())
    share = max(-(-total // max(tasks, 1)), 1)
    if total // share > 1 and share < least:
        share = least
    pieces = []
    for topic, (first, last) in sizes.items():
        count = last - first + 1
        parts = max(1, round(count / share)) if count > 0 else 0
        edges = [first + count * n // parts for n in range(parts)] + [last + 1]
        pieces += [(topic, edges[n], edges[n + 1] - 1) for n in range(parts)]
    return pieces


def admit(
    behind: Mapping[str, int], sizes: Mapping[str, float], rows: int | None, size: int | None
) -> dict[str, int]:
    """How many of the events that wait in each topic one trigger may take. Each topic gets its
    share, and where anything waits at least one event is taken."""
    waiting = {topic: count for topic, count in behind.items() if count > 0}
    total = sum(waiting.values())
    if not total:
        return {}
    allowed = float(total)
    if rows is not None:
        allowed = min(allowed, rows)
    if size is not None:
        mean = sum(sizes.get(topic, 0.0) * count for topic, count in waiting.items()) / total
        if mean:
            allowed = min(allowed, max(size / mean, 1.0))
    taken: dict[str, int] = {}
    left = int(allowed)
    for topic, count in sorted(waiting.items(), key=lambda item: item[1]):
        share = max(1, round(allowed * count / total))
        taken[topic] = min(count, share, left) if left > 0 else 0
        left -= taken[topic]
    return {topic: count for topic, count in taken.items() if count}


def narrow(bounds: Bounds, kind: str, column: str, value: Any) -> Bounds | None:
    """What a filter `column kind value` leaves of `bounds`; None if it is not one of ours."""
    change: dict[str, Any] = {}
    if column == "index" and isinstance(value, int):
        low, high = _interval(kind, value, 1)
        if low is None and high is None:
            return None
        change["first"] = max(bounds.first, low) if low is not None else bounds.first
        if high is not None:
            change["last"] = high if bounds.last is None else min(bounds.last, high)
    elif column == "time" and isinstance(value, datetime):
        time = value if value.tzinfo else value.replace(tzinfo=UTC)
        since, until = _interval(kind, time, timedelta(microseconds=1))
        if since is None and until is None:
            return None
        if since is not None:
            change["since"] = since if bounds.since is None else max(bounds.since, since)
        if until is not None:
            change["until"] = until if bounds.until is None else min(bounds.until, until)
    elif column == "topic" and kind in ("=", "in"):
        names = frozenset([value] if kind == "=" else value)
        change["topics"] = names if bounds.topics is None else bounds.topics & names
    else:
        return None
    return msgspec.structs.replace(bounds, **change)


def _interval(kind: str, value: Any, step: Any) -> tuple[Any, Any]:
    """The least and greatest value that `kind` allows; None: no limit."""
    if kind == "=":
        return value, value
    if kind in (">", ">="):
        return (value + step if kind == ">" else value), None
    if kind in ("<", "<="):
        return None, (value - step if kind == "<" else value)
    return None, None
