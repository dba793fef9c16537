"""Tells each user's visits apart: thirty seconds of silence end one.

    skerry topic create clicks; skerry topic create visits
    skerry pipeline run examples/pipelines/visits.py

What is remembered of each user lives in Spark's state, and survives restarts with the checkpoint.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import skerry

SILENCE = 30.0
"""Seconds."""


class Visits(StatefulProcessor):
    """Remembers each user's visit, and tells of it when the next one begins."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.visit = handle.getValueState("visit", "first DOUBLE, last DOUBLE, clicks LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        times = sorted(at.timestamp() for frame in rows for at in frame["at"])
        over = []
        first, last, clicks = self.visit.get() or (times[0], times[0], 0)
        for at in times:
            if at - last > SILENCE:
                over.append((key[0], last - first, clicks))
                first, clicks = at, 0
            last, clicks = at, clicks + 1
        self.visit.update((first, last, clicks))
        yield pd.DataFrame(over, columns=["user", "seconds", "clicks"])

    def close(self) -> None:
        pass


@skerry.pipeline(source="clicks", sink="visits", format="json", schema="user STRING, at TIMESTAMP")
def visits(clicks: DataFrame) -> DataFrame:
    """`{"user": "ann", "at": "2026-01-01T12:00:00Z"}` → visits that are over."""
    over = clicks.groupBy("user").transformWithStateInPandas(
        Visits(), "user STRING, seconds DOUBLE, clicks LONG", "Append", "None"
    )
    return over.selectExpr("to_json(struct(*)) AS value")
