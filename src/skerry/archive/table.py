"""What an archive's table is, whatever its format: a list of parquet files that grows by batches.

A table promises: a commit is seen whole or not at all; a batch that is there already adds nothing;
a snapshot does not change. `tests/spark/test_archive_tables.py` holds each format to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec
import pyarrow as pa

from skerry.archive.folder import Archive

PARTITIONED = ("topic", "date")
"""The columns that folders stand for; files do not have them."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a table, and what it holds of one topic and day. Ends are included."""

    path: str
    """Below the archive's folder."""
    topic: str
    date: str
    rows: int
    bytes: int
    first: int
    last: int
    since: datetime
    until: datetime


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a table at one version."""

    version: int
    files: tuple[DataFile, ...]

    def boundaries(self) -> dict[str, int]:
        """The last index of each topic."""
        found: dict[str, int] = {}
        for file in self.files:
            found[file.topic] = max(found.get(file.topic, 0), file.last)
        return found


class Table(Protocol):
    """See the module."""

    def prepare(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it lacks."""

    def last_batch(self) -> int:
        """The number of the last batch that was committed; -1 if there was none."""

    def commit(self, batch: int, files: Sequence[DataFile]) -> bool:
        """Add the files of a batch; False if it is there already."""

    def snapshot(self) -> Snapshot:
        """What the table holds now."""


def open_table(archive: Archive) -> Table:
    """The table of an archive."""
    if archive.about.table == "delta":
        from skerry.archive.delta import DeltaArchive

        return DeltaArchive(archive.path, archive.about.id)
    from skerry.archive.manifest import ManifestTable

    return ManifestTable(archive.path)


def partition_folder(topic: str, date: str) -> Path:
    """Where files of a topic and day are, named as Hive does; a slash becomes %2F."""
    return Path(f"topic={quote(topic, safe='')}", f"date={date}")
