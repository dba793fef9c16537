"""Topic `a` to topic `b` and back into a table, in a session of any kind:

python -m tests.spark.roundtrip master|remote URL DATA CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import Any

import skerry.spark
from tests.spark.conftest import SMALL


def main(kind: str, url: str, data: str, checkpoint: str) -> None:
    """Run it, and print what came back and where the tasks ran."""
    config: dict[str, Any] = {"spark.sql.shuffle.partitions": 1}
    if kind == "master":
        config |= {**SMALL, "spark.executor.memory": "500m", "spark.executor.cores": 1}
        spark = skerry.spark.session("roundtrip", master=url, memory="600m", config=config)
    else:
        spark = skerry.spark.session("roundtrip", remote=url, config=config)
    try:
        source = spark.readStream.format("skerry").options(data=data, topic="a", start="earliest")
        frame = source.option("partitions", 2).load().select("value")
        writer = frame.writeStream.format("skerry").options(data=data, topic="b")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
        table = spark.read.format("skerry").options(data=data, topic="b", partitions=2).load()
        numbers = table.selectExpr("cast(cast(value AS STRING) AS LONG) AS n")
        count, total = numbers.selectExpr("count(n)", "sum(n)").collect()[0]
        late = table.where("index > 10").count()
        print(f"rows {count} sum {total} late {late} kind {type(spark).__module__}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
