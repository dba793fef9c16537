"""Which rows of a batch are in the log already, when the log itself may have forgotten.

A log refuses an id that it has seen within its duplicate window, two minutes; and a site that took
over a topic just after its engine was started may know even less (`TopicEntry.forgetful`). A batch
that is run again there would be doubled. So what earlier attempts wrote is read back from the
topic's home, and those rows are left out.

Theory of operation. Spark runs a batch again only if it is the first of a run of the query, or if
tasks of it failed. So whoever knows that this run has done the batch before knows that nothing of
this one is written yet. The sink writes that down, in `skerry/written` of the checkpoint, as
soon as Spark says that all tasks of a batch are done: the run, the batch, and how far the topics
went. What attempts of the next batch write lies behind that. Where nothing is written down, the
time tells where to look: Spark writes a batch's time into the checkpoint before it first runs, and
never again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from skerry.config import DUPLICATE_WINDOW
from skerry.directory.store import PREFIX, STREAM
from skerry.engine.address import Address
from skerry.model.event import ID_HEADER, parse_headers, status_of
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.names import stream_of
from skerry.spark.fetch import SILENCE, Lost, Socket

log = logging.getLogger("skerry.spark")

SURE = DUPLICATE_WINDOW - 30
"""Seconds after a batch began for which the log refuses whatever of it it has; less than the window
by what an acknowledgement may take."""
SKEW = 30.0
"""Seconds that the clocks of the driver and of a topic's home may differ."""
BATCH = 1000
MOST_MARKS = 1000
"""Topics whose marks are kept; the file is written with every batch."""

Mark = tuple[int, int]
"""An epoch, and an index that the log had in it."""
Marks = dict[str, Mark]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The newest batch whose rows are all written."""

    run: str
    batch: int
    marks: Marks
    """How far topics went, at the least, when it was done."""
    before: Marks
    """The same for the batch before it."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What a task knows of earlier attempts at its rows."""

    again: bool
    """Whether there may have been any."""
    began: float | None
    """When the batch was first planned, by the driver's clock; None: unknown."""
    marks: Marks = msgspec.field(default_factory=dict)
    """How far topics went before it."""

    def must_look(self, topic: str, entry: TopicEntry | None) -> bool:
        """Whether the log of `topic` may have forgotten what earlier attempts wrote there. Also
        asked for a batch that is not run again: Spark does not tell a task that its whole stage
        is."""
        if self.began is None:
            return False
        if time.time() > self.began + SURE:
            return True
        if entry is None:
            return False  # a site alone reads its ids back whenever it starts
        mark = self.marks.get(topic)
        return self.again or (entry.forgetful and (mark is None or mark[0] < entry.epoch))

    def start(self, topic: str, entry: TopicEntry | None) -> dict[str, Any]:
        """Where in the log to begin to look, as the engine takes it."""
        epoch, index = self.marks.get(topic, (0, 0))
        if entry is not None and index:
            index = min(index, entry.fork(epoch))  # beyond the fork nothing is what it was
            if index:
                return {"seq": index + 1}
        assert self.began is not None
        moment = datetime.fromtimestamp(self.began - SKEW, UTC)
        return {"start_time": moment.isoformat().replace("+00:00", "Z")}


def attempt_at(checkpoint: str, run: str, batch: int, number: int) -> Attempt:
    """What the checkpoint tells about attempt `number` of a task of `batch`."""
    done = read_done(checkpoint)
    first = done is not None and (done.run, done.batch) == (run, batch - 1) and run and not number
    marks: Marks = {}
    if done is not None:
        marks = {batch - 1: done.marks, batch: done.before}.get(done.batch, {})
    return Attempt(again=not first, began=batch_began(checkpoint, batch), marks=marks)


def prefix(query: str, batch: int) -> str:
    """What the ids of all rows of a batch begin with; the task, the content and a number follow."""
    return f"spark-{query}-{batch}-"


def batch_began(checkpoint: str, batch: int) -> float | None:
    """When a batch was first planned, by the driver's clock; None if the checkpoint does not tell.

    It is written in the first of the two JSON lines behind the version in `offsets/<batch>`.
    """
    try:
        lines = _read(checkpoint, f"offsets/{batch}").decode().splitlines()
        return float(json.loads(lines[1])["batchTimestampMs"]) / 1000
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def read_done(checkpoint: str) -> Done | None:
    """The newest batch that is done; None if the checkpoint does not tell."""
    try:
        return msgspec.json.decode(_read(checkpoint, "skerry/written"), type=Done)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def write_done(checkpoint: str, run: str, batch: int, found: Iterable[Mapping[str, Mark]]) -> None:
    """Write down that all tasks of a batch are done, and what they found. If that fails, the next
    batch looks for rows in vain, which costs time and nothing else."""
    old = read_done(checkpoint)
    before = {}
    if old is not None:
        before = {batch - 1: old.marks, batch: old.before}.get(old.batch, {})
    marks = dict(before)
    for each in found:
        for topic, mark in each.items():
            marks[topic] = max(marks.pop(topic, mark), mark)
    marks = dict(list(marks.items())[-MOST_MARKS:])
    content = msgspec.json.encode(Done(run=run, batch=batch, marks=marks, before=before))
    try:
        system, path = _place(checkpoint)
        system.create_dir(f"{path}/skerry")
        with system.open_output_stream(f"{path}/skerry/written") as file:
            file.write(content)
    except OSError as error:
        log.warning(
            "the checkpoint cannot be written (%s): each batch reads its topics back", error
        )


def _place(checkpoint: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" in checkpoint or checkpoint.startswith("file:"):
        system, path = fs.FileSystem.from_uri(checkpoint)
    else:
        system, path = fs.LocalFileSystem(), checkpoint
    return system, path.rstrip("/")


def _read(checkpoint: str, name: str) -> bytes:
    if not checkpoint:
        raise FileNotFoundError("no checkpoint")
    system, path = _place(checkpoint)
    with system.open_input_stream(f"{path}/{name}") as file:
        content: bytes = file.read()
    return content


def stored_ids(
    addresses: list[Address], topic: str, prefix: str, start: dict[str, Any]
) -> set[str]:
    """The ids that begin with `prefix` of all events that `topic` has from `start` on, as its home
    has them. Raises `Lost` or `OSError` if that cannot be read now, or if who was asked turns out
    not to be the home any more."""
    with contextlib.closing(Socket(addresses, SILENCE)) as wire:
        return _scan(wire, topic, prefix, start)


def _scan(wire: Socket, topic: str, prefix: str, start: dict[str, Any]) -> set[str]:
    at = _entry(wire, topic, "$JS.API")
    if at is None:
        return _ids(wire, topic, f"$JS.API.DIRECT.GET.{stream_of(topic)}", prefix, start)
    api = f"$JS.{at.home}.API"
    found = _ids(wire, topic, f"{api}.DIRECT.GET.{at.stream}", prefix, start)
    # See `skerry.log.home.check_home`: a former home answers as if there were no rows.
    known = _entry(wire, topic, api)
    if known is None or (known.home, known.stream) != (at.home, at.stream):
        raise Lost(f"{at.home} is not the home of {topic} yet, or not any more")
    return found


def _entry(wire: Socket, topic: str, api: str) -> TopicEntry | None:
    """Where `topic` lives, as the site behind `api` knows; None: it knows of no such topic."""
    key = {"last_by_subj": PREFIX + topic_key(topic)}
    status, entry = wire.ask(f"{api}.DIRECT.GET.{STREAM}", key)
    if status or not entry:
        return None
    try:
        return msgspec.convert(entry, TopicEntry)
    except msgspec.ValidationError as error:
        raise Lost(f"where {topic} lives cannot be read ({error})") from None


def _ids(wire: Socket, topic: str, subject: str, prefix: str, start: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    ask = {**start, "batch": BATCH}
    while True:
        reached, left = _page(wire, topic, subject, ask, prefix, found)
        if reached is None or not left:
            return found
        ask = {"seq": reached + 1, "batch": BATCH}


def _page(
    wire: Socket, topic: str, subject: str, ask: dict[str, Any], prefix: str, found: set[str]
) -> tuple[int | None, int]:
    """Look at some events; return the last one's index and how many are behind it."""
    wire.publish(subject, f"{wire.inbox}.g", msgspec.json.encode(ask))
    reached: int | None = None
    left = 0
    while True:
        _, _, others = wire.receive()
        for other in others:
            status = status_of(other.head)
            if status == 503:
                raise Lost(f"nobody answers for {topic}")
            if status == 404:
                return None, 0
            fields = parse_headers(other.head)
            if status:  # 204: the end of the page
                left = int(fields.get("Nats-Num-Pending", 0))
                return reached, left
            reached = int(fields["Nats-Sequence"])
            identity = fields.get(ID_HEADER, "")
            if identity.startswith(prefix):
                found.add(identity)
