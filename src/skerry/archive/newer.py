"""What topics hold beyond an archive, as a data source for `history`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from skerry.archive.folder import Mark
from skerry.errors import TopicError, UnknownTopic
from skerry.model.promotion import is_forked
from skerry.spark.fetch import aged_out
from skerry.spark.logs import Log, Logs
from skerry.spark.options import SourceOptions, read_source
from skerry.spark.source import BatchReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class NewerSource(DataSource):
    """Topics from behind a mark of each on; the option `than` has the marks."""

    @classmethod
    def name(cls) -> str:
        return "skerry_newer"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        marks = msgspec.convert(json.loads(options.pop("than")), dict[str, Mark])
        return NewerReader(read_source(options), schema, marks)


class NewerReader(BatchReader):
    """Reads what comes behind the marks."""

    def __init__(self, options: SourceOptions, schema: StructType, marks: dict[str, Mark]) -> None:
        super().__init__(options, schema)
        self.marks = marks

    def partitions(self) -> list[InputPartition]:
        """The ranges to read. Of a topic that was deleted the archive is what is left."""
        try:
            return super().partitions()
        except UnknownTopic:
            if not self.marks:
                raise
            return [InputPartition(None)]

    def _range(self, logs: Logs, log: Log) -> tuple[int, int]:
        first, last = super()._range(logs, log)
        mark = self.marks.get(log.topic)
        if mark is None:
            return first, last
        check_same(mark, log)
        if mark.index + 1 < log.first:
            raise aged_out(log.topic, mark.index + 1, log.first)
        return max(first, mark.index + 1), last


def check_same(mark: Mark, log: Any) -> None:
    """Raise `TopicError` if `log` is not the one that was archived up to `mark`."""
    anew = bool(log.since and mark.since and log.since != mark.since)
    forked = bool(log.lineage) and is_forked(mark.epoch, mark.index, log.lineage)
    if anew or forked or (not log.lineage and mark.index > log.last):
        raise TopicError(
            f"topic {log.topic} is not the one that was archived up to index {mark.index}: it was "
            "deleted and made anew, or lost those events with its home",
            "Read the archive alone (live=False, or --no-live), and archive the topic as it is now "
            "into another folder.",
        )
