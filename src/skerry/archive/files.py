"""What a task of an archive does: rows in, parquet files out, one for each topic and day.

A file is written under a name that readers pass over and renamed when it is whole. Its name is that
of batch, task and number, so that a batch that is run again replaces what it had written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skerry.archive.table import PARTITIONED, DataFile, partition_folder

GROUP_ROWS = 65_536
GROUP_BYTES = 16 * 2**20
"""Rows and bytes that are gathered before they are written as one row group."""
OPEN = 8
"""Files that a task has open at a time. Rows come in the order of their times, so few days, and of
a task one topic, are in work at once; this bounds the memory when it is otherwise."""

Writer = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def writer(root: str, batch: int) -> Writer:
    """A function for `mapInArrow` that writes its rows below `root` and returns a row in JSON for
    each file."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"part-{batch:08d}-{context.partitionId():04d}"
        parts = Parts(Path(root), name, str(context.taskAttemptId()))
        try:
            for rows in batches:
                parts.add(rows)
            files = parts.close()
        except BaseException:
            parts.discard()
            raise
        text = [msgspec.json.encode(file).decode() for file in files]
        yield pa.RecordBatch.from_arrays([pa.array(text, pa.string())], ["file"])

    return write


class Parts:
    """The files that one task writes."""

    def __init__(self, root: Path, name: str, attempt: str) -> None:
        self._root = root
        self._name = name
        self._attempt = attempt
        self._open: dict[tuple[str, str], _Part] = {}
        self._done: list[DataFile] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with a topic, an index and a time, among other columns."""
        if not rows.num_rows:
            return
        dates = pc.cast(rows["time"], pa.date32())
        for topic in pc.unique(rows["topic"]).to_pylist():
            of_topic = pc.equal(rows["topic"], topic)
            for day in pc.unique(dates.filter(of_topic)).to_pylist():
                mine = pc.and_(of_topic, pc.equal(dates, pa.scalar(day, pa.date32())))
                whole = pc.all(mine).as_py()
                self._part(topic, day.isoformat()).add(rows if whole else rows.filter(mine))

    def close(self) -> list[DataFile]:
        """Finish all files; return them."""
        for key in list(self._open):
            self._done.append(self._open.pop(key).close())
        return self._done

    def discard(self) -> None:
        """Leave nothing behind that is not whole."""
        for part in self._open.values():
            part.discard()

    def _part(self, topic: str, date: str) -> _Part:
        key = (topic, date)
        part = self._open.pop(key, None)
        if part is None:
            if len(self._open) >= OPEN:
                self._done.append(self._open.pop(next(iter(self._open))).close())
            name = f"{self._name}-{self._count:03d}.parquet"
            self._count += 1
            part = _Part(self._root, topic, date, name, self._attempt)
        self._open[key] = part  # the last one used is the last one closed
        return part


class _Part:
    """A file in the making."""

    def __init__(self, root: Path, topic: str, date: str, name: str, attempt: str) -> None:
        self._topic, self._date = topic, date
        self._root = root
        self._path = partition_folder(topic, date) / name
        self._fresh = root / self._path.parent / f".{name}.{attempt}.{os.getpid()}"
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._waiting_rows = self._waiting_bytes = 0
        self._index: tuple[int, int] | None = None
        self._time: tuple[datetime, datetime] | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        low, high = _ends(rows["index"])
        self._index = (
            (min(low, self._index[0]), max(high, self._index[1]))
            if self._index
            else (
                low,
                high,
            )
        )
        early, late = (_aware(time) for time in _ends(rows["time"]))
        self._time = (
            (min(early, self._time[0]), max(late, self._time[1]))
            if self._time
            else (
                early,
                late,
            )
        )
        self._waiting.append(rows.drop_columns([c for c in PARTITIONED if c in rows.schema.names]))
        self._rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        size = self._fresh.stat().st_size
        self._fresh.replace(self._root / self._path)
        assert self._index is not None
        assert self._time is not None
        return DataFile(
            path=str(self._path),
            topic=self._topic,
            date=self._date,
            rows=self._rows,
            bytes=size,
            first=self._index[0],
            last=self._index[1],
            since=self._time[0],
            until=self._time[1],
        )

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        self._fresh.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._fresh.parent.mkdir(parents=True, exist_ok=True)
            texts = [f.name for f in table.schema if pa.types.is_string(f.type)]
            self._writer = pq.ParquetWriter(
                self._fresh, table.schema, compression="zstd", use_dictionary=texts
            )
        self._writer.write_table(table, row_group_size=2 * GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _ends(column: pa.Array) -> tuple[Any, Any]:
    ends = pc.min_max(column).as_py()
    return ends["min"], ends["max"]


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)
