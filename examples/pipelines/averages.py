"""The mean of each sensor by the minute, once a minute is over for certain.

    skerry topic create sensors; skerry topic create averages
    skerry pipeline run examples/pipelines/averages.py

Readings may come ten seconds late; what comes later than that is left out.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import skerry


@skerry.pipeline(
    source="sensors/#",
    sink="averages",
    format="json",
    schema="sensor STRING, at TIMESTAMP, degrees DOUBLE",
)
def averages(readings: DataFrame) -> DataFrame:
    """`{"sensor": "roof", "at": "2026-01-01T12:00:00Z", "degrees": 10.0}` → the means."""
    windows = (
        readings.withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "1 minute"), "sensor")
        .agg(F.avg("degrees").alias("mean"), F.count("*").alias("readings"))
        .selectExpr("sensor", "window.start", "mean", "readings")
    )
    return windows.selectExpr("sensor AS key", "to_json(struct(*)) AS value")
