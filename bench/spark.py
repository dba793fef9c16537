"""How many rows a second Spark gets out of topics and into one; how long an event takes through.

`skerry` is `format("skerry")`, reading index and value; `spark.source.whole.rows_s` is all columns.
`floor` is a source that has batches of the same columns and sizes ready: what Spark itself takes.
`natspy` is the source that one would write with nats-py: a pull consumer for each task,
`fetch(500)`, and a tuple for each event; it reads a quarter of the events. All variants count the
rows and add up the sizes of their payloads, in one session, at one or two tasks.
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import nats
import numpy as np
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import skerry.spark
from bench.harness import Benchmark, Figure, compared, interleave, measured, progress
from bench.stage import Stage, running_site
from skerry.engine.address import find_address
from skerry.errors import EngineMissing
from skerry.model.names import stream_of
from skerry.spark.java import find_java

EVENTS = {"128b": int(os.environ.get("SPARK_EVENTS", "600000")), "1k": 200_000}
SIZES = {"128b": 128, "1k": 1024}
FLOOR_BATCH = 4000
"""Rows of a batch of the floor; ours have about as many at 128 bytes."""
PACK = 1000
"""Records of a packed event."""
COLUMNS = "index LONG, value BINARY"
LATENCY_EVENTS = 50
"""The first fifth is thrown away."""
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "5"))


class Span(InputPartition):
    """A range of indexes."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class _Baseline(DataSource):
    def schema(self) -> str:
        return COLUMNS

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
                values = pa.array([b"x" * size] * FLOOR_BATCH, pa.binary())
                for first in range(partition.first, partition.last + 1, FLOOR_BATCH):
                    last = min(first + FLOOR_BATCH, partition.last + 1)
                    index = pa.array(np.arange(first, last))
                    value = values.slice(0, last - first)
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
        inbox_prefix=f"_INBOX_sk.{address.site}.{address.user}.natspy".encode(),
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


def _rows(spark: Any, format: str, expected: int, schema: str | None, /, **options: Any) -> float:
    reader = spark.read.format(format).options(**options)
    frame = (reader.schema(schema) if schema else reader).load()
    size = "length(value)" if "value" in frame.columns else "a"
    began = time.perf_counter()
    count = frame.selectExpr("count(1)", f"sum({size})").collect()[0][0]
    seconds = time.perf_counter() - began
    if count != expected:
        raise RuntimeError(f"{count} rows were read, {expected} are stored")
    return expected / seconds


def no_java() -> str | None:
    """Why Spark cannot run here, if it cannot."""
    try:
        find_java()
    except EngineMissing as error:
        return error.what
    return None


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
    main = (name, tasks) == ("128b", 2)
    group = "spark.source" if main else f"spark.source.{name}.{tasks}"
    id = f"{group}.rows_s"
    size, events = SIZES[name], EVENTS[name]

    async def run() -> list[Figure]:
        spark = _session()
        async with running_site() as stage, stage.topic() as topic:
            progress(f"{id}: filling a topic")
            await _fill(stage, topic, size, events)
            where = {"data": str(stage.data), "topic": topic}
            ours = {**where, "partitions": tasks}
            few = events // 4
            plain = {**where, "tasks": tasks, "size": size}
            variants = {
                "skerry": partial(_rows, spark, "skerry", events, COLUMNS, **ours),
                "floor": partial(_rows, spark, "floor", events, None, **plain, events=events),
                "natspy": partial(_rows, spark, "natspy", few, None, **plain, events=few),
            }
            if main:
                variants["whole"] = partial(_rows, spark, "skerry", events, None, **ours)
            samples = await interleave(
                id, {n: partial(asyncio.to_thread, v) for n, v in variants.items()}, ROUNDS
            )
        spark.stop()
        figures = [
            measured(id, samples["skerry"], "rows/s"),
            compared(f"{group}.vs_floor", samples, "floor"),
            compared(f"{group}.vs_natspy", samples, "natspy"),
        ]
        if main:
            figures.append(measured(f"{group}.whole.rows_s", samples["whole"], "rows/s"))
        return figures

    ids = [id, f"{group}.vs_floor", f"{group}.vs_natspy"]
    return Benchmark([*ids, f"{group}.whole.rows_s"] if main else ids, run, no_java)


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


async def _latency() -> list[Figure]:
    """From publish to the subscriber of the sink's topic, through a query that copies events. It
    runs without a pause between batches, and an event is published every quarter of a second."""
    spark = _session()
    async with running_site() as stage, stage.topic() as source, stage.topic() as sink:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:

            def start() -> Any:
                skerry.spark.register(spark)
                reader = spark.readStream.format("skerry").option("data", str(stage.data))
                # With `latest`, what is published before the query has looked would not be read.
                reader = reader.option("topic", source).option("start", "earliest")
                frame = reader.schema("value BINARY").load()
                writer = frame.writeStream.format("skerry").option("data", str(stage.data))
                writer = writer.option("topic", sink).option("checkpointLocation", checkpoint)
                return writer.start()

            query = await asyncio.to_thread(start)
            times: list[float] = []
            progress("spark.latency: publishing")
            async with stage.admin.subscribe(sink, from_index=1) as events:
                for _ in range(LATENCY_EVENTS):
                    await stage.admin.publish(source, str(time.perf_counter()))
                    event = await anext(aiter(events))
                    times.append(1000 * (time.perf_counter() - float(event.data)))
                    await asyncio.sleep(0.25)
            await asyncio.to_thread(query.stop)
    spark.stop()
    return [measured("spark.latency_p50_ms", times[LATENCY_EVENTS // 5 :], "ms")]


BENCHMARKS = [
    *(_source(name, tasks) for name in SIZES for tasks in (1, 2)),
    Benchmark(["spark.packed.rows_s"], _packed, no_java),
    Benchmark(["spark.sink.rows_s"], _sink, no_java),
    Benchmark(["spark.latency_p50_ms"], _latency, no_java),
]
