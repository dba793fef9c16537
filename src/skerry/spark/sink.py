"""Tables and streams written to topics, each row once.

Exactly once. A row's id is made of the query, the batch, the task and what the row says, with a
number where two rows of a task say the same. A batch that is run again, in whatever order its rows
come, gives the same rows the same ids, and the log refuses what it has. What the log may have
forgotten is read back first (`skerry.spark.seen`).

Back-pressure. At most `window` events wait for their acknowledgement; then the task waits, Spark's
batch with it, and in the end the source.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import uvloop
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from skerry.config import DUPLICATE_WINDOW, ClientSettings
from skerry.engine.jetstream import JetStream
from skerry.engine.wire import Connection
from skerry.errors import BadSetting, PublishFailed, Unavailable
from skerry.log.append import Publisher
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.model.fabric import TopicEntry
from skerry.model.names import check_topic
from skerry.spark.fetch import Lost
from skerry.spark.options import SinkOptions
from skerry.spark.seen import Attempt, Marks, attempt_at, prefix, stored_ids, write_done

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("skerry.spark")

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"
"""Each time that a query is started, its jobs get an id of their own."""

TEXT = ("string",)
TAKEN = {
    "value": ("binary", "string"),
    "topic": TEXT,
    "sub_topic": TEXT,
    "key": TEXT,
    "headers": ("map<string,string>",),
}
"""The columns that a sink takes, with their types. Others of a source's columns are left out."""
LEFT_OUT = ("index", "time", "publisher")


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote: rows, and those among them that an earlier attempt had written."""

    rows: int
    known: int
    run: str
    marks: Marks
    """How far the topics went that it wrote to."""


class _Writer:
    """What both kinds of sink do in their tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self.options = options
        self.addresses = options.addresses()
        """Looked up by the driver: a worker on another machine has no data folder."""

    def _write(
        self, job: str, attempt: Attempt, rows: Iterator[pa.RecordBatch], run: str = ""
    ) -> Written:
        async def work() -> Written:
            task = _Task(self.options, self.addresses, job, attempt)
            count, known, marks = await task.run(rows)
            return Written(count, known, run, marks)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work())


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write what one task of a batch has."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise BadSetting("the sink was not told which query and batch it writes")
        run = context.getLocalProperty(_RUN) or ""
        number = context.attemptNumber()
        attempt = attempt_at(self.options.checkpoint, run, int(batch), number)
        if attempt.began is None:
            log.warning("the checkpoint cannot be read: a batch is written once only within 2 min")
        job = f"{prefix(query, int(batch))}{context.partitionId()}-"
        return self._write(job, attempt, iterator, run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write down that a batch is done, so that the next one need not look for its rows."""
        found = [message for message in messages if isinstance(message, Written)]
        if found and self.options.checkpoint:
            marks = [message.marks for message in found]
            write_done(self.options.checkpoint, found[0].run, batchId, marks)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadSetting("a topic cannot be overwritten", 'Write with .mode("append").')
        super().__init__(options, schema)
        self.job = secrets.token_hex(8)
        self.began = time.time()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write what one task has. A task that Spark runs again adds nothing twice; a job that is
        run again is another job."""
        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(again=context.attemptNumber() > 0, began=self.began)
        return self._write(f"spark-{self.job}-0-{context.partitionId()}-", attempt, iterator)


def check_columns(options: SinkOptions, schema: StructType) -> None:
    """Refuse a table that cannot be written; `BadSetting` names the column."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in TAKEN and name not in LEFT_OUT:
            raise BadSetting(
                f"the sink takes no column {name!r}",
                f"It takes {', '.join(TAKEN)}. Put the rest into value, for instance with "
                'selectExpr("to_json(struct(*)) AS value").',
            )
        if name in TAKEN and kind not in TAKEN[name]:
            raise BadSetting(f"the column {name!r} is {' or '.join(TAKEN[name])}, not {kind}")
    if "value" not in found:
        raise BadSetting("the column value is missing", "It is what events carry.")
    if options.topic is None and "topic" not in found:
        raise BadSetting(
            "nothing says which topic to write to",
            'Set option("topic", …), or have a column topic.',
        )
    if options.topic is not None:
        check_topic(options.topic)


class _Task:
    """One task's work: connect, publish, wait for all acknowledgements."""

    def __init__(
        self, options: SinkOptions, addresses: list[Any], job: str, attempt: Attempt
    ) -> None:
        self._options = options
        self._addresses = addresses
        self._job = job
        self._attempt = attempt
        self._publishers: dict[str, Publisher] = {}
        self._owners: dict[str, str] = {}
        self._entries: dict[str, TopicEntry | None] = {}
        """The topics as they were when they were first written to."""
        self._newest: dict[str, asyncio.Future[int]] = {}
        self._seen: dict[str, set[str]] = {}
        self._counts: defaultdict[bytes, int] = defaultdict(int)
        self._known = 0

    async def run(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, Marks]:
        """Write all rows. Returns how many there were, how many of them the log had already, and
        how far the topics went."""
        settings = ClientSettings(timeout=min(self._options.timeout, DUPLICATE_WINDOW - 10))
        connection = await Connection.open(self._addresses, settings, "skerry-spark")
        rows = 0
        try:
            self._connection = connection
            self._routes = Routes(JetStream(connection))
            self._reader = Reader(JetStream(connection), self._routes)
            # Spark's iterator waits for what is computed; acknowledgements come in meanwhile.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await self._send(batch)
                rows += batch.num_rows
            for publisher in self._publishers.values():
                await publisher.flush()
        except PublishFailed as error:
            raise (error.first or error) from None
        finally:
            for publisher in self._publishers.values():
                publisher.close()
            await connection.close()
        marks = {
            owner: (entry.epoch, newest.result())
            for owner, newest in self._newest.items()
            if (entry := self._entries[owner]) is not None
        }
        return rows, self._known, marks

    async def _send(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch[name].to_pylist() for name in TAKEN if name in batch.schema.names}
        count = batch.num_rows
        nothing = [None] * count
        fixed = self._options.topic
        topics = [fixed] * count if fixed else columns["topic"]
        subs = columns.get("sub_topic", nothing)
        keys = columns.get("key", nothing)
        heads = columns.get("headers", nothing)
        for topic, sub, key, head, value in zip(
            topics, subs, keys, heads, columns["value"], strict=True
        ):
            if topic is None:
                raise BadSetting("a row has no topic", "Fill the column topic, or set the option.")
            name = f"{topic}/{sub}" if sub else topic
            await self._publish(name, key, dict(head) if head else None, value)

    async def _publish(
        self, name: str, key: str | None, headers: dict[str, str] | None, value: bytes | str | None
    ) -> None:
        data = value.encode() if isinstance(value, str) else value or b""
        digest = blake2b(data, digest_size=9)
        digest.update(repr((name, key, headers)).encode())
        said = digest.digest()
        number = self._counts[said]
        self._counts[said] = number + 1
        identity = f"{self._job}{said.hex()}-{number}"
        owner = self._owners.get(name) or await self._find(name)
        if owner not in self._seen and self._attempt.must_look(owner, self._entries[owner]):
            self._seen[owner] = await self._stored(owner)
        if identity in self._seen.get(owner, ()):
            self._known += 1
            return
        self._newest[owner] = await self._publishers[owner].send(
            data, topic=name, key=key, headers=headers, id=identity
        )

    async def _find(self, name: str) -> str:
        entry = await self._routes.find(name)
        owner = entry.name if entry is not None else await self._reader.owner(name)
        if owner not in self._publishers:
            ack = self._options.ack
            if ack is None and entry is not None and entry.settings.ack == "outbox":
                ack = "home"  # only the home can be asked what it has
            self._publishers[owner] = Publisher(
                self._connection, self._routes, owner, ack=ack, window=self._options.window
            )
            self._entries[owner] = entry
        self._owners[name] = owner
        return owner

    async def _stored(self, owner: str) -> set[str]:
        """What the log has of this task."""
        for publisher in self._publishers.values():
            await publisher.flush()
        deadline = time.monotonic() + self._options.timeout
        while True:
            entry = await self._routes.find(owner)
            start = self._attempt.start(owner, entry)
            try:
                return await asyncio.to_thread(stored_ids, self._addresses, owner, self._job, start)
            except (Lost, OSError) as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the home of {owner} could not be asked what it has of an earlier attempt "
                        f"({error})",
                        "Look with `skerry doctor`. The batch is run again when the query is.",
                    ) from None
            await asyncio.sleep(0.2)
