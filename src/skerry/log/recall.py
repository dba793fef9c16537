"""Find out which events a new home has already.

A copy that becomes the home knows the ids of the events that it took since its engine started, and
has forgotten those from before: the engine does not read them back for a mirror (seen with 2.15.1).
Such a home would store an event again that its publisher sends again. So the publisher looks: what
it has not seen acknowledged lies, if it is there at all, between the last index that it knows and
the index at which the new home took over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from datetime import UTC, datetime

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.errors import AccessDenied
from skerry.model.event import ID_HEADER, parse_headers, status_of
from skerry.model.names import stored_subject

BATCH = 1000
BYTES = 1 << 20
"""Of one batch: so much comes in time by any link."""
TIME = 5.0
"""Seconds for one batch."""

AT_ONCE = 64
"""Sub-topics whose last events are asked for at the same time."""
PAST = 200_000
"""Events, at the most, that a home is asked for at once."""
SKEW = 30.0
"""Seconds that the clocks of a publisher and of a home may differ."""

_numbers = itertools.count()


async def last_stored(connection: Connection, site: str, stream: str) -> int:
    """The index of the newest event of the log at `site`; 0 if it has none. Raises `Down` or
    `TimeoutError` if it cannot be read now."""
    return await _index(connection, site, stream, {"last_by_subj": "e.>"}, 0)


async def first_since(connection: Connection, site: str, stream: str, moment: float) -> int:
    """The index of the first event since `moment`, in seconds since 1970; beyond all if there is
    none. Raises as `last_stored`."""
    since = datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    # As a batch: by the engine's source, without, a time whose event was removed may find none.
    return await _index(connection, site, stream, {"start_time": since, "batch": 1}, sys.maxsize)


async def _index(
    connection: Connection, site: str, stream: str, asked: dict[str, object], none: int
) -> int:
    body = msgspec.json.encode(asked)
    reply = await connection.request(f"$JS.{site}.API.DIRECT.GET.{stream}", body, timeout=TIME)
    if reply.status == NO_RESPONDERS:
        raise Down
    return none if reply.status else int(parse_headers(reply.head)["Nats-Sequence"])


async def last_values(jetstream: JetStream, subject: str, topics: set[str]) -> dict[str, int]:
    """The ids of the last events of sub-topics, with their indexes, in the log that takes `subject`
    at the connection's own engine; none if that keeps more than the last of each."""
    found: dict[str, int] = {}
    wanted = sorted(topics)

    async def look(stream: str, topic: str) -> None:
        body = msgspec.json.encode({"last_by_subj": stored_subject(topic)})
        subject = f"{jetstream.prefix}DIRECT.GET.{stream}"
        reply = await jetstream.ask(subject, body)
        fields = parse_headers(reply.head)
        if not reply.status and ID_HEADER in fields:
            found[fields[ID_HEADER]] = int(fields["Nats-Sequence"])

    with contextlib.suppress(AccessDenied):  # by an engine of the user's own
        for stream in await jetstream.stream_names(subject):
            info = await jetstream.stream(stream)
            if info is not None and info["config"].get("max_msgs_per_subject") == 1:
                for start in range(0, len(wanted), AT_ONCE):
                    some = wanted[start : start + AT_ONCE]
                    await asyncio.gather(*(look(stream, topic) for topic in some))
    return found


async def stored_ids(
    connection: Connection,
    site: str | None,
    stream: str,
    first: int,
    last: int,
    wanted: set[str] | None,
) -> dict[str, int]:
    """Which of `wanted` (None: which of all) the log at `site` (None: the connection's own) holds
    from index `first` to `last`, and where. Raises `Down` or `TimeoutError` if it cannot be read
    now."""
    found: dict[str, int] = {}
    while first <= last and (wanted is None or len(found) < len(wanted)):
        first = await _batch(connection, site, stream, first, last, wanted, found)
    return found


async def _batch(
    connection: Connection,
    site: str | None,
    stream: str,
    first: int,
    last: int,
    wanted: set[str] | None,
    found: dict[str, int],
) -> int:
    """Look at one batch; return the index to go on at."""
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    reached = first

    def on_message(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        nonlocal reached
        status = status_of(head)
        if status:
            if not done.done():
                done.set_result(status == NO_RESPONDERS)
            return
        fields = parse_headers(head)
        index = int(fields["Nats-Sequence"])
        reached = max(reached, index + 1)
        identity = fields.get(ID_HEADER)
        if index <= last and identity and (wanted is None or identity in wanted):
            found[identity] = index

    inbox = f"{connection.inbox}.g.{next(_numbers)}"
    sid = connection.subscribe(inbox, on_message)
    try:
        size = min(BATCH, last - first + 1)
        body = msgspec.json.encode({"seq": first, "batch": size, "max_bytes": BYTES})
        prefix = "$JS.API" if site is None else f"$JS.{site}.API"
        subject = f"{prefix}.DIRECT.GET.{stream}"
        connection.publish(subject, body, reply=inbox)
        async with asyncio.timeout(TIME):
            if await done:
                raise Down  # nobody is there yet
    finally:
        connection.unsubscribe(sid)
    return reached if reached > first else last + 1
