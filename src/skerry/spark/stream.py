"""Topics as streams: where a query is, and how far it may go next.

Theory of operation. An offset maps each topic to (epoch, index): the last index read, and the epoch
of the log that it was read from. A log's lineage tells whether that index is still part of its
history, so a topic may move or fail over under a query: indexes are the same at every copy, and
nothing is read before a quorum holds it. If it is not part of the history, the topic was deleted
and made anew, or lost what had been read: then the query stops and says so, for it would count
twice or miss something.

    {"sensors": {"epoch": 3, "index": 1200}, "alerts": {"epoch": 1, "index": 0, "from": 1}}

`from` is there when a topic first appears: a batch that is run again must begin where it did.
Outside a fabric there are no epochs, and `since`, when the log was made, tells them apart.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from skerry.errors import BadSetting, TopicError, UnknownTopic
from skerry.model.promotion import is_forked
from skerry.spark.fetch import aged_out
from skerry.spark.logs import Log, Logs
from skerry.spark.options import Place, SourceOptions
from skerry.spark.plan import LEAST, admit, cut
from skerry.spark.source import Piece, TaskReader, place_of, range_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("skerry.spark")

Offset = dict[str, dict[str, Any]]

TASK = 50_000
MOST_TASKS = 16
"""Events for each task of a batch, and tasks at the most, unless the option partitions says how
many there are to be."""
FEW = 16
IDLE_SHARE = 10
"""An idle query asks for the latest offset 80 times a second, which costs 0.3 ms a topic. With more
than a few topics what was found is used again, for so many times as long as it took to find, so
that waiting costs a tenth of the time at the most."""


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics at the client's site. Each event once and, within a topic, in order."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._logs: Logs | None = None
        self._found: dict[str, Log | None] = {}
        self._found_at = 0.0
        self._found_took = 0.0
        self._target: Offset | None = None
        self._waiting = False

    # Where the query is

    def initialOffset(self) -> Offset:
        """Where a new query begins: with the next event unless `start` says otherwise."""
        if self.options.end != Place("latest"):
            raise BadSetting("a stream has no end", "Leave the option end out.")
        logs = self._open()
        start = self.options.start or Place("latest")
        offset: Offset = {}
        for topic, found in self._look(set()).items():
            if found is not None:
                first = place_of(logs, found, start)
                if first < found.first and start.kind == "index":
                    self._lost(aged_out(topic, first, found.first))
                first = min(max(first, found.first), found.last + 1)
                offset[topic] = _mark(found, first - 1)
        return dict(sorted(offset.items()))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch goes."""
        self._check_checkpoint(start)
        found = self._look(set(start))
        offset = dict(start)
        begins: dict[str, int] = {}
        behind: dict[str, int] = {}
        for topic, now in found.items():
            index = self._check(topic, start.get(topic), now)
            if now is None:
                offset.pop(topic, None)
                continue
            if index is None:
                begins[topic] = now.first
                index = now.first - 1
            last = now.last
            if self._target is not None:
                last = min(last, int(self._target.get(topic, {}).get("index", 0)))
            behind[topic] = last - index
            begins.setdefault(topic, index + 1)
        logs = {topic: now for topic, now in found.items() if now is not None}
        sizes = {topic: now.event_bytes for topic, now in logs.items()}
        for topic, count in admit(behind, sizes, *self._allowed(limit)).items():
            offset[topic] = _mark(logs[topic], begins[topic] + count - 1)
            if topic not in start or int(start[topic]["index"]) + 1 != begins[topic]:
                offset[topic]["from"] = begins[topic]
        return start if offset == start else dict(sorted(offset.items()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options allow one trigger to take."""
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:
        """How far the logs go, for the query's progress."""
        return {t: _mark(found, found.last) for t, found in self._found.items() if found}

    def prepareForTriggerAvailableNow(self) -> None:
        """Go as far as the logs go now, and no further."""
        found: dict[str, Log | None] = {}
        with contextlib.suppress(UnknownTopic):  # whoever asks for offsets next says so better
            found = self._look(set(), fresh=True)
        self._target = {topic: _mark(now, now.last) for topic, now in found.items() if now}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut what lies between two offsets into ranges for tasks."""
        self._check_checkpoint(end)
        logs = self._open()
        ranges = {}
        for topic, mark in end.items():
            before = start.get(topic, {"index": 0})
            first = int(mark.get("from", int(before["index"]) + 1))
            if mark != before and first <= int(mark["index"]):
                ranges[topic] = (first, int(mark["index"]))
        # By size alone: a batch that is run again on another machine must be cut as it was, for
        # the ids that a sink gives to rows hold the number of their task.
        total = sum(last - first + 1 for first, last in ranges.values())
        tasks = self.options.partitions or min(-(-total // TASK), MOST_TASKS)
        return [
            Piece(logs.addresses, range_of(self.options, logs.in_fabric, *piece))
            for piece in cut(ranges, tasks, 1 if self.options.partitions else LEAST)
        ]

    def stop(self) -> None:
        """Close the connection."""
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    # What the logs say

    def _open(self) -> Logs:
        if self._logs is None:
            self._logs = Logs(self.options)
        return self._logs

    def _look(self, known: set[str], *, fresh: bool = False) -> dict[str, Log | None]:
        """The logs of the topics that are meant, and of those that the query knows."""
        age = time.monotonic() - self._found_at
        stale = age > IDLE_SHARE * self._found_took or len(self._found) <= FEW
        if fresh or stale or not known <= set(self._found):
            began = time.monotonic()
            logs = self._open()
            try:
                names = logs.find(self.options.topic, fresh=fresh)
            except UnknownTopic:
                if not known:
                    raise
                names = []
            self._say_whether_waiting(not names)
            self._found = logs.look(known | set(names))
            self._found_at = time.monotonic()
            self._found_took = self._found_at - began
        return dict(sorted(self._found.items()))

    def _check_checkpoint(self, offset: Offset) -> None:
        for topic, mark in offset.items():
            if not isinstance(mark, dict) or not {"epoch", "index"} <= set(mark):
                raise BadSetting(
                    f"the checkpoint was not written by this version of Skerry: {topic} {mark!r}",
                    "Start the query with a new checkpoint.",
                )
            if self.options.topic.subjects(topic) is None:
                raise BadSetting(
                    f"the checkpoint is of a query that read {topic}, and this one reads "
                    f"{self.options.topic.text}",
                    "Give each query a checkpointLocation of its own.",
                )

    def _say_whether_waiting(self, nothing: bool) -> None:
        if nothing and not self._waiting:
            log.warning("no topic matches %s yet; waiting for one", self.options.topic.text)
        self._waiting = nothing

    def _check(self, topic: str, mark: dict[str, Any] | None, now: Log | None) -> int | None:
        """The last index read of a log that is still the one it was; None: begin with what it has.
        Raises if it is not, unless `failOnDataLoss` is off."""
        if now is None:
            if mark is not None:
                self._lost(
                    UnknownTopic(
                        f"topic {topic} was deleted while a query read it",
                        "Start the query with a new checkpoint, or, to go on with the other "
                        'topics, set option("failOnDataLoss", "false").',
                    )
                )
            return None
        if mark is None:
            return None
        index, epoch = int(mark["index"]), int(mark["epoch"])
        anew = bool(now.since and mark.get("since") and now.since != mark["since"])
        forked = bool(now.lineage) and is_forked(epoch, index, now.lineage)
        if anew or forked or (not now.lineage and index > now.last):
            self._lost(
                TopicError(
                    f"topic {topic} is not the one that this query has read up to index {index}: "
                    "it was deleted and made anew, or lost those events with its home",
                    "Start the query with a new checkpoint. To go on with what the topic holds "
                    'now, from its first event on, set option("failOnDataLoss", "false").',
                )
            )
            return None
        if index + 1 < now.first:
            self._lost(aged_out(topic, index + 1, now.first))
            return now.first - 1
        return index

    def _lost(self, error: Exception) -> None:
        if self.options.fail_on_data_loss:
            raise error
        log.warning("%s", str(error).partition("\n")[0])

    def _allowed(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows, size = self.options.max_rows, self.options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return rows, size


def _mark(found: Log, index: int) -> dict[str, Any]:
    mark: dict[str, Any] = {"epoch": found.epoch, "index": index}
    return {**mark, "since": found.since} if found.since else mark
