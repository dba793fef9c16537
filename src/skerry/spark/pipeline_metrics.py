"""How a pipeline does: what Spark says of a batch, how far the topics are ahead, and where it goes.

Metrics are a help and never a duty: a site that does not take them, or is away for a moment, does
not stop the pipeline.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from skerry.errors import IndexUnavailable, SkerryError, TopicExists, Unavailable
from skerry.spark.jobs import Lag, Status
from skerry.spark.pipeline import METRICS
from skerry.sync import SyncClient

log = logging.getLogger("skerry.spark")

MAX_BYTES = 16 * 2**20
"""Bytes of metrics that a site keeps: some 40,000 batches of 400 bytes."""
WAIT = 2.0
"""Seconds that a pipeline waits for the site to take or to tell a figure."""
PAUSE = 30.0
"""Seconds without metrics after the site failed to take some."""


def add_batch(status: Status, progress: Mapping[str, Any]) -> dict[str, int]:
    """Add what Spark says of a batch to `status`; return the last index read of each topic."""
    rows = int(progress.get("numInputRows") or 0)
    status.batch = int(progress["batchId"])
    status.batch_time = datetime.fromisoformat(progress["timestamp"]).astimezone(UTC)
    status.batch_ms = int(progress.get("batchDuration") or 0)
    status.batch_rows = rows
    status.rows += rows
    if rows:
        status.rows_s = round(rows * 1000 / max(status.batch_ms, 1), 1)
    operators = progress.get("stateOperators") or []
    status.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in operators)
    status.state_bytes = sum(int(each.get("memoryUsedBytes") or 0) for each in operators)
    return read_up_to(progress)


def read_up_to(progress: Mapping[str, Any]) -> dict[str, int]:
    """The last index read of each topic; the lower one, if two sources read it."""
    reached: dict[str, int] = {}
    for source in progress.get("sources") or []:
        offset = source.get("endOffset")
        if isinstance(offset, str):
            offset = json.loads(offset)
        for topic, mark in (offset or {}).items():
            index = int(mark["index"])
            reached[topic] = min(index, reached.get(topic, index))
    return reached


def newest(folder: Path) -> int:
    """The last batch of which a checkpoint has a file in `folder`; -1 if there is none."""
    return max((int(file.name) for file in folder.glob("*") if file.name.isdigit()), default=-1)


def read_for_good(checkpoint: Path) -> dict[str, int] | None:
    """The last index of each topic that the batches of a checkpoint which are done have read; None
    if there are none. Behind version and times `offsets/<batch>` has a line for each source."""
    if (done := newest(checkpoint / "commits")) < 0:
        return None
    lines = (checkpoint / "offsets" / str(done)).read_text().splitlines()[2:]
    return read_up_to({"sources": [{"endOffset": line} for line in lines if line != "-"]})


class Metrics:
    """Finds out lags and publishes status; with a connection of its own."""

    def __init__(self, client: SyncClient, name: str) -> None:
        self._client = client
        self._topic = f"{METRICS}/{name}"
        self._made = False
        self._quiet_until = 0.0
        self._told = False

    def measure(self, status: Status, reached: Mapping[str, int]) -> None:
        """Set the lags of `status`, of topics that were read up to these indexes."""
        lags = {}
        for topic, index in reached.items():
            try:
                lags[topic] = self._lag(topic, index)
            except SkerryError:
                lags[topic] = status.topics.get(topic, Lag(0, 0.0))
        status.topics = lags
        status.lag_events = sum(lag.events for lag in lags.values())
        status.lag_seconds = max((lag.seconds for lag in lags.values()), default=0.0)

    def _lag(self, topic: str, index: int) -> Lag:
        behind = self._client.latest_index(topic) - index
        if behind <= 0:
            return Lag(0, 0.0)
        seconds = 0.0
        with contextlib.suppress(IndexUnavailable):  # it has aged out, or is a gap
            oldest = self._client.get(topic, index + 1)
            seconds = max(time.time() - oldest.time.timestamp(), 0.0)
        return Lag(behind, round(seconds, 3))

    def publish(self, status: Status) -> None:
        """Send `status` to the topic, which is made on first use."""
        if time.monotonic() < self._quiet_until:
            return
        try:
            if not self._made:
                with contextlib.suppress(TopicExists):  # with limits of the user's own
                    self._client.create_topic(METRICS, max_bytes=MAX_BYTES)
                self._made = True
            self._client.publish(self._topic, msgspec.json.encode(status), timeout=WAIT)
        except SkerryError as error:
            self._quiet_until = time.monotonic() + PAUSE
            if not self._told and not isinstance(error, Unavailable):
                self._told = True
                log.warning("metrics are not published: %s", error.what)
