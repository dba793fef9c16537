"""One table of archive and topics: the archive below the boundary, the topic above it.

Theory of operation. An archive holds of each topic all events up to an index, its boundary, because
batches are taken from logs in order. A query looks at the table once; the files of that version
tell the boundaries. Rows above come from the logs, which begin where the archive ends: no event is
in both, and none is in neither. The archive may go on meanwhile, and publishers too: neither
changes the version, nor what is below a boundary.

It would not hold if a log were another one than was archived, or had aged out events that the
archive lacks. Both are errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skerry.archive.folder import Archive, Mark
from skerry.archive.run import spark_schema
from skerry.archive.table import DataFile, open_table
from skerry.errors import BadSetting
from skerry.model.pattern import Pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def view(
    spark: SparkSession,
    topic: str | None,
    archive: Path,
    live: bool,
    options: dict[str, str],
) -> DataFrame:
    """What `skerry.spark.history` returns."""
    held = Archive.open(archive)
    pattern = Pattern.parse(topic) if topic else held.pattern
    snapshot = open_table(held).snapshot()
    boundaries = snapshot.boundaries()
    for name in boundaries:
        _check_covered(held, pattern, name)
    files = [file for file in snapshot.files if pattern.subjects(file.topic) is not None]
    below = _archived(spark, held, files)
    if pattern != held.pattern:
        below = below.where(_condition(pattern))
    if not live:
        return below
    marks = held.marks()
    known = {name: _known(marks.get(name), last) for name, last in boundaries.items()}
    return below.unionByName(_newer(spark, held, pattern, known, options))


def _archived(spark: SparkSession, held: Archive, files: list[DataFile]) -> DataFrame:
    from pyspark.sql.types import DateType, StructType

    schema = spark_schema(held)
    columns = [*schema.fieldNames()]
    columns.insert(8, "date")
    schema = StructType([*schema.fields]).add("date", DateType())
    if not files:
        return spark.createDataFrame([], schema).select(*columns)
    reader = spark.read.schema(schema).option("basePath", str(held.path))
    return reader.parquet(*(str(held.path / file.path) for file in files)).select(*columns)


def _newer(
    spark: SparkSession,
    held: Archive,
    pattern: Pattern,
    known: dict[str, Mark],
    options: dict[str, str],
) -> DataFrame:
    from skerry.archive.newer import NewerSource

    spark.dataSource.register(NewerSource)
    schema = spark_schema(held)
    return (
        spark.read.format(NewerSource.name())
        .options(**options)
        .option("topic", pattern.text)
        .option("format", held.about.payload)
        .option("than", json.dumps(msgspec.to_builtins(known)))
        .schema(schema)
        .load()
        .selectExpr("*", "to_date(time) AS date")
    )


def _known(mark: Mark | None, last: int) -> Mark:
    return Mark(last, mark.epoch, mark.since) if mark else Mark(last)


def _check_covered(held: Archive, pattern: Pattern, topic: str) -> None:
    """An archive of a part of a log says nothing of its other parts."""
    wanted, there = pattern.subjects(topic), held.pattern.subjects(topic)
    if wanted is not None and there and pattern != held.pattern:
        raise BadSetting(
            f"{held.path} is an archive of {held.about.topics}, a part of the topic {topic}; "
            f"where {pattern.text} goes on in the topic cannot be told",
            f"Ask for {held.about.topics}, or archive {topic} as a whole.",
        )


def _condition(pattern: Pattern) -> Any:
    """The pattern as a filter on topic and sub-topic."""
    from pyspark.sql import functions as f

    name = f.concat_ws("/", "topic", "sub_topic")
    levels = pattern.text.split("/")
    open_ended = pattern.is_plain or levels[-1] == "#"
    if levels[-1] == "#":
        levels = levels[:-1]
    if not levels:
        return f.lit(True)
    text = "/".join("[^/]+" if level == "+" else level for level in levels)
    return name.rlike(f"^{text}(/.*)?$" if open_ended else f"^{text}$")
