"""`skerry pub`: publish one event, or one a line."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Targets,
    Timeout,
    TopicName,
    connected,
    run,
)
from skerry.cli.lines import lines
from skerry.cli.output import count, emit, emit_json, note
from skerry.errors import BadSetting, InputError, PublishFailed, SkerryError
from skerry.model.quantities import parse_duration, show_size
from skerry.model.topic import Ack

EXAMPLE = """Examples:
  skerry pub sensors/roof 21.5
  skerry pub sensors/roof 21.5 --key roof --header unit=C --lifespan 1h
  skerry pub orders/17 '{"paid": true}' --ack quorum
  tail -f app.log | skerry pub logs/app
  skerry pub history --file events.jsonl"""

STEP = 1000
"""Events between two movements of the progress bar."""


def pub(
    topic: TopicName,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="The payload. With - or nothing, what is piped in: one event a line.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Publish a file, one event a line.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="What the event is about.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    lifespan: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Remove the event after so long: 30s, 12h."),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="A second event with the same id within two minutes adds nothing."
        ),
    ] = None,
    ack: Annotated[
        Ack | None,
        typer.Option(
            help="What to wait for, in a fabric: that the event is durable at this site (its index "
            "is not known yet), at the topic's home, or at enough replicas to survive the home.",
            show_default="what the topic says",
        ),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Publish one event, or one a line.

    Prints the event's index once it is stored, or - if it waits in the outbox; of many events the
    number, the indexes and the rate. A line's end (LF or CRLF) is no part of the event."""
    options: dict[str, Any] = {
        "key": key,
        "headers": _headers(header or []),
        "lifespan": None if lifespan is None else parse_duration(lifespan),
    }
    if data is not None and data != "-":
        if file is not None:
            raise BadSetting("there is a payload and a file to publish", "Give one of them.")
        _publish_one(topic, data, {**options, "id": id, "ack": ack}, connect, timeout, as_json)
        return
    if id is not None:
        raise BadSetting(
            "one id cannot name many events", "Give --id with DATA; lines get ids by themselves."
        )
    if file is not None and data == "-":
        raise BadSetting("there are stdin and a file to publish", "Give one of them.")
    if file is None and data is None and sys.stdin.isatty():
        raise BadSetting(
            "there is nothing to publish",
            f"Write `skerry pub {topic} DATA`, pipe lines into it, or give --file.",
        )
    _publish_lines(topic, file, options, ack, connect, timeout, as_json)


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadSetting(f"{pair!r} is no header", "Write it as NAME=VALUE.")
        headers[name] = value
    return headers or None


def _publish_one(
    topic: str,
    data: str,
    options: dict[str, Any],
    connect: Targets,
    timeout: float,
    as_json: bool,
) -> None:
    async def publish() -> int:
        # What the shell hands over may be no UTF-8; it is published as it came.
        payload = data.encode("utf-8", "surrogateescape")
        async with connected(connect, timeout) as client:
            return await client.publish(topic, payload, **options)

    index = run(publish())
    if as_json:
        emit_json({"topic": topic, "index": index or None})
    else:
        emit(str(index or "-"))
        if not index and sys.stderr.isatty():
            note("it is kept in this site's outbox; the topic's home gets it when it is in reach")


class _Tally:
    """What became of the events."""

    def __init__(self) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.stored = 0
        self.bytes = 0
        self.first = 0
        self.last = 0
        self.failure: SkerryError | None = None
        self._started = time.monotonic()
        self.seconds = 0.0

    def add(self, ack: asyncio.Future[int], size: int) -> None:
        self.sent += 1
        self.sent_bytes += size
        ack.add_done_callback(functools.partial(self._done, size))

    def stop(self) -> None:
        self.seconds = time.monotonic() - self._started

    def _done(self, size: int, ack: asyncio.Future[int]) -> None:
        if ack.cancelled():
            return
        error = ack.exception()
        if error is None:
            index = ack.result()
            self.stored += 1
            self.bytes += size
            if index:  # else it is in the outbox
                self.first = min(self.first or index, index)
                self.last = max(self.last, index)
        elif isinstance(error, SkerryError):
            self.failure = self.failure or error


def _publish_lines(
    topic: str,
    file: Path | None,
    options: dict[str, Any],
    ack: Ack | None,
    connect: Targets,
    timeout: float,
    as_json: bool,
) -> None:
    tally = _Tally()
    with _opened(file) as descriptor, _progress(file) as advance:
        ended = run(_stream(topic, descriptor, options, ack, connect, timeout, tally, advance))
    rate = tally.stored / tally.seconds if tally.seconds else 0.0
    if as_json:
        emit_json(
            {
                "topic": topic,
                "events": tally.stored,
                "bytes": tally.bytes,
                "first": tally.first or None,
                "last": tally.last or None,
                "seconds": round(tally.seconds, 6),
                "rate": round(rate, 1),
            }
        )
    else:
        emit(_summary(topic, tally, rate))
    if isinstance(ended, SkerryError):
        raise ended
    if ended:
        raise typer.Exit(130)


def _summary(topic: str, tally: _Tally, rate: float) -> str:
    text = f"{count(tally.stored, 'event')} to {topic}"
    if not tally.last and tally.stored:
        text += ", kept in this site's outbox"
    elif tally.stored == 1:
        return f"{text}, index {tally.last}"
    elif tally.stored:
        text += f", indexes {tally.first} to {tally.last}"
    if tally.stored:
        text += f", {show_size(tally.bytes)}, {rate:,.0f} events/s"
    return text


async def _stream(
    topic: str,
    descriptor: int,
    options: dict[str, Any],
    ack: Ack | None,
    connect: Targets,
    timeout: float,
    tally: _Tally,
    advance: Callable[[int], object],
) -> SkerryError | bool:
    """Publish every line. However it ends, what was sent before is waited for. Returns why it
    ended early: an error, or True for Ctrl-C."""
    ended: SkerryError | bool = False
    async with (
        connected(connect, timeout) as client,
        client.publisher(topic, ack=ack) as publisher,
    ):
        try:
            async for line in lines(descriptor):
                tally.add(await publisher.send(line, **options), len(line))
                if tally.sent % STEP == 0:
                    advance(tally.sent_bytes + tally.sent)
                if tally.failure is not None:
                    break
        except asyncio.CancelledError:
            ended = True
        except InputError as error:
            ended = InputError(f"line {tally.sent + 1}: {error.what}", error.advice)
        except OSError as error:
            ended = BadSetting(f"reading stopped after line {tally.sent}: {error.strerror}")
        try:
            await publisher.flush()
        except PublishFailed as failed:
            ended = _refused(failed, topic, tally.sent)
        await asyncio.sleep(0)  # let the last acknowledgements be counted
        tally.stop()
    return ended


def _refused(failed: PublishFailed, topic: str, sent: int) -> SkerryError:
    """The first refusal as the error of all, with its exit code."""
    first = failed.first
    if not isinstance(first, SkerryError):
        return failed
    what = f"{failed.count:,} of {count(sent, 'event')} sent to {topic} were not acknowledged"
    return PublishFailed(f"{what}; the first: {first.what}", first.advice, failed.count, first)


@contextmanager
def _opened(file: Path | None) -> Iterator[int]:
    if file is None:
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
        if file.is_dir():
            os.close(descriptor)
            raise IsADirectoryError(0, "it is a folder")
    except OSError as error:
        raise BadSetting(f"cannot read {file}: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[int], object]]:
    """A progress bar on stderr while a file is published by a person at a terminal."""
    if file is None or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from skerry.cli.output import console

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
    ) as progress:
        task = progress.add_task(file.name, total=file.stat().st_size or None)
        yield lambda size: progress.update(task, completed=size)
