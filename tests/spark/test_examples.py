"""Three pipelines between topics, as users write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import skerry.spark
from skerry import Client
from skerry.testing import LocalSite

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Pipelines:
    """Runs pipelines between topics of a site, as far as the topics go now."""

    def __init__(self, spark: SparkSession, data: Path, checkpoint: Path) -> None:
        self.spark = spark
        self.data = str(data)
        self.checkpoint = str(checkpoint)

    def stream(self, topic: str, schema: str) -> DataFrame:
        """A topic with JSON payloads."""
        reader = self.spark.readStream.format("skerry").schema(schema)
        options = {"data": self.data, "topic": topic, "format": "json", "start": "earliest"}
        return reader.options(**options).load()

    def run(self, frame: DataFrame, sink: str, mode: str = "append") -> None:
        """Write a stream to a topic, each row as JSON."""
        skerry.spark.register(self.spark)  # this is a thread of the test's own
        rows = frame.select(F.to_json(F.struct("*")).alias("value"))
        writer = rows.writeStream.format("skerry").option("data", self.data).outputMode(mode)
        writer = writer.option("topic", sink).option("checkpointLocation", self.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


async def publish(client: Client, topic: str, *records: dict[str, Any]) -> None:
    """Records as JSON; times are seconds after noon."""
    for record in records:
        at = NOON + timedelta(seconds=record["at"])
        await client.publish(topic, json.dumps({**record, "at": at.isoformat()}))


async def results(client: Client, topic: str) -> list[dict[str, Any]]:
    """What a pipeline wrote."""
    return [json.loads(event.data) async for event in client.read(topic)]


async def test_windowed_averages_with_watermark(
    spark: SparkSession, site: LocalSite, client: Client, tmp_path: Path
) -> None:
    pipelines = Pipelines(spark, site.data, tmp_path)
    for topic in ("sensors", "averages"):
        await client.create_topic(topic)

    def averages() -> None:
        readings = pipelines.stream("sensors", "sensor STRING, at TIMESTAMP, degrees DOUBLE")
        windows = (
            readings.withWatermark("at", "10 seconds")
            .groupBy(F.window("at", "1 minute"), "sensor")
            .agg(F.avg("degrees").alias("mean"), F.count("*").alias("readings"))
        )
        pipelines.run(windows.selectExpr("sensor", "window.start", "mean", "readings"), "averages")

    await publish(
        client, "sensors",
        {"sensor": "roof", "at": 0, "degrees": 10.0},
        {"sensor": "roof", "at": 30, "degrees": 20.0},
        {"sensor": "hall", "at": 59, "degrees": 5.0},
        {"sensor": "roof", "at": 61, "degrees": 99.0},
    )  # fmt: skip
    await asyncio.to_thread(averages)
    assert await results(client, "averages") == []  # the first minute is not over for certain
    await publish(client, "sensors", {"sensor": "roof", "at": 200, "degrees": 0.0})
    await asyncio.to_thread(averages)
    await publish(client, "sensors", {"sensor": "hall", "at": 3, "degrees": 1000.0})  # too late
    await asyncio.to_thread(averages)
    found = {(row["sensor"], row["start"][11:16]): row for row in await results(client, "averages")}
    assert {key: (row["mean"], row["readings"]) for key, row in found.items()} == {
        ("roof", "12:00"): (15.0, 2), ("hall", "12:00"): (5.0, 1), ("roof", "12:01"): (99.0, 1)
    }  # fmt: skip


async def test_two_topics_joined(
    spark: SparkSession, site: LocalSite, client: Client, tmp_path: Path
) -> None:
    pipelines = Pipelines(spark, site.data, tmp_path)
    for topic in ("orders", "payments", "paid"):
        await client.create_topic(topic)

    def join() -> None:
        orders = pipelines.stream("orders", "order LONG, at TIMESTAMP, item STRING")
        payments = pipelines.stream("payments", "order LONG, at TIMESTAMP, sum DOUBLE")
        left = orders.withWatermark("at", "1 minute").alias("o")
        right = payments.withWatermark("at", "1 minute").alias("p")
        soon = F.expr("o.order = p.order AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
        pipelines.run(left.join(right, soon).select("o.order", "o.item", "p.sum"), "paid")

    await publish(
        client, "orders", {"order": 1, "at": 0, "item": "tea"}, {"order": 2, "at": 5, "item": "jam"}
    )
    await asyncio.to_thread(join)
    await publish(
        client, "payments", {"order": 2, "at": 20, "sum": 4.5}, {"order": 9, "at": 9, "sum": 1.0}
    )
    await asyncio.to_thread(join)
    await publish(client, "payments", {"order": 1, "at": 300, "sum": 3.0})  # too late for its order
    await asyncio.to_thread(join)
    assert await results(client, "paid") == [{"order": 2, "item": "jam", "sum": 4.5}]


class Sessions(StatefulProcessor):
    """Tells each user's visits apart: thirty seconds of silence end one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.visit = handle.getValueState("visit", "first DOUBLE, last DOUBLE, clicks LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        times = sorted(at.timestamp() for frame in rows for at in frame["at"])
        over = []
        first, last, clicks = self.visit.get() or (times[0], times[0], 0)
        for at in times:
            if at - last > 30:
                over.append((key[0], last - first, clicks))
                first, clicks = at, 0
            last, clicks = at, clicks + 1
        self.visit.update((first, last, clicks))
        yield pd.DataFrame(over, columns=["user", "seconds", "clicks"])

    def close(self) -> None:
        pass


async def test_a_stateful_session_detector(
    spark: SparkSession, site: LocalSite, client: Client, tmp_path: Path
) -> None:
    pipelines = Pipelines(spark, site.data, tmp_path)
    for topic in ("clicks", "visits"):
        await client.create_topic(topic)

    def detect() -> None:
        clicks = pipelines.stream("clicks", "user STRING, at TIMESTAMP")
        visits = clicks.groupBy("user").transformWithStateInPandas(
            Sessions(), "user STRING, seconds DOUBLE, clicks LONG", "Append", "None"
        )
        pipelines.run(visits, "visits")

    await publish(client, "clicks", *({"user": "ann", "at": at} for at in (0, 10, 25)))
    await publish(client, "clicks", {"user": "bob", "at": 5})
    await asyncio.to_thread(detect)
    assert await results(client, "visits") == []
    await publish(client, "clicks", {"user": "ann", "at": 40}, {"user": "ann", "at": 200})
    await publish(client, "clicks", {"user": "bob", "at": 500})
    await asyncio.to_thread(detect)
    found = await results(client, "visits")
    assert sorted(found, key=lambda row: row["user"]) == [
        {"user": "ann", "seconds": 40.0, "clicks": 4},
        {"user": "bob", "seconds": 0.0, "clicks": 1},
    ]
