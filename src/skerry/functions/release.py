"""Publishes what records hold, behind the journal: each output once.

Outputs leave in the order of the journal, through one publisher a topic. What is not known to be
delivered when a host takes over is looked up by id in the log it went to (`recover`), and the rest
is published. From then on ids guard it: a host that was replaced without noticing may publish the
same, and the log stores one of the two.

That guard lasts as long as logs remember ids. So a host that could not speak with its journal for a
while first makes sure that it is still in charge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from skerry.engine.link import Down
from skerry.errors import OutcomeUnknown, PublishFailed, SkerryError, UnknownTopic
from skerry.functions.access import Access, epoch_of, home_stream, still
from skerry.functions.destinations import GONE, Destination, Destinations
from skerry.functions.journal import Output, Position, Record
from skerry.functions.ledger import Ledger
from skerry.functions.work import HOPS_HEADER
from skerry.log.recall import stored_ids

log = logging.getLogger("skerry.functions")

FRESH = 30.0
"""Seconds since the journal's last answer after which outputs wait for another: a quarter of the
time for which logs remember ids."""
PAUSE = 0.5
PAUSE_MOST = 5.0
"""Seconds before a topic that is away or full is tried again, at first and at the most."""

_HOPS = HOPS_HEADER.encode() + b":%d\r\n"

Sent = tuple[Destination, Output, asyncio.Future[int]]


class Release:
    """The outputs of one function and log. `told` is called with what is waited for, and with an
    empty text when it goes on; `lost` with what had to be dropped."""

    def __init__(
        self,
        access: Access,
        ledger: Ledger,
        destinations: Destinations,
        told: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        self.delivered = ledger.journal.settled
        """Everything up to this record is delivered."""
        self.grew = asyncio.Event()
        """Set whenever `delivered` grew."""
        self.published = 0
        self.dropped = 0
        self._access = access
        self._ledger = ledger
        self._destinations = destinations
        self._told = told
        self._lost = lost
        self._records: asyncio.Queue[Record] = asyncio.Queue()
        self._sent: asyncio.Queue[tuple[int, list[Sent]]] = asyncio.Queue()

    def put(self, record: Record) -> None:
        """Publish what `record` holds; it was written."""
        if not record.outputs and self.delivered == record.number - 1:
            self._reach(record.number)
        else:
            self._records.put_nowait(record)

    async def run(self) -> None:
        """Work until cancelled; raises what only a new beginning can mend."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all())
            group.create_task(self._await_all())

    # Publishing

    async def _send_all(self) -> None:
        while True:
            record = await self._records.get()
            sent = [await self._send(output) for output in record.outputs]
            self._sent.put_nowait((record.number, [one for one in sent if one is not None]))

    async def _send(self, output: Output) -> Sent | None:
        """Send one; None: its topic will never take it."""
        if self._access.connection.clock - self._ledger.verified > FRESH:
            await self._ledger.renew()
        try:
            destination = self._destinations.known(output.topic) or await self._find(output.topic)
            future = await destination.publisher.send(
                output.data,
                topic=None if output.topic == destination.name else output.topic,
                key=output.key,
                headers=output.headers or None,
                id=output.id,
                mark=_HOPS % output.hops if output.hops else b"",
            )
        except GONE as error:
            self._drop(output, error)
            return None
        return destination, output, future

    async def _find(self, topic: str) -> Destination:
        pause = PAUSE
        while True:
            try:
                return await self._destinations.find(topic)
            except UnknownTopic:
                raise
            except (SkerryError, Down, TimeoutError) as error:
                pause = await self._wait(_text(error), pause)

    async def _await_all(self) -> None:
        while True:
            number, sent = await self._sent.get()
            for one in sent:
                await self._await(one)
            self._reach(number)

    async def _await(self, sent: Sent) -> None:
        """Wait until an output is stored; send it again if it was refused."""
        pause = PAUSE
        while True:
            destination, output, future = sent
            try:
                index = future.result() if future.done() else await future
            except GONE as error:
                if isinstance(error, UnknownTopic):
                    destination.gone = error  # what is handled from now on fails
                self._drop(output, error)
                return
            except (OutcomeUnknown, PublishFailed):
                raise  # it may be stored: only looking tells
            except SkerryError as error:  # full, or refused: it is not stored
                pause = await self._wait(_text(error), pause)
                again = await self._send(output)
                if again is None:
                    return
                sent = again
                continue
            if pause != PAUSE:
                self._told("")
            self.published += 1
            destination.stored(index)
            return

    async def _wait(self, why: str, pause: float) -> float:
        self._told(why)
        await asyncio.sleep(pause)
        return min(pause * 2, PAUSE_MOST)

    def _drop(self, output: Output, error: SkerryError) -> None:
        self.dropped += 1
        self._lost(f"what was published to {output.topic} is dropped: {error.what}")

    def _reach(self, number: int) -> None:
        self.delivered = number
        self.grew.set()

    # Taking over

    async def recover(self, records: Iterable[Record]) -> None:
        """Find out what of the records' outputs is delivered, and `put` the rest."""
        ordered = sorted(records, key=lambda record: record.number)
        names: dict[str, str] = {}
        for topic in {output.topic for record in ordered for output in record.outputs}:
            try:
                names[topic] = (await self._find(topic)).name
            except UnknownTopic:
                names[topic] = ""
        known: set[str] = set()
        for name in set(names.values()) - {""}:
            ids = [o.id for record in ordered for o in record.outputs if names[o.topic] == name]
            marks = [record.marks.get(name, Position()) for record in ordered]
            marked = [m for r, m in zip(ordered, marks, strict=True) if r.outputs]
            known |= await self._look_up(name, marked, ids)
        for record in ordered:
            rest = tuple(output for output in record.outputs if output.id not in known)
            self.put(msgspec.structs.replace(record, outputs=rest))
        if known:
            log.info("%d outputs were delivered by an earlier host", len(known))

    async def _look_up(self, name: str, marks: list[Position], ids: list[str]) -> set[str]:
        """Which of `ids`, in the order of publishing, the log of `name` has, or had."""
        pause = PAUSE
        while True:
            try:
                entry = await self._access.routes.find(name)
                await self._access.reach(entry)
                info = await self._access.stream(name, entry)
                last = int(info["state"]["last_seq"])
                start = min(still(mark, entry) for mark in marks)
                if start > last:
                    start = 0  # it was made anew
                found = await stored_ids(
                    self._access.connection,
                    None if entry is None else entry.home,
                    home_stream(name, entry),
                    max(start + 1, int(info["state"]["first_seq"])),
                    last,
                    set(ids),
                )
                await self._access.check(entry)
                if epoch_of(await self._access.routes.find(name)) == epoch_of(entry):
                    break
            except UnknownTopic:
                return set()
            except (SkerryError, Down, TimeoutError) as error:
                pause = await self._wait(_text(error), pause)
        if _forgets(info["config"]):
            # What is behind a later one was stored before it, and has aged out since.
            places = [place for place, id in enumerate(ids) if id in found]
            return set(ids[: max(places) + 1]) if places else set()
        return set(found)


def _forgets(config: dict[str, object]) -> bool:
    """Whether a log lets go of events."""
    limits = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
    return any(isinstance(v := config.get(name), int) and v > 0 for name in limits)


def _text(error: Exception) -> str:
    return error.what if isinstance(error, SkerryError) else str(error) or type(error).__name__
