"""Format delta: a Delta table, written without Delta's own jars.

Tasks write parquet files; one transaction a batch adds them. The transaction carries (archive,
batch), and Delta keeps the last one of each archive: a batch that comes again adds nothing. Adding
files and compacting others do not conflict, so `compact` may run beside an archive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from skerry.archive.table import PARTITIONED, DataFile, Snapshot
from skerry.errors import EngineMissing, FolderCorrupt, get_extra

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What compacting did."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    removed: int
    """Files that were deleted: replaced earlier than the retention says."""


class DeltaArchive:
    """The Delta table of an archive."""

    def __init__(self, path: Path, archive: str) -> None:
        check_installed()
        self._path = path
        self._archive = archive
        self._table: DeltaTable | None = None

    def prepare(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it lacks."""
        from deltalake import DeltaTable, Schema

        if not DeltaTable.is_deltatable(str(self._path)):
            DeltaTable.create(
                str(self._path),
                Schema.from_arrow(schema),
                partition_by=list(PARTITIONED),
                name="skerry",
                # Replaced files are deleted by `compact` only, and the log is short enough.
                configuration={"delta.checkpointInterval": "50"},
            )
            return
        table = self._current()
        have = {field.name for field in table.schema().fields}
        lacking = [field for field in Schema.from_arrow(schema).fields if field.name not in have]
        if lacking:
            table.alter.add_columns(lacking)

    def last_batch(self) -> int:
        """The number of the last batch that was committed; -1 if there was none."""
        if not self._exists():
            return -1
        last = self._current().transaction_version(self._archive)
        return -1 if last is None else int(last)

    def commit(self, batch: int, files: Sequence[DataFile]) -> bool:
        """Add the files of a batch; False if it is there already."""
        from deltalake import CommitProperties, Transaction

        if batch <= self.last_batch():
            return False
        table = self._current()
        table.create_write_transaction(
            [_action(file) for file in files],
            mode="append",
            schema=table.schema(),
            partition_by=list(PARTITIONED),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(self._archive, batch)]
            ),
        )
        return True

    def snapshot(self) -> Snapshot:
        """What the table holds now."""
        if not self._exists():
            return Snapshot(version=-1, files=())
        table = self._current()
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return Snapshot(
            version=table.version(),
            files=tuple(_file(action) for action in actions if action["num_records"] != 0),
        )

    def compact(self, target: int, retention: float) -> Compacted:
        """Merge small files of each topic and day into such of about `target` bytes, and delete
        those that were replaced more than `retention` seconds ago."""
        before = self.snapshot().files
        table = self._current()
        table.optimize.compact(target_size=target, max_concurrent_tasks=1)
        after = self.snapshot().files
        removed = self._current().vacuum(
            retention_hours=max(int(retention // 3600), 0),
            dry_run=False,
            enforce_retention_duration=False,
        )
        return Compacted(
            files_before=len(before),
            files_after=len(after),
            bytes_before=sum(file.bytes for file in before),
            bytes_after=sum(file.bytes for file in after),
            removed=len(removed),
        )

    def _exists(self) -> bool:
        from deltalake import DeltaTable

        return self._table is not None or bool(DeltaTable.is_deltatable(str(self._path)))

    def _current(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if self._table is None:
                self._table = DeltaTable(str(self._path))
            else:
                self._table.update_incremental()
        except DeltaError as error:
            raise FolderCorrupt(
                f"the table in {self._path} cannot be read: {error}", "Restore it from a backup."
            ) from None
        return self._table


def check_installed() -> None:
    """Raise `EngineMissing` where the library is not."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise EngineMissing(
            f"the library deltalake is not installed ({error})",
            f"{get_extra('spark')} Or archive with --format parquet.",
        ) from None


def _action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": file.rows,
        "minValues": {"index": file.first, "time": _text(file.since)},
        "maxValues": {"index": file.last, "time": _text(file.until)},
        "nullCount": {"index": 0, "time": 0},
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={"topic": file.topic, "date": file.date},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _file(action: dict[str, Any]) -> DataFile:
    return DataFile(
        path=unquote(action["path"]),
        topic=action["partition.topic"],
        date=str(action["partition.date"]),
        rows=action["num_records"],
        bytes=action["size_bytes"],
        first=action["min.index"],
        last=action["max.index"],
        since=_time(action["min.time"]),
        until=_time(action["max.time"]),
    )


def _text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)
