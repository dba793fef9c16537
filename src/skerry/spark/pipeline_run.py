"""Run a pipeline in this process, in the order in which things can go wrong: the site's topics are
looked at first, then Java and memory, then the function's result, then the checkpoint. Nothing is
read or written before all of them fit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from skerry import errors
from skerry.errors import BadSetting, CheckpointMismatch, PipelineFailed, SkerryError, UnknownTopic
from skerry.model.pattern import Pattern
from skerry.spark import pipeline_code
from skerry.spark.jobs import Folder, Job, State, Status
from skerry.spark.options import SinkOptions, read_sink, read_source
from skerry.spark.pipeline import Pipeline, Source
from skerry.spark.pipeline_batch import check_code, hash_of
from skerry.spark.pipeline_metrics import WAIT, Metrics, add_batch, read_for_good, read_up_to
from skerry.spark.pipeline_shape import Plan, Shape
from skerry.spark.session import register, session
from skerry.sync import SyncClient, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TICK = 0.25
"""Seconds between looks at the query."""
LOOK = 1.0
"""Seconds between looks at the topics while there is no batch."""
BEAT = 10.0
"""Seconds after which metrics are published although nothing happened."""
LOG_BYTES = 10_000_000
"""Bytes after which Spark's own log is begun anew, when the pipeline is started."""

_OURS = re.compile(r"skerry\.[\w.]*?(\w+): (.+?)(?:\n(?!\s)(.*?))?(?:\n\s*\n|\n\s|\n?$)", re.DOTALL)


class Face(Protocol):
    """Told what becomes of a pipeline."""

    def say(self, text: str) -> None: ...
    def started(self, pipeline: Pipeline, status: Status) -> None: ...
    def batch(self, status: Status) -> None: ...
    def idle(self, status: Status) -> None: ...
    def ended(self, pipeline: Pipeline, status: Status) -> None: ...


class Stop:
    """A wish to end, from a signal or from a parent that is gone."""

    def __init__(self, parent: int | None = None) -> None:
        self._event = threading.Event()
        self._parent = parent

    @property
    def wanted(self) -> bool:
        """Whether to end."""
        if self._parent is not None and os.getppid() != self._parent:
            self._event.set()
        return self._event.is_set()

    def ask(self) -> None:
        """Ask for the end; from any thread."""
        self._event.set()

    def install(self) -> None:
        """Make SIGINT and SIGTERM mean it; to be done again after Spark has set its own."""
        if threading.current_thread() is not threading.main_thread():
            return  # whoever called us there says when to end
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.ask())


def run(
    pipeline: Pipeline,
    folder: Folder,
    job: Job,
    face: Face,
    stop: Stop,
    spark: SparkSession | None = None,
) -> Status:
    """Run until told to stop, or with `job.once` until caught up; return how far it came.

    Without `spark` it makes a session and ends it. The folder is locked by the caller. Raises
    `SkerryError`; what was read by then is in the checkpoint, and a batch that was not done is done
    again by the next run, with the same ids.
    """
    status = folder.read("status", Status) or Status(name=pipeline.name)
    status.end(None)
    status.pid, status.topics, status.batch_rows = os.getpid(), {}, 0
    _note(folder, status)
    try:
        with contextlib.ExitStack() as opened:
            _run(pipeline, folder, job, face, stop, status, opened, spark)
    except SkerryError as error:
        status.end(error)
        _note(folder, status)
        raise
    return status


def _run(
    pipeline: Pipeline,
    folder: Folder,
    job: Job,
    face: Face,
    stop: Stop,
    status: Status,
    opened: contextlib.ExitStack,
    spark: SparkSession | None,
) -> None:
    stop.install()
    client = opened.enter_context(connect(list(job.targets), timeout=10.0, name="pipeline"))
    check_topics(client, pipeline, face)
    if stop.wanted:
        _end(pipeline, folder, face, status, "stopped")
        return
    if spark is None:
        spark = opened.enter_context(_session(pipeline, folder, job))
        stop.install()
    else:
        register(spark)  # this may be a thread of the caller's own
    pipeline_code.ship()
    frame = build(spark, pipeline, job.targets)
    shape = shape_of(pipeline, frame)
    code = hash_of(folder.code / job.file)
    if any(folder.checkpoint.glob("offsets/*")):
        stored = folder.read("shape", Shape)
        if stored is None:
            raise CheckpointMismatch(
                f"nothing says which pipeline wrote {folder.checkpoint}", "Begin anew with --fresh."
            )
        shape.check(stored)
        if not job.redo:
            sink = read_sink(_sink_options(pipeline, folder, job))
            check_code(client, pipeline, sink, stored, code)
    folder.write("shape", msgspec.structs.replace(shape, code=code))
    if stop.wanted:
        _end(pipeline, folder, face, status, "stopped")
        return
    metrics = Metrics(
        opened.enter_context(connect(list(job.targets), timeout=WAIT, name="pipeline-metrics")),
        pipeline.name,
    )
    reached = begin(pipeline, folder, job)
    metrics.measure(status, reached)
    query = None
    with failures(stop, "the pipeline"):
        query = _start(frame, pipeline, folder, job)
    if query is None:  # told to end while it began
        _end(pipeline, folder, face, status, "stopped")
        return
    status.state = "running"
    _note(folder, status)
    face.started(pipeline, status)
    following = _Following(query, folder, face, metrics, status, reached)
    try:
        with failures(stop, "the pipeline"):
            following.follow(stop)
    except SkerryError as error:
        status.end(error)
        metrics.publish(status)
        raise
    finally:
        with contextlib.suppress(Exception):  # it may have ended by itself
            query.stop()
    _end(pipeline, folder, face, status, "done" if not stop.wanted else "stopped")
    metrics.publish(status)


def _end(pipeline: Pipeline, folder: Folder, face: Face, status: Status, state: State) -> None:
    status.state = state
    _note(folder, status)
    face.ended(pipeline, status)


def check_topics(client: SyncClient, pipeline: Pipeline, face: Face | None = None) -> None:
    """Whether the topics of a pipeline are there. Patterns may match none yet: that is said."""
    for source in pipeline.sources.values():
        pattern = Pattern.parse(source.topic)
        if pattern.is_plain:
            try:
                client.latest_index(source.topic)
            except UnknownTopic:
                raise UnknownTopic(
                    f"the pipeline {pipeline.name} reads {source.topic}, and there is no such "
                    "topic",
                    f"Create it with `skerry topic create {source.topic}`, or mend its source.",
                ) from None
            continue
        names = [topic.name for topic in client.topics()]
        if face is not None and all(pattern.subjects(name) is None for name in names):
            face.say(f"no topic matches {source.topic} yet; waiting for one")
    try:
        client.latest_index(pipeline.sink)
    except UnknownTopic:
        raise UnknownTopic(
            f"the pipeline {pipeline.name} writes to {pipeline.sink}, and there is no such topic",
            f"Create it with `skerry topic create {pipeline.sink}`, or mend its sink.",
        ) from None


def build(spark: SparkSession, pipeline: Pipeline, targets: list[str]) -> DataFrame:
    """What the pipeline's function makes of its sources, checked."""
    from pyspark.errors import PySparkException

    from skerry.spark.decode import check_schema

    frames = {}
    for parameter, source in pipeline.sources.items():
        try:
            frames[parameter] = _read(spark, source, targets)
            check_schema(read_source(source.options), frames[parameter].schema)
        except PySparkException as error:
            raise explained(error, f"the source {source.topic} of {pipeline.name}") from None
    try:
        made = pipeline(**frames) if pipeline.by_name else pipeline(*frames.values())
    except SkerryError:
        raise
    except Exception as error:
        raise BadSetting(
            f"the function of the pipeline {pipeline.name} fails: {type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}",
            "Mend it. It gets DataFrames with the columns "
            f"{'; '.join(', '.join(frame.columns) for frame in frames.values())}.",
        ) from None
    check_result(pipeline, made)
    result: DataFrame = made
    return result


def check_result(pipeline: Pipeline, made: Any) -> None:
    """Whether the sink takes what the function returned."""
    from pyspark.sql import DataFrame

    from skerry.spark.sink import check_columns

    if not isinstance(made, DataFrame):
        raise BadSetting(
            f"the function of the pipeline {pipeline.name} returns "
            f"{'nothing' if made is None else type(made).__name__}, not a DataFrame",
            "Return what is to be written: `return readings.where(…)`.",
        )
    if not made.isStreaming:
        raise BadSetting(
            f"the function of the pipeline {pipeline.name} returns a table, not a stream",
            "Make it of the DataFrames that it is given.",
        )
    try:
        check_columns(SinkOptions(topic=pipeline.sink), made.schema)
    except BadSetting as error:
        raise BadSetting(
            f"what the pipeline {pipeline.name} returns cannot be written: {error.what}",
            error.advice,
        ) from None


def shape_of(pipeline: Pipeline, frame: DataFrame) -> Shape:
    """What the pipeline's checkpoint depends on."""
    plan = Plan(frame)
    return Shape.make(pipeline.name, plan.sources, pipeline.sink, plan.operators)


def site_options(targets: list[str]) -> dict[str, str]:
    """The options of source and sink that say which site."""
    if len(targets) == 1 and Path(targets[0]).is_dir():
        return {"data": targets[0]}
    return {"connection": ",".join(targets)}


def explained(error: Exception, what: str) -> SkerryError:
    """An error of Spark as one of ours: the one of ours that it carries, if there is one."""
    text = str(error)
    for match in reversed(list(_OURS.finditer(text))):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, SkerryError):
            return kind(match[2].strip(), (match[3] or "").strip())
    if "STATE_STORE" in text and ("SCHEMA" in text or "INVALID" in text):
        return CheckpointMismatch(
            f"the checkpoint does not fit the state of {what}: {_first_line(text)}",
            "Take the change back to go on where it was, or begin anew with --fresh.",
        )
    last = [line for line in text.splitlines() if re.match(r"\w+(\.\w+)*(Error|Exception)\b", line)]
    return PipelineFailed(
        f"{what} failed: {last[-1] if last else _first_line(text)}",
        "Mend it and run it again: it goes on with the batch that failed.",
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


@contextlib.contextmanager
def failures(stop: Stop, what: str) -> Iterator[None]:
    """Turn what Spark raises into errors of ours; what it raises when it is stopped is none."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if not stop.wanted:
            raise explained(error, what) from error


@contextlib.contextmanager
def _session(pipeline: Pipeline, folder: Folder, job: Job) -> Iterator[SparkSession]:
    with aside(folder.path / "spark.log"):
        spark = session(
            f"skerry {pipeline.name}", master=job.master, memory=job.memory, config=job.config
        )
    try:
        yield spark
    finally:
        with aside(folder.path / "spark.log"), contextlib.suppress(Exception):
            spark.stop()


@contextlib.contextmanager
def aside(file: Path) -> Iterator[None]:
    """Have the JVM that is started in this block, and its workers, say what they say to `file`.
    What matters of it is raised as an error too."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if file.exists() and file.stat().st_size > LOG_BYTES:
        flags |= os.O_TRUNC
    ours, theirs = os.dup(2), os.open(file, flags, 0o600)
    os.dup2(theirs, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(theirs)


def _read(spark: SparkSession, source: Source, targets: list[str]) -> DataFrame:
    reader = spark.readStream.format("skerry").options(**source.options, **site_options(targets))
    return (reader.schema(source.schema) if source.schema else reader).load()


def begin(pipeline: Pipeline, folder: Folder, job: Job) -> dict[str, int]:
    """The index of each topic behind which the first batch begins: its lag counts from there until
    that batch is done, which it may never be. Nothing if that cannot be found out."""
    from skerry.spark.decode import default_schema
    from skerry.spark.stream import StreamReader

    offsets: list[dict[str, Any]] = []
    with contextlib.suppress(SkerryError, OSError, ValueError):
        if (found := read_for_good(folder.checkpoint)) is not None:
            return found
        for source in pipeline.sources.values():
            given = {**source.options, **site_options(job.targets), "format": "binary"}
            options = read_source(given)
            reader = StreamReader(options, default_schema(options))
            try:
                offsets.append({"endOffset": reader.initialOffset()})
            finally:
                reader.stop()
    return read_up_to({"sources": offsets})


def _sink_options(pipeline: Pipeline, folder: Folder, job: Job) -> dict[str, str]:
    where = {"topic": pipeline.sink, "checkpointLocation": str(folder.checkpoint)}
    return {**site_options(job.targets), **where}


def _start(frame: DataFrame, pipeline: Pipeline, folder: Folder, job: Job) -> StreamingQuery:
    writer = frame.writeStream.format("skerry").outputMode("append")
    writer = writer.options(**_sink_options(pipeline, folder, job))
    if job.once:
        writer = writer.trigger(availableNow=True)
    elif pipeline.every:
        writer = writer.trigger(processingTime=f"{round(pipeline.every * 1000)} milliseconds")
    return writer.start()


class _Following:
    """Follows a query: every batch is told, written down and published."""

    def __init__(
        self,
        query: StreamingQuery,
        folder: Folder,
        face: Face,
        metrics: Metrics,
        status: Status,
        reached: dict[str, int],
    ) -> None:
        self._query = query
        self._folder = folder
        self._face = face
        self._metrics = metrics
        self._status = status
        self._reached = reached
        self._seen: tuple[int, str] = (-1, "")
        self._looked = self._published = 0.0

    def follow(self, stop: Stop) -> None:
        """Until the query ends, or is to end."""
        ended = False
        while not ended and not stop.wanted:
            ended = bool(self._query.awaitTermination(TICK))  # type: ignore[arg-type]
            self._look()

    def _look(self) -> None:
        for progress in self._fresh():
            self._reached = add_batch(self._status, progress) or self._reached
            self._tell(self._face.batch, publish=True)
        now = time.monotonic()
        if now > self._looked + LOOK:
            self._tell(self._face.idle, publish=now > self._published + BEAT)

    def _tell(self, face: Callable[[Status], None], publish: bool) -> None:
        self._looked = time.monotonic()
        self._metrics.measure(self._status, self._reached)
        _note(self._folder, self._status)
        face(self._status)
        if publish:
            self._published = self._looked
            self._metrics.publish(self._status)

    def _fresh(self) -> list[Mapping[str, Any]]:
        """What Spark says of batches that were not seen yet. One without work is told again and
        again, with a new time; it counts once."""
        found = []
        for each in self._query.recentProgress:
            progress = json.loads(each.json)
            mark = (int(progress["batchId"]), progress["timestamp"])
            is_work = progress.get("numInputRows") or "addBatch" in progress.get("durationMs", {})
            if mark > self._seen and is_work:
                found.append(progress)
                self._seen = mark
        return found


def _note(folder: Folder, status: Status) -> None:
    status.time = datetime.now(UTC)
    folder.write("status", status)
