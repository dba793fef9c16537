"""A pipeline in a process of its own, to be killed: running totals of topic `a`, into topic `b`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import skerry.spark
from tests.spark.conftest import SMALL

KEYS = 7
"""Keys that the numbers are added up by: their rest when divided by it."""


class Totals(StatefulProcessor):
    """Adds up the numbers of each key, and tells the totals after every batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "count LONG, sum LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        count, total = self.total.get() or (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + int(frame["n"].sum())
        self.total.update((count, total))
        yield pd.DataFrame({"rest": [key[0]], "count": [count], "sum": [total]})

    def close(self) -> None:
        pass


def main(data: str, checkpoint: str, rows: str) -> None:
    """Run for ever, with batches of so many rows. A task that fails is tried four times."""
    spark = skerry.spark.session("totals", master="local[2,4]", memory="600m", config=SMALL)
    source = spark.readStream.format("skerry").option("data", data).option("topic", "a")
    numbers = source.option("start", "earliest").option("maxRowsPerTrigger", rows).load()
    totals = (
        numbers.selectExpr("cast(cast(value AS string) AS long) AS n")
        .selectExpr("n", f"n % {KEYS} AS rest")
        .groupBy("rest")
        .transformWithStateInPandas(Totals(), "rest LONG, count LONG, sum LONG", "Append", "None")
    )
    lines = totals.selectExpr("to_json(struct(*)) AS value")
    writer = lines.writeStream.format("skerry").option("data", data).option("topic", "b")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
