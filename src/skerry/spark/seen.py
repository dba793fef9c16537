"""Which rows of a batch are in the log already, when the log itself may have forgotten.

A log refuses an id that it has seen within its duplicate window, two minutes. A batch that is run
again later, after a long outage, or whose tasks take long, would be doubled. But such a batch has a
beginning that does not change: Spark writes the batch's time into the checkpoint before it first
runs, and never again. Whatever earlier attempts wrote lies in the log behind that time; so those
ids are read back from the topic's home, and their rows are left out.
"""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from skerry.config import DUPLICATE_WINDOW
from skerry.engine.address import Address
from skerry.errors import Unavailable
from skerry.model.event import ID_HEADER, parse_headers, status_of
from skerry.model.names import stream_of
from skerry.spark.fetch import Lost, Socket

SURE = DUPLICATE_WINDOW - 30
"""Seconds after a batch began for which the log refuses whatever of it it has; less than the window
by what an acknowledgement may take."""
SKEW = 30.0
"""Seconds that the clocks of the driver and of a topic's home may differ."""
BATCH = 1000


def batch_began(checkpoint: str, batch: int) -> float | None:
    """When a batch was first planned, by the driver's clock; None if the checkpoint does not tell.

    It is written in the first of the two JSON lines behind the version in `offsets/<batch>`.
    """
    from pyarrow import fs

    if not checkpoint:
        return None
    try:
        if "://" in checkpoint or checkpoint.startswith("file:"):
            system, path = fs.FileSystem.from_uri(checkpoint)
        else:
            system, path = fs.LocalFileSystem(), checkpoint
        with system.open_input_stream(f"{path.rstrip('/')}/offsets/{batch}") as file:
            lines = file.read().decode().splitlines()
        return float(json.loads(lines[1])["batchTimestampMs"]) / 1000
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def stored_ids(
    addresses: list[Address], home: str, topic: str, prefix: str, since: float, timeout: float
) -> set[str]:
    """The ids that begin with `prefix` of all events that `topic` took since then, as its home has
    them. Raises `Unavailable` if the home cannot be read."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with contextlib.closing(Socket(addresses, timeout)) as wire:
                return _scan(wire, home, topic, prefix, since)
        except (Lost, OSError) as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the home of {topic} could not be asked what it has of an earlier attempt "
                    f"({error})",
                    "Look with `skerry doctor`. The batch is run again when the query is.",
                ) from None
        time.sleep(0.2)


def _scan(wire: Socket, home: str, topic: str, prefix: str, since: float) -> set[str]:
    api = f"$JS.{home}.API" if home else "$JS.API"
    subject = f"{api}.DIRECT.GET.{stream_of(topic)}"
    moment = datetime.fromtimestamp(since - SKEW, UTC).isoformat().replace("+00:00", "Z")
    found: set[str] = set()
    ask: dict[str, Any] = {"start_time": moment, "batch": BATCH}
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
