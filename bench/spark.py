"""How many rows a second Spark gets out of topics, and into one.

`skerry` is `format("skerry")`. `floor` is a source that makes Arrow batches of the same columns and
sizes out of nothing: what Spark itself takes. `natspy` is the source that one would write with
nats-py: a pull consumer for each task, `fetch(500)`, and a tuple for each event. All variants count
the rows and add up the sizes of their payloads, in one session, at one or two tasks.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import nats
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import skerry.spark
from bench.harness import Benchmark, Figure, compared, interleave, measured, progress
from bench.stage import Stage, running_site
from skerry.engine.address import find_address
from skerry.model.names import stream_of

EVENTS = {"128b": int(os.environ.get("SPARK_EVENTS", "600000")), "1k": 200_000}
SIZES = {"128b": 128, "1k": 1024}
PACK = 1000
"""Records of a packed event."""
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "5"))


class Span(InputPartition):
    """A range of indexes."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class _Baseline(DataSource):
    def schema(self) -> str:
        return "index LONG, value BINARY"

    def spans(self) -> list[InputPartition]:
        events, tasks = int(self.options["events"]), int(self.options["tasks"])
        edges = [events * n // tasks for n in range(tasks + 1)]
        return [Span(edges[n] + 1, edges[n + 1]) for n in range(tasks)]


class Floor(_Baseline):
    """Batches out of nothing."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def reader(self, schema: Any) -> DataSourceReader:
        source, size = self, int(self.options["size"])

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return source.spans()

            def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
                for first in range(partition.first, partition.last + 1, 4000):
                    last = min(first + 3999, partition.last)
                    index = pa.array(range(first, last + 1), pa.int64())
                    value = pa.array([b"x" * size] * len(index), pa.binary())
                    yield pa.RecordBatch.from_arrays([index, value], ["index", "value"])

        return Reader()


class NatsPy(_Baseline):
    """The source that one would write with nats-py."""

    @classmethod
    def name(cls) -> str:
        return "natspy"

    def reader(self, schema: Any) -> DataSourceReader:
        source, options = self, dict(self.options)

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return source.spans()

            def read(self, partition: Any) -> Iterator[tuple[int, bytes]]:
                loop = asyncio.new_event_loop()
                fetch = _fetch(options["data"], options["topic"], partition)
                while batch := loop.run_until_complete(anext(fetch, None)):
                    yield from batch
                loop.close()

        return Reader()


async def _fetch(data: str, topic: str, span: Span) -> Any:
    address = find_address(data)
    client = await nats.connect(
        f"nats://{address.host}:{address.port}",
        user=address.user,
        password=address.password,
        inbox_prefix=f"_INBOX.{address.site}.{address.user}.natspy".encode(),
    )
    config = ConsumerConfig(
        name=f"natspy-{span.first}-{time.time_ns()}",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=span.first,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        inactive_threshold=60,
        num_replicas=1,
    )
    jetstream = client.jetstream()
    made = await jetstream.add_consumer(stream_of(topic), config)
    subscription = await jetstream.pull_subscribe_bind(made.name, stream_of(topic))
    left = span.last - span.first + 1
    while left:
        messages = await subscription.fetch(min(500, left))
        left -= len(messages)
        yield [(message.metadata.sequence.stream, message.data) for message in messages]
    await client.close()


def _rows(spark: Any, format: str, expected: int, schema: str | None, **options: Any) -> float:
    reader = spark.read.format(format).options(**options)
    frame = (reader.schema(schema) if schema else reader).load()
    size = "length(value)" if "value" in frame.columns else "a"
    began = time.perf_counter()
    count = frame.selectExpr("count(1)", f"sum({size})").collect()[0][0]
    seconds = time.perf_counter() - began
    if count != expected:
        raise RuntimeError(f"{count} rows were read, {expected} are stored")
    return expected / seconds


def _session() -> Any:
    spark = skerry.spark.session("bench", master="local[2]", memory="1g")
    for source in (Floor, NatsPy):
        spark.dataSource.register(source)
    return spark


async def _fill(stage: Stage, topic: str, size: int, events: int) -> None:
    async with stage.admin.publisher(topic) as publisher:
        for _ in range(events):
            await publisher.send(b"x" * size)
    await stage.check(topic, events)


def _source(name: str, tasks: int) -> Benchmark:
    id = "spark.source.rows_s" if (name, tasks) == ("128b", 2) else f"spark.source.{name}.{tasks}"
    size, events = SIZES[name], EVENTS[name]

    async def run() -> list[Figure]:
        spark = _session()
        async with running_site() as stage, stage.topic() as topic:
            progress(f"{id}: filling a topic")
            await _fill(stage, topic, size, events)
            where = {"data": str(stage.data), "topic": topic}
            plain = {**where, "events": events, "tasks": tasks, "size": size}
            variants = {
                "skerry": partial(_rows, spark, "skerry", events, None, **where, partitions=tasks),
                "floor": partial(_rows, spark, "floor", events, None, **plain),
                "natspy": partial(_rows, spark, "natspy", events, None, **plain),
            }
            samples = await interleave(
                id, {n: partial(asyncio.to_thread, v) for n, v in variants.items()}, ROUNDS
            )
        spark.stop()
        vs = "spark.source" if id.endswith("rows_s") else id
        return [
            measured(id, samples["skerry"], "rows/s"),
            compared(f"{vs}.vs_floor", samples, "floor"),
            compared(f"{vs}.vs_natspy", samples, "natspy"),
        ]

    vs = "spark.source" if id.endswith("rows_s") else id
    return Benchmark([id, f"{vs}.vs_floor", f"{vs}.vs_natspy"], run)


async def _packed() -> list[Figure]:
    records, events = PACK * 1000, 1000
    table = pa.table({"a": pa.array(range(PACK), pa.int64()), "b": pa.array(["x" * 20] * PACK)})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    spark = _session()
    async with running_site() as stage, stage.topic() as topic:
        async with stage.admin.publisher(topic) as publisher:
            for _ in range(events):
                await publisher.send(buffer.getvalue())
        options = {"data": str(stage.data), "topic": topic, "format": "arrow", "partitions": 2}
        schema = "a LONG, b STRING"
        read = partial(_rows, spark, "skerry", records, schema, **options)
        samples = await interleave(
            "spark.packed", {"skerry": partial(asyncio.to_thread, read)}, ROUNDS
        )
    spark.stop()
    return [measured("spark.packed.rows_s", samples["skerry"], "rows/s")]


async def _sink() -> list[Figure]:
    rows = 100_000
    spark = _session()
    async with running_site() as stage, stage.topic() as topic:

        def write() -> float:
            skerry.spark.register(spark)
            frame = spark.range(rows).selectExpr("rpad(cast(id AS string), 128, 'x') AS value")
            writer = frame.coalesce(2).write.format("skerry").mode("append")
            began = time.perf_counter()
            writer.option("data", str(stage.data)).option("topic", topic).save()
            return rows / (time.perf_counter() - began)

        samples = await interleave(
            "spark.sink", {"skerry": partial(asyncio.to_thread, write)}, ROUNDS
        )
    spark.stop()
    return [measured("spark.sink.rows_s", samples["skerry"], "rows/s")]


BENCHMARKS = [
    *(_source(name, tasks) for name in SIZES for tasks in (1, 2)),
    Benchmark(["spark.packed.rows_s"], _packed),
    Benchmark(["spark.sink.rows_s"], _sink),
]
