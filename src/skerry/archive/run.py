"""An archive at work: a streaming query whose batches become versions of a table.

Exactly once. Spark writes down how far a batch goes before it runs it, and runs it again with the
same rows if it was cut short; the table takes a batch once. So whatever is killed when, each event
is in the table once. What is read from a topic is what a quorum of its replicas holds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from skerry.archive.faults import translated
from skerry.archive.files import writer
from skerry.archive.folder import Archive
from skerry.archive.table import DataFile, Table, open_table
from skerry.errors import BadSetting, FolderCorrupt
from skerry.spark.columns import TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS = 500_000
BYTES = "256MB"
"""What one batch takes at the most: about that much is done again after a crash."""
TASKS = 4
"""Tasks of a large batch, and so files of a topic. Fixed, for a batch that is run again, also on
another machine, must be cut as it was."""
LOOK = 0.1
"""Seconds between looks at the query."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch."""

    batch: int
    rows: int
    files: int
    bytes: int
    seconds: float
    behind: int | None
    """Events that topics hold beyond it; None: not known."""
    until: datetime | None
    """The time of the newest event that was archived."""


class Archiver:
    """A running archive. `start` it, take its `batches`, and `stop` it."""

    def __init__(self, spark: SparkSession, archive: Archive, source: dict[str, str]) -> None:
        self._spark = spark
        self._archive = archive
        self._source = source
        self._table: Table = open_table(archive)
        self._query: Any = None
        self._done: dict[int, Batch] = {}
        self._busy = threading.Lock()
        self._stopping = False
        self._fault: BaseException | None = None

    def prepare(self, ddl: str | None) -> None:
        """Check the fields and the checkpoint, then make the table or add columns to it."""
        fields = self._fields(ddl)
        self._check_checkpoint()
        self._archive.save(fields)
        self._table.prepare(arrow_schema(self._archive))

    def start(self, *, once: bool, trigger: float) -> None:
        """Begin, or go on; with `once`, up to what topics hold now."""
        try:
            self._start(once, trigger)
        except Exception as error:
            raise translated(error, "the archive", self._archive.path) from None

    def _start(self, once: bool, trigger: float) -> None:
        reader = (
            self._spark.readStream.format("skerry")
            .options(**self._source)
            .option("topic", self._archive.about.topics)
            .option("start", "earliest")
            .option("format", self._archive.about.payload)
            .option("maxRowsPerTrigger", ROWS)
            .option("maxBytesPerTrigger", BYTES)
            .option("partitions", TASKS)
            .schema(spark_schema(self._archive))
        )
        stream = (
            reader.load()
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self._archive.checkpoint))
        )
        if once:
            stream = stream.trigger(availableNow=True)
        else:
            stream = stream.trigger(processingTime=f"{int(trigger * 1000)} milliseconds")
        # It prints what the callback raises; we raise it ourselves.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._query = stream.start()

    def batches(self, ended: Callable[[], bool]) -> Iterator[Batch]:
        """The batches as they are done, until `ended` or all is done. Raises what made it fail."""
        seen = -1
        while True:
            running = self._query.isActive and not ended()
            for progress in self._query.recentProgress:
                if progress.batchId > seen and progress.batchId in self._done:
                    seen = progress.batchId
                    batch = self._done.pop(seen)
                    yield msgspec.structs.replace(batch, behind=_behind(progress.sources[0]))
            if not running:
                break
            time.sleep(LOOK)
        if (error := self._query.exception()) is not None and not self._stopping:
            raise translated(self._fault or error, "the archive", self._archive.path)

    def stop(self) -> None:
        """End it behind the batch that is being written."""
        self._stopping = True
        with self._busy:
            pass
        if self._query is not None:
            with contextlib.suppress(Exception):  # it may have ended by itself
                self._query.stop()

    def _write(self, rows: DataFrame, number: int) -> None:
        with self._busy:
            if self._stopping:
                raise RuntimeError("stopping")
            try:
                self._write_batch(rows, number)
            except BaseException as error:
                self._fault = error
                raise

    def _write_batch(self, rows: DataFrame, number: int) -> None:
        if number <= self._table.last_batch():
            return  # it was killed between the table's commit and Spark's
        began = time.monotonic()
        written = rows.mapInArrow(writer(str(self._archive.path), number), "file STRING")
        files = [msgspec.json.decode(row[0], type=DataFile) for row in written.collect()]
        files.sort(key=lambda file: (file.topic, file.first))
        if files:
            self._table.commit(number, files)
        self._done[number] = Batch(
            batch=number,
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.bytes for file in files),
            seconds=time.monotonic() - began,
            behind=None,
            until=max((file.until for file in files), default=None),
        )

    def _fields(self, ddl: str | None) -> dict[str, Any] | None:
        """The decoded fields: those that were, then the new ones. Raises if they do not fit."""
        about = self._archive.about
        if ddl is None:
            if about.payload != "binary" and about.fields is None:
                raise BadSetting(
                    f"payloads in {about.payload} need a schema",
                    "Name their fields: --schema 'sensor STRING, degrees DOUBLE'.",
                )
            return about.fields
        if about.payload == "binary":
            raise BadSetting(
                "a schema is for payloads that are decoded", "Give --payload json, say, as well."
            )
        given = _parse(ddl)
        known = {field["name"]: field for field in (about.fields or {}).get("fields", [])}
        for field in given.jsonValue()["fields"]:
            name, before = field["name"], known.get(field["name"])
            if name in TYPES or name == "date" or name.startswith("_"):
                raise BadSetting(
                    f"a field cannot be called {name!r} in an archive",
                    f"These are columns already: {', '.join(TYPES)}, date; and none begins with _.",
                )
            if before is not None and before["type"] != field["type"]:
                raise BadSetting(
                    f"the archive has {name} as {before['type']}, not {field['type']}",
                    "Columns can be added, not changed; choose another folder.",
                )
            known[name] = {**field, "nullable": True}
        return {"type": "struct", "fields": list(known.values())}

    def _check_checkpoint(self) -> None:
        if self._table.last_batch() >= 0 and not (self._archive.checkpoint / "offsets").is_dir():
            raise FolderCorrupt(
                f"the checkpoint in {self._archive.own} is gone, and nothing else tells how far "
                "the topics were read",
                "Restore it from a backup, or archive into another folder.",
            )


def spark_schema(archive: Archive) -> StructType:
    """The columns that are read from topics."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    fields = StructType.fromJson(archive.about.fields).fields if archive.about.fields else []
    return StructType([*from_arrow_schema(pa.schema(list(TYPES.items()))).fields, *fields])


def arrow_schema(archive: Archive) -> pa.Schema:
    """The columns of the table."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(spark_schema(archive), timezone="UTC")
    at = len(TYPES)
    return schema.insert(at, pa.field("date", pa.date32()))


def clean(archive: Archive) -> None:
    """Remove what tasks that were killed left half written. Only while nobody archives."""
    for file in archive.path.glob("topic=*/date=*/.part-*"):
        file.unlink(missing_ok=True)


def _parse(ddl: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise BadSetting(
            f"the schema {ddl!r} cannot be read: {str(error).splitlines()[0]}",
            "Write it as 'sensor STRING, degrees DOUBLE'.",
        ) from None
    return schema if isinstance(schema, StructType) else StructType().add("value", schema)


def _behind(source: Any) -> int | None:
    """Events beyond a batch, by what Spark says of its source; of a batch that is run again it says
    nothing."""
    latest, end = json.loads(source.latestOffset or "null"), json.loads(source.endOffset or "null")
    if latest is None or end is None:
        return None
    return sum(
        max(int(mark["index"]) - int(end.get(topic, {"index": 0})["index"]), 0)
        for topic, mark in latest.items()
    )
