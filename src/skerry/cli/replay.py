"""`skerry archive replay`: publish a slice of an archive again."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, Timeout, connected, run
from skerry.cli.output import count, emit, emit_json
from skerry.errors import BadSetting, PublishFailed, SkerryError
from skerry.model.names import check_topic
from skerry.model.quantities import check_index, parse_time

if TYPE_CHECKING:
    from skerry.archive.replay import Slice

EXAMPLE = """Examples:
  skerry archive replay history --topic sensors/roof --to replayed
  skerry archive replay history --topic sensors --to test/sensors --speed 10
  skerry archive replay history --topic orders --to orders2 --from 100 --until 199 --speed max"""

STEP = 0.1
"""Seconds between two movements of the progress bar."""


def replay(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The archive's folder.")],
    topic: Annotated[
        str,
        typer.Option(metavar="TOPIC", help="What to publish again, with all below it."),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="TOPIC", help="Where to; what was in a sub-topic goes to one of the same name."
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: an index (12), a time (2026-11-15T08:00Z), or how long ago "
            "(10m).",
            show_default="first",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where to end, included.", show_default="last"),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(metavar="FACTOR", help="1: as it happened; 10: ten times as fast; or max."),
    ] = "1",
    id: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="What ids begin with. A replay that is repeated within two minutes under the same "
            "prefix adds nothing twice.",
            show_default="made of archive, topic and target",
        ),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Publish a slice of an archive to a topic, at its original speed or another.

    Keys and headers are kept; indexes and times are new."""
    from skerry.archive.folder import Archive
    from skerry.archive.replay import chosen, count_events, replay_name
    from skerry.archive.table import open_table

    factor = _factor(speed)
    archive = Archive.open(folder)
    wanted = _slice(check_topic(topic), start, until)
    check_topic(to)
    files = chosen(open_table(archive).snapshot().files, wanted)
    total = count_events(archive.path, files, wanted)
    if not total:
        raise BadSetting(
            f"{archive.path} holds no events of {topic} there",
            f"See what it holds with `skerry archive status {folder}`.",
        )
    prefix = replay_name(archive, wanted, to) if id is None else _prefix(id)
    work = _Replay(archive.path, files, wanted, to, prefix, factor)
    with _progress(topic, total) as advance:
        ended = run(work.run(connect, timeout, advance))
    if as_json:
        emit_json(
            {
                "topic": topic,
                "to": to,
                "events": work.stored,
                "of": total,
                "added": work.added,
                "id": prefix,
                "seconds": round(work.seconds, 3),
            }
        )
    else:
        rate = work.stored / work.seconds if work.seconds else 0.0
        emit(
            f"{count(work.stored, 'event')} of {total:,} from {topic} to {to}, "
            f"{count(work.added, 'event')} new, {rate:,.0f} events/s"
        )
    if isinstance(ended, SkerryError):
        raise ended
    if ended:
        raise typer.Exit(130)


class _Replay:
    """The work, and what became of it."""

    def __init__(
        self,
        root: Path,
        files: dict[str, Any],
        wanted: Slice,
        to: str,
        prefix: str,
        factor: float | None,
    ) -> None:
        self._root = root
        self._files = files
        self._wanted = wanted
        self._to = to
        self._prefix = prefix
        self._factor = factor
        self.stored = 0
        self.added = 0
        self.seconds = 0.0

    async def run(
        self, connect: Targets, timeout: float, advance: Callable[[int], object]
    ) -> SkerryError | bool:
        """Publish all. However it ends, what was sent is waited for. Returns why it ended early:
        an error, or True for Ctrl-C."""
        ended: SkerryError | bool = False
        began = time.monotonic()
        async with connected(connect, timeout) as client, AsyncExitStack() as stack:
            before = await client.latest_index(self._to)
            publisher = client.publisher(self._to)
            stack.push_async_callback(_close, publisher)
            try:
                await self._send(publisher, advance)
            except asyncio.CancelledError:
                ended = True
            except SkerryError as error:
                ended = error
            try:
                await publisher.flush()
            except PublishFailed as failed:
                ended = failed.first if isinstance(failed.first, SkerryError) else failed
            await asyncio.sleep(0)
            self.added = max(await client.latest_index(self._to) - before, 0)
        self.seconds = time.monotonic() - began
        return ended

    async def _send(self, publisher: Any, advance: Callable[[int], object]) -> None:
        from skerry.archive.replay import event_id, events, target_name

        loop = asyncio.get_running_loop()
        source = events(self._root, self._files, self._wanted)
        began, first, shown = loop.time(), None, 0.0
        for event in source:
            first = first or event.time
            if self._factor is not None:
                due = began + (event.time - first).total_seconds() / self._factor
                while (wait := due - loop.time()) > 0.001:
                    await asyncio.sleep(min(wait, STEP))
                    advance(self.stored)
            ack = await publisher.send(
                event.data,
                topic=target_name(event, self._wanted, self._to),
                key=event.key,
                headers=event.headers,
                id=event_id(self._prefix, event),
            )
            ack.add_done_callback(self._done)
            if loop.time() - shown > STEP:
                shown = loop.time()
                advance(self.stored)
        advance(self.stored)

    def _done(self, ack: asyncio.Future[int]) -> None:
        if not ack.cancelled() and ack.exception() is None:
            self.stored += 1


async def _close(publisher: Any) -> None:
    publisher.close()


def _factor(speed: str) -> float | None:
    if speed == "max":
        return None
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise BadSetting(f"{speed!r} is no speed", "Write 1, 10, 0.5, or max.")
    return factor


def _prefix(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", given):
        raise BadSetting(f"{given!r} cannot begin ids", "Use 1 to 64 letters, digits, _ . : -")
    return given


def _slice(topic: str, start: str | None, until: str | None) -> Slice:
    from skerry.archive.replay import Slice

    first, since = _place(start)
    last, end = _place(until)
    if (first and last and first > last) or (since and end and since > end):
        raise BadSetting(f"{start} is behind {until}", "Give --from a place before --until.")
    return Slice(topic=topic, first=first, last=last, since=since, until=end)


def _place(text: str | None) -> tuple[int | None, datetime | None]:
    if text is None:
        return None, None
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        return check_index(text), None
    return None, parse_time(text, datetime.now(UTC))


@contextmanager
def _progress(topic: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on stderr for a person at a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from skerry.cli.output import console

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
    ) as progress:
        task = progress.add_task(topic, total=total)
        yield lambda done: progress.update(task, completed=done)
