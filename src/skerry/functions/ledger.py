"""A journal's writer: claims it, reads it, and writes on the condition that it is still its own.

The claim is taken anew whenever the journal has another home. What an earlier home had and lost is
brought back when that site returns (`skerry.fabric.salvage`), perhaps long after a slot was used
again: it must meet another claim then, so that the engine refuses it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec

from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.functions.access import CALL, Access, epoch_of, home_stream
from skerry.functions.journal import CLAIM, Journal, Kept, Record, place_of, slot_of
from skerry.log.follow import Start
from skerry.log.frames import new_id, only_if
from skerry.log.live import LiveSubscription
from skerry.log.topics import unknown_topic
from skerry.model.event import parse_headers
from skerry.model.fabric import TopicEntry
from skerry.model.names import stored_subject
from skerry.model.records import read

TRIES = 5
"""Attempts to read a journal whose home changes meanwhile."""

_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """Writes one journal. Every method raises `Conflict` once another one has claimed it."""

    def __init__(self, access: Access, topic: str) -> None:
        self.journal = Journal()
        self.verified = 0.0
        """When the engine last proved that the journal was ours, by the connection's clock."""
        self.moved = asyncio.Event()
        """The journal has another home since the claim: `renew` it."""
        self._access = access
        self._topic = topic
        self._publisher = access.publisher(topic)
        self._claim = 0
        self._mark = b""
        self._turn = asyncio.Lock()
        self._entry: TopicEntry | None = None
        self._gone: SkerryError | None = None

    async def open(self) -> Journal:
        """Claim the journal and read it."""
        for _ in range(TRIES):
            entry = await self._find()
            await self._access.reach(entry)
            try:
                last = await self._last_claim(entry)
            except Unavailable:
                if await self._is_at(entry):
                    raise
                continue
            await self._write_claim(last)
            try:
                journal = await self._read(entry)
            except (Conflict, Unavailable):  # the claim may have gone to the next home
                if await self._is_at(entry):
                    raise
                continue
            if await self._is_at(entry):
                self.journal = journal
                self.moved.clear()
                return journal
        raise Unavailable(f"the journal {self._topic} moves all the time")

    async def _is_at(self, entry: TopicEntry | None) -> bool:
        return epoch_of(await self._find()) == epoch_of(entry)

    async def write(self, record: Record) -> None:
        """Write a record; it counts when this returns."""
        async with self._turn:  # not while the claim changes
            ack = await self._send(_encode(record), slot_of(record.number))
        await ack
        self.verified = self._access.connection.clock

    async def keep(self, kept: Kept) -> asyncio.Future[int]:
        """Write down a value of the state; it counts when the future is done."""
        async with self._turn:
            return await self._send(_encode(kept), place_of(kept.key))

    async def renew(self) -> None:
        """Claim the journal anew: nothing written on the old claim can be stored from then on."""
        async with self._turn:
            self.moved.clear()
            await self._write_claim(self._claim)

    @property
    def waits(self) -> bool:
        """Whether a write is not acknowledged yet."""
        return self._publisher.in_flight > 0

    def why(self) -> str:
        """What keeps the oldest write from being acknowledged."""
        return self._publisher.why()

    def close(self) -> None:
        """Stop at once."""
        if self._entry is not None:
            self._access.routes.unfollow(self._entry.name, self)
        self._publisher.close()

    def on_route(self, entry: TopicEntry) -> None:
        """The journal has another home, or other replicas."""
        self.moved.set()

    def on_gone(self) -> None:
        """The journal was deleted."""
        self._entry = None
        self._gone = unknown_topic(self._topic)
        self.moved.set()

    async def _find(self) -> TopicEntry | None:
        entry = await self._access.routes.find(self._topic)
        if entry is not None and self._entry is None:
            self._access.routes.follow(entry.name, self)
        self._entry = entry
        return entry

    async def _send(self, data: bytes, place: str) -> asyncio.Future[int]:
        if self._gone is not None:
            raise self._gone
        return await self._publisher.send(
            data, topic=f"{self._topic}/{place}", id=new_id(), again=False, mark=self._mark
        )

    async def _last_claim(self, entry: TopicEntry | None) -> int:
        jetstream = self._access.at_home(entry)
        reply = await jetstream.ask(
            f"{jetstream.prefix}DIRECT.GET.{home_stream(self._topic, entry)}",
            msgspec.json.encode({"last_by_subj": stored_subject(f"{self._topic}/{CLAIM}")}),
            timeout=CALL,
            recovering=entry is not None,
        )
        if reply.status not in (0, 404) and entry is not None:
            raise Unavailable(f"{entry.home} is not the home of {self._topic} yet")
        if reply.status not in (0, 404):
            raise unknown_topic(self._topic)
        await self._access.check(entry)
        return 0 if reply.status else int(parse_headers(reply.head)["Nats-Sequence"])

    async def _write_claim(self, last: int) -> None:
        self._mark = only_if(f"{self._topic}/{CLAIM}", last)
        try:
            self._claim = await (await self._send(b"", CLAIM))
        except Conflict:
            raise self._taken() from None
        self._mark = only_if(f"{self._topic}/{CLAIM}", self._claim)
        self.verified = self._access.connection.clock

    def _taken(self) -> Conflict:
        return Conflict(f"another host claimed the journal {self._topic}", "It goes on there.")

    async def _read(self, entry: TopicEntry | None) -> Journal:
        """The journal up to our claim, which is its newest event; all of it, or this raises."""
        last = 0
        records: list[Record] = []
        values: list[Kept] = []
        start = len(self._topic) + 1
        subscription = LiveSubscription(
            self._access.at_home(entry),
            self._topic,
            self._topic,
            Start(index=1),
            stream=home_stream(self._topic, entry),
        )
        async with await subscription.open(), aclosing(subscription.drain(self._claim)) as events:
            async for event in events:
                last, place = event.index, event.topic[start:]
                kind: Any = {"r": Record, "k": Kept}.get(place.partition("/")[0])
                if kind is None:
                    continue
                where = f"{event.topic} #{event.index}"
                found: object = read(event.data, kind, where, decode=msgspec.msgpack.decode)
                if isinstance(found, Record):
                    records.append(found)
                elif isinstance(found, Kept):
                    values.append(found)
        await self._access.check(entry)
        if last != self._claim:  # only the newest claim is kept
            raise self._taken()
        return Journal.of(records, values)
