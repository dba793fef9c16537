"""`format("skerry")`: the data source that Spark knows, and reading a batch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema

from skerry.engine.address import Address
from skerry.errors import Unavailable
from skerry.spark.columns import Builder
from skerry.spark.decode import Decoder, check_schema, default_schema
from skerry.spark.fetch import Fetch, Range, aged_out
from skerry.spark.logs import Log, Logs
from skerry.spark.options import Place, SourceOptions, read_sink, read_source
from skerry.spark.plan import LEAST, Bounds, cut, narrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KINDS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


class SkerrySource(DataSource):
    """Topics as tables and streams, and as what is written to. See docs/spark.md for options."""

    @classmethod
    def name(cls) -> str:
        return "skerry"

    def schema(self) -> StructType:
        return default_schema(read_source(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_source(self.options), schema)

    def streamReader(self, schema: StructType) -> Any:
        from skerry.spark.stream import StreamReader

        return StreamReader(read_source(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from skerry.spark.sink import BatchWriter

        return BatchWriter(read_sink(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from skerry.spark.sink import StreamWriter

        return StreamWriter(read_sink(self.options), schema)


class Piece(InputPartition):
    """A range of one log for one task, and where to read it: the driver looked that up, for a
    worker on another machine has no data folder."""

    def __init__(self, addresses: Sequence[Address], range: Range) -> None:
        self.addresses = list(addresses)
        self.range = range


class TaskReader:
    """What the tasks of batches and streams do."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self.options = options
        self.schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a piece, as Arrow batches."""
        if not isinstance(partition, Piece):
            return
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        decoder = Decoder(self.options, wanted)
        builder = Builder(partition.range.topic, decoder.needs)
        fetch = Fetch(partition.addresses, partition.range, self.options.timeout)
        for data, frames in fetch:
            batch = decoder.batch(builder.build(data, frames))
            if batch.num_rows:
                yield batch


class BatchReader(TaskReader, DataSourceReader):
    """Reads what is there between two places."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over filters on topic, index and time. Those on time are kept besides: clocks of
        two homes may differ, so that times do not always grow with indexes."""
        for filter in filters:
            kind = _KINDS.get(type(filter))
            attribute: tuple[str, ...] = getattr(filter, "attribute", ())
            bounds = None
            if kind is not None and len(attribute) == 1:
                value = getattr(filter, "value", None)
                bounds = narrow(self.bounds, kind, attribute[0], value)
            if bounds is None:
                yield filter
                continue
            self.bounds = bounds
            if attribute[0] == "time":
                yield filter

    def partitions(self) -> list[InputPartition]:
        """Cut what is to be read into ranges of indexes."""
        options = self.options
        with contextlib.closing(Logs(options)) as logs:
            names = logs.find(options.topic, fresh=True)
            if self.bounds.topics is not None:
                names = [name for name in names if name in self.bounds.topics]
            ranges: dict[str, tuple[int, int]] = {}
            for topic, log in self._look(logs, names).items():
                first, last = self._range(logs, log)
                if first <= last:
                    ranges[topic] = (first, last)
            tasks = options.partitions or os.cpu_count() or 2
            pieces = [
                Piece(logs.addresses, range_of(options, logs.in_fabric, *piece))
                for piece in cut(ranges, tasks, 1 if options.partitions else LEAST)
            ]
        return list(pieces) or [InputPartition(None)]

    def _look(self, logs: Logs, names: list[str]) -> dict[str, Log]:
        """The logs, once the site has a copy of each."""
        deadline = time.monotonic() + self.options.timeout
        while True:
            found = {name: log for name, log in logs.look(names).items() if log is not None}
            missing = set(names) - set(found)
            if not missing:
                return found
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the site has no copy of {min(missing)} yet",
                    "Look with `skerry doctor` whether its home can be reached.",
                )
            time.sleep(0.05)

    def _range(self, logs: Logs, log: Log) -> tuple[int, int]:
        options, bounds = self.options, self.bounds
        start = options.start or Place("earliest")
        first = place_of(logs, log, start)
        if start.kind == "index" and first < log.first and options.fail_on_data_loss:
            raise aged_out(log.topic, first, log.first)
        first = max(first, log.first, bounds.first)
        last = log.last
        if options.end.kind == "index":
            last = min(last, options.end.index)
        elif options.end.kind == "time" and options.end.time is not None:
            after = options.end.time + timedelta(microseconds=1)
            last = min(last, logs.index_at(log.topic, after) - 1)
        elif options.end.kind == "earliest":
            last = log.first
        if bounds.last is not None:
            last = min(last, bounds.last)
        if bounds.since is not None:
            first = max(first, logs.index_at(log.topic, bounds.since))
        if bounds.until is not None:
            after = bounds.until + timedelta(microseconds=1)
            last = min(last, logs.index_at(log.topic, after) - 1)
        return first, last


def place_of(logs: Logs, log: Log, place: Place) -> int:
    """The index of the first event to be read from `place` on."""
    if place.kind == "index":
        return place.index
    if place.kind == "time" and place.time is not None:
        return logs.index_at(log.topic, place.time)
    return log.last + 1 if place.kind == "latest" else log.first


def range_of(options: SourceOptions, in_fabric: bool, topic: str, first: int, last: int) -> Range:
    """A range of a topic, with what of it the pattern means."""
    subjects = options.topic.subjects(topic) or ()
    return Range(topic, first, last, subjects, in_fabric, options.fail_on_data_loss)
