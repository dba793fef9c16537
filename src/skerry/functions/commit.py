"""Turns what handlers did into records, and has records settled.

One record is on its way at a time: were two, the first could be refused and the second stored. The
next one grows meanwhile, so that load makes records larger, not more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from skerry.functions.destinations import Destinations
from skerry.functions.journal import SLOTS, Kept, Output, Position, Record
from skerry.functions.ledger import Ledger
from skerry.functions.release import Release
from skerry.functions.work import Line, merged

RECORD = 2 * 1024 * 1024
"""Bytes of effects that go into one record, if no single event has more."""
KEEP_EVERY = SLOTS // 2
KEEP_BYTES = 8 * 1024 * 1024
"""Records, and bytes of them, after which changed values are written down."""
UNSETTLED = 4 * KEEP_BYTES
"""Bytes of records that may be not settled: they are held in memory until then."""
BUSY = SLOTS // 8
PACE = 0.02
"""Seconds between records of a function with state, once so many are not settled: the fewer
records, the more changes of one key are written down as one."""
QUIET = 0.25
"""Seconds for which progress without effects is only remembered. What was handled since is handled
again after a crash, and changes nothing."""
IDLE = 1.0
"""Seconds without a record after which the journal is brought to rest, so that who takes over has
nothing to look for."""


class Committer:
    """Writes the journal of one function and log."""

    def __init__(
        self, ledger: Ledger, line: Line, release: Release, destinations: Destinations
    ) -> None:
        self._ledger = ledger
        self._journal = ledger.journal
        self._line = line
        self._release = release
        self._destinations = destinations
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        unsettled = self._journal.unsettled.values()
        self._dirty = dict.fromkeys(key for record in unsettled for key in record.state)
        """Keys whose values changed since they were written down."""
        self._keeping = False
        self._kept = self._journal.settled
        """Values are written down as of this record; while nothing is dirty, as of the last."""
        self._keep_now = asyncio.Event()
        self._settled = asyncio.Event()
        self._written = self._loop.time()
        self._behind: float | None = None
        """Since when progress is not written."""
        self._said = self._journal.settled
        """What the last record said to be settled."""
        self._loose = max((r.number for r in unsettled if r.state or r.outputs), default=0)
        """The last record that has effects."""
        self._sizes: deque[tuple[int, int]] = deque()
        """The records that are not settled, with their sizes."""
        self._bytes = 0
        self._ending = False

    @property
    def is_at_rest(self) -> bool:
        """Whether who takes over has nothing to do but to go on."""
        return self._said >= self._loose and self._line.taken == self._journal.progress

    async def run(self) -> None:
        """Work until cancelled; raises what only a new beginning can mend."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._commit_all())
            group.create_task(self._keep_all())
            group.create_task(self._settle_all())
            group.create_task(self._renew_all())

    async def finish(self) -> None:
        """Take nothing more; return once what was taken is delivered, written down, and said to
        be."""
        self._ending = True
        async with self._turn:
            while self._journal.settled < self._loose:
                await self._settling()
            if not self.is_at_rest:
                await self._write({}, ())

    # Records

    async def _commit_all(self) -> None:
        while True:
            await self._due()
            async with self._turn:
                if self._ending:
                    continue
                while not self._journal.has_room or self._bytes > UNSETTLED:
                    await self._settling()
                items = self._line.take(RECORD)
                state, outputs = merged(items)
                if state or outputs or self._is_overdue():
                    await self._write(state, outputs, sum(item.effects for item in items))

    async def _due(self) -> None:
        """Until there may be something to write."""
        if self._ending:
            await asyncio.sleep(3600)
        now = self._loop.time()
        if self._line.waiting.is_set():
            busy = self._dirty and self._journal.number - self._journal.settled >= BUSY
            if busy and now - self._written < PACE:
                await asyncio.sleep(PACE - (now - self._written))
            return
        wait = 3600.0
        if self._line.taken != self._journal.progress:
            self._behind = self._behind or now
            wait = self._behind + QUIET - now
        elif self._said < self._loose:
            if self._journal.settled < self._loose:
                self._keep_now.set()
            wait = max(self._written + IDLE - now, 0.02)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait, 0.001)):
                await self._line.waiting.wait()

    def _is_overdue(self) -> bool:
        now = self._loop.time()
        if self._line.taken != self._journal.progress:
            return self._behind is not None and now - self._behind >= QUIET
        idle = now - self._written >= IDLE
        return idle and self._said < self._loose <= self._journal.settled

    async def _write(
        self, state: dict[str, bytes | None], outputs: tuple[Output, ...], size: int = 0
    ) -> None:
        journal = self._journal
        marks: dict[str, Position] = {}
        for topic in {output.topic for output in outputs}:
            if (known := self._destinations.known(topic)) is not None:
                marks[known.name] = known.mark
        taken = self._line.taken
        record = Record(journal.number + 1, journal.settled, taken, state, outputs, marks)
        await self._ledger.write(record)
        journal.written(record)
        self._said = record.settled
        self._written = self._loop.time()
        self._behind = None
        if state or outputs:
            self._loose = record.number
        if state:
            self._dirty.update(dict.fromkeys(state))
        self._sizes.append((record.number, size))
        self._bytes += size
        if self._dirty and (journal.number - self._kept >= KEEP_EVERY or self._bytes > KEEP_BYTES):
            self._keep_now.set()
        self._release.put(record)
        self._settle()

    # Settling

    async def _settling(self) -> None:
        self._keep_now.set()
        self._settled.clear()
        await self._settled.wait()

    async def _keep_all(self) -> None:
        journal = self._journal
        while True:
            await self._keep_now.wait()
            self._keep_now.clear()
            keys, self._dirty = self._dirty, {}
            number = journal.number
            self._keeping = True
            kept = [
                await self._ledger.keep(Kept(key, journal.state.get(key), journal.number))
                for key in keys
            ]
            for future in kept:
                await future
            self._keeping = False
            self._kept = number
            self._settle()

    async def _settle_all(self) -> None:
        while True:
            await self._release.grew.wait()
            self._release.grew.clear()
            self._settle()

    def _settle(self) -> None:
        journal = self._journal
        if not self._dirty and not self._keeping:
            self._kept = journal.number
        settled = min(self._release.delivered, self._kept)
        if settled > journal.settled:
            journal.settle(settled)
            while self._sizes and self._sizes[0][0] <= settled:
                self._bytes -= self._sizes.popleft()[1]
            self._settled.set()

    async def _renew_all(self) -> None:
        while True:
            await self._ledger.moved.wait()
            await self._ledger.renew()
