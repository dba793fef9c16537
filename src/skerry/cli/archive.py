"""`skerry archive`: topics kept in tables."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, Timeout, find_targets
from skerry.cli.output import (
    columns,
    count,
    draw,
    emit,
    emit_document,
    emit_json,
    facts,
    note,
)
from skerry.errors import BadSetting, FolderError, Unavailable, UnknownTopic
from skerry.model.quantities import parse_duration, parse_size, show_duration, show_size

if TYPE_CHECKING:
    from skerry.archive.folder import Archive, TableFormat
    from skerry.archive.run import Archiver, Batch
    from skerry.archive.status import ArchiveStatus, TopicStatus

START_EXAMPLE = """Examples:
  skerry archive start 'sensors/#' --to history
  skerry archive start orders --to orders --format parquet --trigger 1m
  skerry archive start 'sensors/#' --to readings --payload json --schema 'degrees DOUBLE'
  skerry archive start 'sensors/#' --to history --once"""
STOP_EXAMPLE = "Example: skerry archive stop history"
STATUS_EXAMPLE = "Example: skerry archive status history --json"
COMPACT_EXAMPLE = "Example: skerry archive compact history --retention 7d"

LEAST_RETENTION = 3600.0
"""Seconds. Queries that began before a compaction read the files that it replaced."""
ENDING = 60.0
"""Seconds that an archive has to end behind its batch."""

Folder = Annotated[
    Path, typer.Argument(metavar="[FOLDER]", help="The archive's folder.", show_default="here")
]


def start(
    topics: Annotated[
        str,
        typer.Argument(
            metavar="TOPICS",
            help="A topic with all below it, or a pattern: + is one level, # at the end any "
            "number. Topics that are made later are taken in.",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to keep the table.")],
    format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="delta or parquet.", show_default="delta"),
    ] = None,
    trigger: Annotated[
        str, typer.Option(metavar="DURATION", help="How often a batch is written.")
    ] = "10s",
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Decode payloads into columns besides: json, msgpack or arrow.",
            show_default="binary: as they are",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS",
            help="The fields of payloads, 'sensor STRING, degrees DOUBLE'. Later more can be "
            "named; rows from before have nulls there.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="End when all that there is was written.")
    ] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory for Spark: 600m, 2g.")] = "1g",
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Write topics to a table, each event once, until Ctrl-C.

    The table is partitioned by topic and date. An archive that was stopped, or killed, goes on
    where it was when it is started again."""
    from skerry.archive.folder import Archive, check_target

    seconds = parse_duration(trigger)
    held = check_target(to, topics, format, payload)
    if held is None and payload not in (None, "binary") and schema is None:
        raise BadSetting(
            f"payloads in {payload} need a schema",
            "Name their fields: --schema 'sensor STRING, degrees DOUBLE'.",
        )
    if schema is not None and (payload or (held.about.payload if held else "binary")) == "binary":
        raise BadSetting(
            "a schema is for payloads that are decoded", "Give --payload json, say, as well."
        )
    table: TableFormat = "parquet" if format == "parquet" else "delta"
    _check_engines(held.about.table if held else table)
    archive = held or Archive.create(to, topics, table, payload or "binary")
    _check_topics(archive, connect, timeout, once)
    asked = _Asked()
    asked.install()
    with (
        archive.locked(),
        session("skerry-archive", memory, archive.own / "spark.log") as spark,
    ):
        from skerry.archive.run import Archiver, clean

        asked.install()  # Spark has a handler of its own, which would end jobs half way
        clean(archive)
        archiver = Archiver(spark, archive, source_options(connect, timeout))
        archiver.prepare(schema)
        archiver.start(once=once, trigger=seconds)
        _say(as_json, archive, once, seconds)
        _follow(archiver, asked, as_json)


def stop(
    folder: Folder = Path(),
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for its end.")
    ] = ENDING,
    as_json: AsJson = False,
) -> None:
    """End a running archive behind the batch that it is writing."""
    from skerry.archive.folder import Archive, holder

    archive = Archive.open(folder)
    pid = holder(archive.path)
    if pid is None:
        raise FolderError(
            f"nothing archives into {archive.path} at this moment",
            f"Start it with `skerry archive start {archive.about.topics} --to {folder}`.",
        )
    deadline = time.monotonic() + timeout
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while holder(archive.path) == pid:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"process {pid} did not end within {timeout:.0f} s",
                "It may be in the middle of a large batch: wait, or kill it; nothing is lost.",
            )
        time.sleep(0.05)
    if as_json:
        emit_json({"folder": str(archive.path), "pid": pid})
    else:
        emit(f"the archive in {archive.path} is stopped")


def status(
    folder: Folder = Path(),
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show what an archive holds of each topic, and how far behind it is."""
    from skerry.archive.folder import Archive
    from skerry.archive.status import latest_or_none
    from skerry.archive.status import status as find_status

    archive = Archive.open(folder)
    now, why = latest_or_none(archive, _site(connect, timeout))
    found = find_status(archive, now)
    if as_json:
        emit_document(found)
        return
    draw(facts(_facts(found)))
    if found.held:
        emit("")
        draw(_table(found.held))
    if why:
        note(f"the lag is not known: {why}")


def compact(
    folder: Folder = Path(),
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="About how large files are to become.")
    ] = "128MB",
    retention: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Delete files that were replaced longer ago; an hour at least, for queries that "
            "still read them.",
        ),
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Merge the small files of an archive, also while it runs. Format delta only."""
    from skerry.archive.folder import Archive

    archive = Archive.open(folder)
    target, seconds = parse_size(size), parse_duration(retention)
    if seconds < LEAST_RETENTION:
        raise BadSetting(
            f"a retention of {retention} is shorter than an hour",
            "Queries may still read files that were replaced; give 1h or more.",
        )
    if target < 2**20:
        raise BadSetting(f"files of {size} are small ones", "Give 1MiB or more.")
    if archive.about.table != "delta":
        raise BadSetting(
            "an archive in plain parquet cannot be compacted: readers that know nothing of its "
            "list of files would find rows twice",
            "Archive with --format delta, or with a longer --trigger.",
        )
    from skerry.archive.delta import DeltaArchive

    done = DeltaArchive(archive.path, archive.about.id).compact(target, seconds)
    if as_json:
        emit_document(done)
        return
    emit(
        f"{count(done.files_before, 'file')} of {show_size(done.bytes_before)} became "
        f"{done.files_after:,} of {show_size(done.bytes_after)}; "
        f"{count(done.removed, 'replaced file')} deleted"
    )


def source_options(connect: Targets, timeout: float) -> dict[str, str]:
    """How Spark finds the site."""
    found = {"timeout": str(max(timeout, 1.0))}
    if targets := find_targets(connect):
        found["connection"] = ",".join(targets)
    return found


def _site(connect: Targets, timeout: float) -> Any:
    from skerry.spark.options import Site

    return Site(connection=tuple(find_targets(connect)), timeout=timeout)


def _check_engines(table: TableFormat) -> None:
    import pyspark  # noqa: F401

    from skerry.spark.java import find_java

    find_java()
    if table == "delta":
        from skerry.archive.delta import check_installed

        check_installed()


def _check_topics(archive: Archive, connect: Targets, timeout: float, once: bool) -> None:
    from skerry.archive.status import latest

    if latest(archive, _site(connect, timeout)):
        return
    if once:
        raise UnknownTopic(
            f"no topic matches {archive.about.topics}",
            "See `skerry topic list`; without --once the archive waits for one.",
        )
    note(f"no topic matches {archive.about.topics} yet; waiting for one")


@contextmanager
def session(name: str, memory: str, log: Path | None = None) -> Iterator[Any]:
    """A Spark session that is ended at the end. What the JVM has to say goes to `log`; what a
    person has to know comes as an error or as a line of ours."""
    import skerry.spark

    if sys.stderr.isatty():
        note("starting Spark …")
    with _stderr_to(log):  # the JVM inherits it
        spark = skerry.spark.session(name, memory=memory)
    try:
        yield spark
    finally:
        with suppress(Exception):
            spark.stop()


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    other = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(other, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(other)


class _Asked:
    """Whether somebody asked to end. Signals set it, also those that come before Spark is up."""

    def __init__(self) -> None:
        self.to_end = False

    def __call__(self, *signal: object) -> None:
        self.to_end = True

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells' background jobs
                signal.signal(number, self)


def _say(as_json: bool, archive: Archive, once: bool, seconds: float) -> None:
    if as_json:
        return
    about = archive.about
    how = "up to now" if once else f"every {show_duration(seconds)}; Ctrl-C ends it"
    _line(f"archiving {about.topics} to {archive.path} as {about.table}, {how}")


def _follow(archiver: Archiver, asked: _Asked, as_json: bool) -> None:
    rows, began = 0, time.monotonic()
    try:
        for batch in archiver.batches(lambda: asked.to_end):
            rows += batch.rows
            if as_json:
                emit_json(_batch_json(batch))
            elif batch.rows:
                _line(_batch_line(batch))
    finally:
        archiver.stop()
    seconds = time.monotonic() - began
    if not as_json:
        _line(
            f"{'stopped' if asked.to_end else 'caught up'}: {count(rows, 'row')} in "
            f"{show_duration(max(seconds, 0.001))}"
        )


def _batch_json(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "rows": batch.rows,
        "files": batch.files,
        "bytes": batch.bytes,
        "seconds": round(batch.seconds, 3),
        "rows_s": round(batch.rows / batch.seconds, 1) if batch.seconds else None,
        "lag": batch.behind,
        "until": batch.until,
    }


def _batch_line(batch: Batch) -> str:
    rate = batch.rows / batch.seconds if batch.seconds else 0.0
    line = (
        f"batch {batch.batch}: {count(batch.rows, 'row')} in {count(batch.files, 'file')} of "
        f"{show_size(batch.bytes)}, {rate:,.0f} rows/s"
    )
    if batch.behind is not None:
        line += f", lag {count(batch.behind, 'event')}"
    if batch.behind and batch.until is not None:
        behind = (datetime.now(UTC) - batch.until).total_seconds()
        line += f" and {show_duration(max(behind, 0.001))}"
    return line


def _line(text: str) -> None:
    with suppress(BrokenPipeError):
        emit(f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')} {text}")


def _facts(found: ArchiveStatus) -> list[tuple[str, str]]:
    state = "stopped"
    if found.pid is not None:
        with suppress(psutil.Error):
            since = time.time() - psutil.Process(found.pid).create_time()
            state = f"running as process {found.pid} for {show_duration(max(since, 1))}"
    return [
        ("folder", found.folder),
        ("topics", found.topics),
        ("format", f"{found.format}, version {found.version}, payload {found.payload}"),
        ("state", state),
        ("holds", f"{count(found.rows, 'row')} in {count(found.files, 'file')} of "
         f"{show_size(found.bytes)}"),
        ("lag", "-" if found.lag is None else count(found.lag, "event")),
    ]  # fmt: skip


def _table(held: tuple[TopicStatus, ...]) -> Any:
    table = columns(
        "TOPIC", ">ROWS", ">FROM", ">TO", "FROM TIME", "TO TIME", ">FILES", ">BYTES", ">LAG"
    )
    for topic in held:
        table.add_row(
            topic.topic,
            f"{topic.rows:,}",
            str(topic.first),
            str(topic.last),
            _time(topic.since),
            _time(topic.until),
            f"{topic.files:,}",
            show_size(topic.bytes),
            "-" if topic.lag is None else f"{topic.lag:,}",
        )
    return table


def _time(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
