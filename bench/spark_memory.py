"""What a query keeps in memory while it runs: flat, or not.

A process of its own runs a query with state from topic to topic for ten minutes (`SPARK_MINUTES`),
at a steady rate of events. Every five seconds we add up what the driver (Python), its JVM and its
Python workers have in memory. `spark.memory.growth` is the median of the last fifth to that of the
second: in the first fifth code is compiled and caches are filled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time

import psutil
from pyspark.sql.functions import window

import skerry.spark
from bench.harness import Benchmark, Figure, measured, progress
from bench.spark import no_java
from bench.stage import MB, running_site

MINUTES = float(os.environ.get("SPARK_MINUTES", "10"))
RATE = 2000
"""Events a second."""
LOOK = 5.0
PARTS = ("driver", "jvm", "workers")


async def _flat() -> list[Figure]:
    looks: dict[str, list[float]] = {part: [] for part in PARTS}
    async with running_site() as stage, stage.topic() as source, stage.topic() as sink:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.spark_memory",
                str(stage.data), source, sink, checkpoint,
            )  # fmt: skip
            publishing = asyncio.create_task(_publish(stage.admin, source))
            try:
                while await stage.admin.latest_index(sink) == 0:
                    assert child.returncode is None, "the query ended"
                    await asyncio.sleep(0.1)
                began = time.monotonic()
                while (passed := time.monotonic() - began) < MINUTES * 60:
                    progress(f"spark.memory: {passed:.0f} s of {MINUTES * 60:.0f}")
                    for part, used in zip(PARTS, look(child.pid), strict=True):
                        looks[part].append(used)
                    assert not publishing.done()
                    await asyncio.sleep(LOOK)
                totals = await stage.admin.latest_index(sink)
            finally:
                publishing.cancel()
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
                await child.wait()
    whole = [sum(parts) for parts in zip(*looks.values(), strict=True)]
    fifth = max(len(whole) // 5, 1)
    growth = statistics.median(whole[-fifth:]) / statistics.median(whole[fifth : 2 * fifth])
    note = f"over {MINUTES:g} min at {RATE} events/s, {totals} totals written"
    return [
        measured("spark.memory.growth", [growth], "ratio", note),
        *(measured(f"spark.memory.{part}_mb", looks[part][-fifth:], "MB") for part in PARTS),
    ]


async def _publish(client: skerry.Client, topic: str) -> None:
    began = time.monotonic()
    async with client.publisher(topic) as publisher:
        number = 0
        while True:
            while number < (time.monotonic() - began) * RATE:
                await publisher.send(b"%d" % number)
                number += 1
            await asyncio.sleep(0.02)


def look(pid: int) -> tuple[float, float, float]:
    """What the driver, its JVM and its workers have in memory, in MB. Pages that they share are
    counted in parts."""
    driver = psutil.Process(pid)
    used = dict.fromkeys(PARTS, 0.0)
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            part = "jvm" if "java" in process.name() else "workers"
            size = process.memory_full_info().pss / MB
            used["driver" if process.pid == pid else part] += size
    return used["driver"], used["jvm"], used["workers"]


def run_query(data: str, source: str, sink: str, checkpoint: str) -> None:
    """Count and add up numbers by key and window, for ever."""
    spark = skerry.spark.session("memory", master="local[2]", memory="600m")
    reader = spark.readStream.format("skerry").options(data=data, topic=source, start="earliest")
    numbers = reader.load().selectExpr("time", "cast(cast(value AS string) AS long) % 100 AS key")
    late = numbers.withWatermark("time", "2 seconds")
    totals = late.groupBy(window("time", "5 seconds"), "key").count()
    lines = totals.selectExpr("to_json(struct(*)) AS value")
    writer = lines.writeStream.format("skerry").options(data=data, topic=sink)
    writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second")
    writer.start().awaitTermination()


BENCHMARKS = [
    Benchmark(
        ["spark.memory.growth", *(f"spark.memory.{part}_mb" for part in PARTS)], _flat, no_java
    )
]

if __name__ == "__main__":
    run_query(*sys.argv[1:])
