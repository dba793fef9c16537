"""Bring home what only a former home has.

A home that was replaced while it was away may hold events that the new home never saw: it had
acknowledged them at level `home` and died before a replica had them. Each is published to the new
home with its own id, unless the new home has it already, because its publisher sent it again.

What was written on a condition that does not hold any more counts for nothing, and is left behind.
Events that came out of an outbox are left alone: their outbox keeps them until enough replicas
have them, and the new home reads it from where its own log ends.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import Conflict, Unavailable
from skerry.log.follow import Start
from skerry.log.frames import outcome_of
from skerry.log.live import LiveSubscription
from skerry.log.segments import is_home
from skerry.model.event import ID_HEADER, Event, reply_of
from skerry.model.fabric import TopicEntry
from skerry.model.names import write_subject

SOURCE_HEADER = "Nats-Stream-Source"
PATIENCE = 10.0
"""Seconds that the new home may take for one event."""


async def salvage(
    jetstream: JetStream,
    site: str,
    entry: TopicEntry,
    stream: str,
    root: int,
    range: tuple[int, int],
    fork: int,
) -> tuple[int, int]:
    """Publish the events in `range` of this site's `stream` that the new home lacks behind `fork`.
    Return how many they were, and the last index of the home then."""
    mine: list[tuple[str, Event]] = []
    async for kept in events_of(jetstream, entry.name, stream, *range):
        event = restored(stream, kept)
        fields = event._all()
        if SOURCE_HEADER not in fields:
            mine.append((fields.get(ID_HEADER) or f"salvage-{site}-{root}-{event.index}", event))
    if not mine:
        return 0, 0
    remote = jetstream if entry.home == site else JetStream(jetstream.connection, entry.home)
    info = await remote.call(f"STREAM.INFO.{entry.stream}", timeout=PATIENCE)
    if not is_home(info, entry.epoch):
        raise Unavailable(f"{entry.home}, the home of {entry.name}, has no log yet")
    end = int(info["state"]["last_seq"])
    known = set()
    if end > fork:
        async for event in events_of(remote, entry.name, entry.stream, fork + 1, end):
            known.add(event.id)
    count = 0
    for identity, event in mine:
        if identity not in known:
            end = max(end, await _publish(jetstream, entry, identity, event))
            count += 1
    return count, end


_KEPT = b"Kept-"


def kept_as(stream: str, event: Event) -> tuple[str, bytes]:
    """Subject and headers under which the tail `stream` keeps an event. What means something to the
    engine must not do so there. (To mirror it would not do: the engine drops conditions.)"""
    lines = [b"%b%b" % (_KEPT, line) for line in event._head.split(b"\r\n")[1:] if line]
    head = [b"NATS/1.0", b"%bIndex:%d" % (_KEPT, event.index), *lines, b"", b""]
    return f"_tail.{stream}.{event._subject.decode()}", b"\r\n".join(head)


def restored(stream: str, kept: Event) -> Event:
    """The event that a tail keeps."""
    lines = [line for line in kept._head.split(b"\r\n")[1:] if line.startswith(_KEPT)]
    lines = [line[len(_KEPT) :] for line in lines]
    index = next(int(line[6:]) for line in lines if line.startswith(b"Index:"))
    lines = [line for line in lines if not line.startswith(b"Index:")]
    head = b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
    subject = kept._subject[len(f"_tail.{stream}.") :]
    return Event(subject, index, head, kept.data, reply_of(index, kept.timestamp_ns))


async def events_of(jetstream: JetStream, topic: str, stream: str, start: int, end: int):  # type: ignore[no-untyped-def]
    subscription = LiveSubscription(jetstream, topic, topic, Start(index=start), stream=stream)
    async with await subscription.open(), aclosing(subscription.drain(end)) as events:
        async for event in events:
            yield event


async def _publish(jetstream: JetStream, entry: TopicEntry, identity: str, event: Event) -> int:
    """Returns the index that the event has there; 0: it was not taken."""
    connection = jetstream.connection
    lines = [line for line in event._head.split(b"\r\n")[1:] if line]
    lines = [line for line in lines if not line.lower().startswith(b"nats-msg-id:")]
    head = b"\r\n".join([b"NATS/1.0", b"Nats-Msg-Id:" + identity.encode(), *lines, b"", b""])
    subject = write_subject(entry.home, event.topic, entry.epoch)
    deadline = connection.now() + PATIENCE
    while connection.now() < deadline:
        await connection.wait_up(deadline)
        try:
            reply = await connection.request(subject, bytes(event.data), head, timeout=2.0)
        except (Down, TimeoutError):
            continue
        if reply.status == NO_RESPONDERS:
            await asyncio.sleep(0.05)
            continue
        outcome = outcome_of(entry.name, reply.head, reply.data)
        if isinstance(outcome, int):
            return outcome
        if isinstance(outcome, Conflict):
            return 0
        raise outcome
    raise Unavailable(f"the new home of {entry.name} took no salvaged event in time")
