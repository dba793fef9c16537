"""Placement as a streaming job: records of sites in, plans out.

The job reads the topic `placement/records`. With every batch it folds the records into its tables,
has Spark rank the candidates (`skerry.spark.placement`), and writes the plan to the topic
`placement/plans`, which the leader carries out in mode `spark`. The tables, and the moves, are
those that the leader would make of the same records: both call the same functions.

What a job remembers is the newest record of each site; one that is started anew has all of them
again a period later. When a topic last moved, and what is on its way, is the leader's to know: it
leaves out moves of a plan that come too soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import skerry.sync
from skerry.errors import BadSetting, SkerryError
from skerry.model.placement import PLANS, RECORDS, Move, PlacementSettings, PlanRecord
from skerry.placement import Monitor, TopicEntry, explain, tables, unpack
from skerry.placement.arrow import to_arrow
from skerry.placement.decide import as_entries, policy_settings
from skerry.placement.monitor import STALE
from skerry.spark.pipeline_run import Stop, failures
from skerry.spark.placement import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TICK = 1
"""Seconds between looks at whether to end."""


class Batch(msgspec.Struct, frozen=True):
    """What came of some records."""

    number: int
    records: int
    topics: int
    moves: int
    seconds: float
    problem: str | None = None
    """Why there is no plan this time."""


class PlacementJob:
    """Plans for the fabric of one site, by Spark. `data` is the site's data folder, whose
    administrator's credentials it uses: only agents and administrators write plans."""

    def __init__(
        self,
        spark: SparkSession,
        data: str | Path,
        tell: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        self.monitor = Monitor()
        self.plans = 0
        """How many were written."""
        self._spark = spark
        self._data = str(data)
        self._tell = tell
        self._clock = 0.0

    def start(self, checkpoint: str | Path, start: str = "latest") -> StreamingQuery:
        """Begin with records from `start` on: `latest`, `earliest`, an index or a time."""
        stream = (
            self._spark.readStream.format("skerry")
            .option("data", self._data)
            .option("user", "admin")
            .option("topic", RECORDS)
            .option("start", start)
            .option("failOnDataLoss", "false")  # what aged out is stale
            .schema("time TIMESTAMP, value BINARY")
            .load()
        )
        writer = stream.writeStream.foreachBatch(self._batch)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def run(self, checkpoint: str | Path, stop: Stop) -> None:
        """Plan until told to stop. Raises `SkerryError`."""
        with failures(stop, "placement by Spark"):
            query = self.start(checkpoint)
            try:
                while not stop.wanted and not query.awaitTermination(TICK):
                    pass
            finally:
                query.stop()

    def _batch(self, frame: DataFrame, number: int) -> None:
        began = time.monotonic()
        records = frame.collect()
        self.fold((row.time, row.value) for row in records)
        topics = moves = 0
        problem = None
        try:
            topics, moves = self._publish(number)
        except SkerryError as error:  # the leader is away: the next records bring the next plan
            problem = error.what
        taken = round(time.monotonic() - began, 3)
        self._tell(Batch(number, len(records), topics, moves, taken, problem))

    def _publish(self, number: int) -> tuple[int, int]:
        """Write the newest plan; return how many topics there are, and how many move."""
        with skerry.sync.connect(self._data, user="admin") as client:
            status = client.placement_status()
            entries = as_entries(client.topics(), status.pinned, {}, status.moving)
            moves = self.plan(entries, status.settings)
            if moves:
                record = PlanRecord(number=number, moves=moves)
                client.publish(PLANS, msgspec.json.encode(record))
                self.plans += 1
        return len(entries), len(moves)

    def fold(self, records: Iterable[tuple[datetime, Any]]) -> None:
        """Take records with the times at which they were stored. The newest of these is the job's
        clock: so a plan depends on nothing but the records."""
        for when, data in records:
            stamp = (when if when.tzinfo else when.astimezone(UTC)).timestamp()
            try:
                self.monitor.fold(unpack(bytes(data)), stamp)
            except BadSetting:
                self.monitor.fates["refused"] += 1
            self._clock = max(self._clock, stamp)

    def plan(self, entries: Iterable[TopicEntry], settings: PlacementSettings) -> list[Move]:
        """The moves that the records call for; the ranking is done by Spark."""
        policy = policy_settings(settings)
        topics, sites = tables(self.monitor, entries, self._clock, STALE * settings.period)
        if not len(topics):
            return []
        frame = self._spark.createDataFrame(to_arrow(topics))
        made = plan(frame, sites, policy, self._clock)
        return list(explain.moves(made.plan, made.topics, sites, policy))
