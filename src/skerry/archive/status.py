"""What an archive holds, topic by topic, and how far it is behind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime

import msgspec

from skerry.archive.folder import Archive, holder
from skerry.archive.table import open_table
from skerry.errors import SkerryError
from skerry.spark.logs import Logs
from skerry.spark.options import Site


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive has of one topic. Ends are included."""

    topic: str
    rows: int
    first: int
    last: int
    since: datetime
    until: datetime
    files: int
    bytes: int
    lag: int | None
    """Events that the topic has beyond; None: the site did not tell."""


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is and holds."""

    folder: str
    topics: str
    format: str
    payload: str
    pid: int | None
    """The process that archives; None: none does."""
    version: int
    rows: int
    files: int
    bytes: int
    lag: int | None
    held: tuple[TopicStatus, ...]


def latest(archive: Archive, site: Site) -> dict[str, int]:
    """The last index of each topic that is archived, as the site says. Raises if it is away."""
    with contextlib.closing(Logs(site)) as logs:
        names = logs.find(archive.pattern, fresh=True)
        return {name: log.last for name, log in logs.look(names).items() if log is not None}


def status(archive: Archive, now: Mapping[str, int] | None) -> ArchiveStatus:
    """What there is; `now` has the last index of each topic, None if nobody knows."""
    snapshot = open_table(archive).snapshot()
    marks = archive.marks()
    held = []
    for topic in sorted({file.topic for file in snapshot.files}):
        files = [file for file in snapshot.files if file.topic == topic]
        last = max(file.last for file in files)
        read = max(last, marks[topic].index if topic in marks else 0)
        held.append(
            TopicStatus(
                topic=topic,
                rows=sum(file.rows for file in files),
                first=min(file.first for file in files),
                last=last,
                since=min(file.since for file in files),
                until=max(file.until for file in files),
                files=len(files),
                bytes=sum(file.bytes for file in files),
                lag=None if now is None else max(now.get(topic, 0) - read, 0),
            )
        )
    others = {} if now is None else {name: last for name, last in now.items() if last}
    unread = [
        last - (marks[name].index if name in marks else 0)
        for name, last in others.items()
        if all(topic.topic != name for topic in held)
    ]
    return ArchiveStatus(
        folder=str(archive.path),
        topics=archive.about.topics,
        format=archive.about.table,
        payload=archive.about.payload,
        pid=holder(archive.path),
        version=snapshot.version,
        rows=sum(topic.rows for topic in held),
        files=len(snapshot.files),
        bytes=sum(topic.bytes for topic in held),
        lag=None if now is None else sum(topic.lag or 0 for topic in held) + sum(unread),
        held=tuple(held),
    )


def latest_or_none(archive: Archive, site: Site) -> tuple[dict[str, int] | None, str]:
    """The same, or None and why."""
    try:
        return latest(archive, site), ""
    except SkerryError as error:
        return None, error.what
