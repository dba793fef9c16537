"""How many rows a second an archive takes from a topic into its table.

`skerry` is what `skerry archive start` does: source, files written by tasks, one transaction of the
table for each batch. `floor` is the same stream written by Spark's own parquet sink, which keeps
rows once as well, by a log of its own, and knows neither topics nor days.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import skerry.spark
from bench.harness import Benchmark, Figure, compared, interleave, measured, progress
from bench.spark import no_java
from bench.stage import running_site
from skerry.archive.folder import Archive
from skerry.archive.run import ROWS, TASKS, Archiver
from skerry.archive.table import open_table

EVENTS = int(os.environ.get("ARCHIVE_EVENTS", "400000"))
SIZE = 128
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "5"))


def _archive(spark: Any, data: Path, topic: str) -> float:
    folder = Path(tempfile.mkdtemp(prefix="archive-"))
    skerry.spark.register(spark)
    archive = Archive.create(folder / "a", topic, "delta", "binary")
    archiver = Archiver(spark, archive, {"data": str(data)})
    archiver.prepare(None)
    began = time.perf_counter()
    archiver.start(once=True, trigger=1.0)
    for _ in archiver.batches(lambda: False):
        pass
    seconds = time.perf_counter() - began
    count = sum(file.rows for file in open_table(archive).snapshot().files)
    shutil.rmtree(folder)
    return _rate(count, seconds)


def _plain(spark: Any, data: Path, topic: str) -> float:
    folder = Path(tempfile.mkdtemp(prefix="archive-"))
    skerry.spark.register(spark)
    stream = (
        spark.readStream.format("skerry")
        .options(data=str(data), topic=topic, start="earliest")
        .options(maxRowsPerTrigger=ROWS, partitions=TASKS)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    began = time.perf_counter()
    stream.start(str(folder / "out")).awaitTermination()
    seconds = time.perf_counter() - began
    count = spark.read.parquet(str(folder / "out")).count()
    shutil.rmtree(folder)
    return _rate(count, seconds)


def _rate(count: int, seconds: float) -> float:
    if count != EVENTS:
        raise RuntimeError(f"{count} rows were written, {EVENTS} are stored")
    return count / seconds


async def _run() -> list[Figure]:
    spark = skerry.spark.session("bench", master="local[2]", memory="1g")
    async with running_site() as stage, stage.topic() as topic:
        progress("spark.archive: filling a topic")
        async with stage.admin.publisher(topic) as publisher:
            for _ in range(EVENTS):
                await publisher.send(b"x" * SIZE)
        await stage.check(topic, EVENTS)
        variants = {"skerry": _archive, "floor": _plain}
        samples = await interleave(
            "spark.archive",
            {
                name: partial(asyncio.to_thread, work, spark, stage.data, topic)
                for name, work in variants.items()
            },
            ROUNDS,
        )
    spark.stop()
    return [
        measured("spark.archive.rows_s", samples["skerry"], "rows/s"),
        compared("spark.archive.vs_plain", samples, "floor"),
    ]


BENCHMARKS = [Benchmark(["spark.archive.rows_s", "spark.archive.vs_plain"], _run, no_java)]
