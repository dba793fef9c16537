"""Running totals of publishers that count 0, 1, 2, …: how many events came, and how many did not.

`make demo` ends with this one, over what it published while it killed sites.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import skerry


class Totals(StatefulProcessor):
    """Adds up the numbers of each publisher, and tells after every batch how far it is."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "events LONG, sum LONG, last LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        events, total, last = self.total.get() or (0, 0, -1)
        for frame in rows:
            events, total = events + len(frame), total + int(frame["n"].sum())
            last = max(last, int(frame["n"].max()))
        self.total.update((events, total, last))
        missing = last + 1 - events
        yield pd.DataFrame(
            {"publisher": [key[0]], "events": [events], "sum": [total], "missing": [missing]}
        )

    def close(self) -> None:
        pass


@skerry.pipeline(source={"sensors": "sensors", "alarms": "alarms"}, sink="totals", format="text")
def totals(sensors: DataFrame, alarms: DataFrame) -> DataFrame:
    """Each publisher has a sub-topic of its own."""
    numbers = sensors.union(alarms).selectExpr(
        "concat(topic, '/', sub_topic) AS publisher", "cast(value AS LONG) AS n"
    )
    sums = numbers.groupBy("publisher").transformWithStateInPandas(
        Totals(), "publisher STRING, events LONG, sum LONG, missing LONG", "Append", "None"
    )
    return sums.selectExpr("publisher AS key", "to_json(struct(*)) AS value")
