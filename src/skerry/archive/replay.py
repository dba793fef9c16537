"""A slice of an archive, in the order it happened, for publishing it again.

The files of a topic are read one after the other, by index; several topics are merged by time. No
Spark is needed. An event that packed many records has as many rows, and is published once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skerry.archive.folder import Archive
from skerry.archive.table import DataFile
from skerry.model.names import is_within

_COLUMNS = ["sub_topic", "index", "time", "key", "headers", "value"]
_COUNTED = ["sub_topic", "index", "time"]


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read. Ends are included; None: no end."""

    topic: str
    """A topic or sub-topic, with all below it."""
    first: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None


class Archived(msgspec.Struct, frozen=True):
    """An event as it was."""

    time: datetime
    topic: str
    """The topic whose log held it."""
    index: int
    name: str
    """The topic or sub-topic that it was published to."""
    key: str | None
    headers: dict[str, str] | None
    data: bytes


def chosen(files: Iterable[DataFile], wanted: Slice) -> dict[str, list[DataFile]]:
    """The files that may hold rows of a slice, by topic."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        within = is_within(file.topic, wanted.topic) or is_within(wanted.topic, file.topic)
        early = wanted.last is not None and file.first > wanted.last
        early |= wanted.until is not None and file.since > wanted.until
        late = wanted.first is not None and file.last < wanted.first
        late |= wanted.since is not None and file.until < wanted.since
        if within and not early and not late:
            found.setdefault(file.topic, []).append(file)
    return found


def count_events(root: Path, files: dict[str, list[DataFile]], wanted: Slice) -> int:
    """How many events a slice has."""
    total = 0
    for topic, own in files.items():
        for group in groups(own):
            rows = _read(root, topic, group, wanted, _COUNTED)
            total += pc.count_distinct(rows["index"]).as_py() if rows.num_rows else 0
    return total


def events(root: Path, files: dict[str, list[DataFile]], wanted: Slice) -> Iterator[Archived]:
    """The events of a slice, in order within a topic, and by time between topics."""
    streams = [_events(root, topic, own, wanted) for topic, own in sorted(files.items())]
    return heapq.merge(*streams, key=lambda event: event.time)


def groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files by index; those whose ranges overlap, as compacting leaves them, are together."""
    found: list[list[DataFile]] = []
    last = 0
    for file in sorted(files, key=lambda file: (file.first, file.last)):
        if found and file.first <= last:
            found[-1].append(file)
        else:
            found.append([file])
        last = max(last, file.last)
    return found


def replay_name(archive: Archive, wanted: Slice, to: str) -> str:
    """What ids begin with if nobody says otherwise: the same for the same archive, topic and
    target."""
    text = f"{archive.about.id} {wanted.topic} {to}"
    return f"replay-{blake2b(text.encode(), digest_size=6).hexdigest()}"


def event_id(prefix: str, event: Archived) -> str:
    """The id that an event is published with: the same each time it is replayed."""
    log = blake2b(event.topic.encode(), digest_size=4).hexdigest()
    return f"{prefix}-{log}-{event.index}"


def target_name(event: Archived, wanted: Slice, to: str) -> str:
    """Where an event goes: what is below the topic in its name is kept."""
    rest = event.name.removeprefix(wanted.topic).lstrip("/")
    return f"{to}/{rest}" if rest else to


def _events(root: Path, topic: str, files: Sequence[DataFile], wanted: Slice) -> Iterator[Archived]:
    before = 0
    for group in groups(files):
        rows = _read(root, topic, group, wanted, _COLUMNS)
        for batch in rows.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                if row["index"] == before:
                    continue
                before = row["index"]
                yield _event(topic, row)


def _read(
    root: Path, topic: str, group: Sequence[DataFile], wanted: Slice, names: list[str]
) -> pa.Table:
    tables = [pq.ParquetFile(root / file.path).read(columns=names) for file in group]
    rows = pa.concat_tables(tables, promote_options="permissive")
    kept = [
        compare(rows[column], pa.scalar(end, rows[column].type))
        for column, compare, end in [
            ("index", pc.greater_equal, wanted.first),
            ("index", pc.less_equal, wanted.last),
            ("time", pc.greater_equal, wanted.since),
            ("time", pc.less_equal, wanted.until),
        ]
        if end is not None
    ]
    if not is_within(topic, wanted.topic):
        below = wanted.topic.removeprefix(topic + "/")
        inside = pc.or_(
            pc.equal(rows["sub_topic"], below), pc.starts_with(rows["sub_topic"], below + "/")
        )
        kept.append(pc.fill_null(inside, False))
    for mask in kept[1:]:
        kept[0] = pc.and_(kept[0], mask)
    rows = rows.filter(kept[0]) if kept else rows
    index = rows["index"]
    is_sorted = len(group) == 1 and (
        len(index) < 2 or pc.all(pc.less_equal(index[:-1], index[1:])).as_py()
    )
    return rows if is_sorted else rows.sort_by("index")


def _event(topic: str, row: dict[str, Any]) -> Archived:
    time = row["time"]
    return Archived(
        time if time.tzinfo else time.replace(tzinfo=UTC),
        topic,
        row["index"],
        f"{topic}/{row['sub_topic']}" if row["sub_topic"] else topic,
        row["key"],
        dict(row["headers"]) if row["headers"] else None,
        row["value"] or b"",
    )
