"""Putting the segments of a log in order, after a roll: cut, bring home, weld.

Theory of operation. A roll leaves a log in several streams, so that it costs nothing but the tail.
What follows happens in the background, while the active segment takes what the home sends:

1. *Tell.* Who reads a frozen segment is told to look again.
2. *Cut.* What segments hold beyond the history is put aside, and brought home
   (`skerry.fabric.tails`). The rest waits until a quorum has it.
3. *Weld.* All segments are copied into one stream, at the same engine, without the network: a
   mirror that is sent one after the other by the relay. When it has come to the end, the active
   segment is stopped, the last events follow, and the new stream takes its place. Its engine asks
   where to read at most every two seconds, so this waits until it may do so at once: the copy
   pauses for some milliseconds. Then readers are told, and the segments removed; what fails of
   that is tried again (`Local.weld`), for the log itself is whole by then.

A home is one stream: the engine compares what is published on a condition with what that one holds,
and finds there how far it has read outboxes. So a site that is elected while its log is split
welds first, from what it has. `promotion.elect` prefers others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import FabricError, SkerryError
from skerry.fabric.durables import Durables
from skerry.fabric.logs import AT_ONCE, Logs
from skerry.fabric.relay import Relay
from skerry.fabric.streams import FIRST, Local, weld_config
from skerry.fabric.tails import Tails
from skerry.fabric.tasks import Tasks
from skerry.log.segments import Chain
from skerry.model.fabric import TopicEntry
from skerry.model.names import stream_of

log = logging.getLogger("skerry.fabric")

AGAIN = 0.25
AGAIN_MOST = 10.0
"""Seconds after which something that failed is tried again, at first and at the most."""
LOOK = 0.02
"""Seconds between two looks at a stream that takes in others."""
STANDSTILL = 10.0
"""Seconds after which taking in others, without getting on, is given up."""
LAST_EVENTS = 0.5
"""Seconds that the last events may take once the active segment is stopped."""


class Mending:
    """Of the logs of one site. `settle` makes a log what its entry says, once it is welded."""

    def __init__(
        self,
        jetstream: JetStream,
        logs: Logs,
        relay: Relay,
        tails: Tails,
        durables: Durables,
        settle: Callable[[TopicEntry], Awaitable[None]],
    ) -> None:
        self._jetstream = jetstream
        self._logs = logs
        self._relay = relay
        self._tails = tails
        self._durables = durables
        self._settle = settle
        self._parts: dict[str, list[tuple[str, int]]] = {}
        """What streams take in: the segments, and the newest event of each."""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._news: dict[str, asyncio.Event] = {}
        """Of logs that are put in order: what they were when that was looked at, and whether they
        are another by now."""
        self._tasks = Tasks("putting segments in order")

    async def close(self) -> None:
        """Stop; it begins anew when the log is settled."""
        await self._tasks.close()

    def begin(self, local: Local) -> None:
        """Put a log in order, if it is not. If that is under way, and waits, it goes on at once
        should the log be another one than it was."""
        if not self._is_needed(local):
            return
        if not local.is_mending:
            self._news[local.name] = asyncio.Event()
            local.mending = self._tasks.spawn(self._run(local))
        elif self._seen.get(local.name) != self._look(local):
            self._news[local.name].set()

    def _is_needed(self, local: Local) -> bool:
        return local.is_split or bool(local.ends) or local.weld is not None

    def _look(self, local: Local) -> tuple[object, ...]:
        entry = self._logs.entry(local.name)
        is_aside = local.copy.aside is not None
        has_tail = local.name in self._tails.kept
        return (local.stream, local.kind, is_aside, has_tail, entry.epoch if entry else 0)

    async def _run(self, local: Local) -> None:
        wait = AGAIN
        told: list[tuple[int, int]] = []
        while self._is_needed(local) and local.kind:
            entry = self._logs.entry(local.name)
            if entry is None:
                return
            self._seen[local.name] = self._look(local)
            has_gap = not local.is_split and not local.is_whole
            await self.finish(local)
            if has_gap and local.is_whole:
                await self._settle(entry)
            try:
                if told != local.places:
                    await self._durables.roll(local.name, local.frozen, local.chain)
                    told = local.places
                if local.copy.aside is None and local.ends:
                    await self._tails.cut(local)
                    self._tails.bring_home(local)
                # It may have to be cut again until a quorum has what was cut off, and a stream that
                # was welded does not say any more what is to be kept of it.
                is_kept = local.name in self._tails.kept
                is_ready = (local.kind == "copy" and not is_kept) or entry.home == self._logs.site
                if local.is_split and not local.copy.aside and is_ready:
                    try:
                        await self._weld(local)
                    except (SkerryError, Down, TimeoutError):
                        if local.is_split:
                            raise
                    if local.is_whole:
                        await self._settle(entry)
                    continue
            except (SkerryError, Down, TimeoutError) as error:
                log.debug("%s is not in order yet: %s", local.name, error)
                if local.kind == "frozen" and entry.home != self._logs.site:
                    await self._settle(entry)  # it was stopped, and the rest failed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news[local.name].wait()
            wait = AGAIN if self._news[local.name].is_set() else min(wait * 2, AGAIN_MOST)
            self._news[local.name].clear()

    # Welding

    def source(self, stream: str, start: int) -> str | None:
        """Which segment a stream that takes in the others is to read next; None: it does not."""
        parts = self._parts.get(stream, [])
        return next((part for part, last in parts if start <= last), None)

    async def _weld(self, local: Local) -> None:
        places = local.places
        target = stream_of(local.name, local.segment)
        parts = [(one.stream, await self._logs.newest(one.stream)) for one in local.chain]
        active, last = parts[-1][0], await self._last(local.stream)
        if not self._leads(local) and parts[-1][1] < last >= local.places[-1][1]:
            raise FabricError(f"the newest events of {local.name} are over: the next comes first")
        # One without events is left out: an empty mirror of it would begin behind its last index.
        self._parts[target] = [part for part in parts[:-1] if part[1]] + [(active, sys.maxsize)]
        try:
            await self._delete(target)
            entry = self._entry(local)
            await self._jetstream.call(f"STREAM.CREATE.{target}", weld_config(local, entry, target))
            await self._take_in(local, target, places)
            async with local.lock:
                is_home = self._leads(local)
                if local.places != places or (local.kind != "copy" and not is_home):
                    raise _changed(local)
                await self._close(local, target, is_home)
        except (SkerryError, Down, TimeoutError):
            with contextlib.suppress(SkerryError, Down, TimeoutError):
                await self._delete(target)
            raise
        finally:
            del self._parts[target]

    async def _delete(self, target: str) -> None:
        """Remove what was not finished."""
        info = await self._jetstream.stream(target)
        if info is not None and FIRST in (info["config"].get("metadata") or {}):
            raise FabricError(f"{target} is a segment")
        if info is not None:
            await self._jetstream.call(f"STREAM.DELETE.{target}")
        self._relay.forget(target)

    async def _take_in(self, local: Local, target: str, places: list[tuple[int, int]]) -> None:
        """Until `target` has what the segments have, and its engine may ask at once whom to follow;
        or it is to lead."""
        loop = asyncio.get_running_loop()
        most, deadline = -1, 0.0
        while True:
            if local.places != places:
                raise _changed(local)
            have = await self._last(target)
            if have > most:
                most, deadline = have, loop.time() + STANDSTILL
            source, reading = self.source(target, have + 1), self._relay.reads(target)
            reads = reading.stream if reading else None
            if source == reads == local.stream and have >= await self._logs.newest(local.stream):
                if self._leads(local) or self._relay.may_ask(target):
                    return
                deadline = loop.time() + STANDSTILL
            elif reads and source != reads:
                self._relay.go_on(target, have + 1)
            if loop.time() > deadline:
                raise FabricError(
                    f"{target} took in nothing for {STANDSTILL:.0f} s",
                    "Is there room on the disk, and below --max-store?",
                )
            await asyncio.sleep(LOOK)

    async def _close(self, local: Local, target: str, is_home: bool) -> None:
        """The act itself: stop the active segment, and have `target` take its place."""
        await self._logs.stop(local)
        last, wanted = local.copy.last, await self._logs.newest(local.stream)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_EVENTS
        while (have := await self._last(target)) < wanted:
            if loop.time() > deadline:
                raise FabricError(f"{target} did not get the last events in time")
            await asyncio.sleep(0.002)
        await self._check(local, target)
        await self._begin_with(local, target)
        gap = range(have + 1, last + 1)
        if gap and not await self._count(target):
            await self._logs.begin_at(target, last + 1)
            gap = range(0)
        elif gap and not is_home:
            raise FabricError(f"the newest events of {local.name} are over: the next comes first")
        await self._logs.weld(local, self._entry(local), is_home, gap)
        await self._finish(local)

    async def finish(self, local: Local) -> None:
        """Do what is left of a weld, if anything; what fails is tried again later (`begin`)."""
        try:
            async with local.lock:
                await self._finish(local)
        except (SkerryError, Down, TimeoutError) as error:
            log.debug("the weld of %s is not finished yet: %s", local.name, error)

    async def _finish(self, local: Local) -> None:
        if (weld := local.weld) is None:
            return
        if weld.gap and not local.is_split:  # else it does not lead, and goes on elsewhere
            await self._fill_up(local.stream, weld.gap)
        weld.gap = range(0)
        await self._logs.finish(local, weld, self._move)
        local.weld = None

    async def _move(self, local: Local, old: Chain) -> None:
        """Have those who read in `old` read the log as it is now: it may be split again."""
        if local.is_split:
            await self._durables.roll(local.name, old, local.chain)
        else:
            await self._durables.weld(local.name, old, local.stream)

    async def _begin_with(self, local: Local, target: str) -> None:
        """Have `target` begin where the log does: that may have let go of its earlier events after
        they were copied (`Following`)."""
        for segment in local.chain:
            state = (await self._jetstream.call(f"STREAM.INFO.{segment.stream}"))["state"]
            if state["messages"] or segment.is_active:
                break
        if await self._count(target) and state["first_seq"] > 1:
            await self._logs.begin_at(target, state["first_seq"])

    async def _check(self, local: Local, target: str) -> None:
        """The segments go only if `target` has as many events; where the log lets go of some by
        itself, that does not tell. Lifespans end in each stream at a moment of its own: what one
        of them still has, the engine removes soon."""
        if self._entry(local).settings.forgets:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_EVENTS
        while True:
            have = await self._count(target)
            counts = [await self._count(segment.stream) for segment in local.chain]
            if have >= sum(counts):
                return
            if loop.time() > deadline:
                raise FabricError(f"{target} took in {have} events of {sum(counts)}")
            await asyncio.sleep(LOOK)

    async def _count(self, stream: str) -> int:
        return int((await self._jetstream.call(f"STREAM.INFO.{stream}"))["state"]["messages"])

    async def _fill_up(self, stream: str, gap: range) -> None:
        """Events are over that were the newest: no other event may get their indexes. It may be
        done again, and what an earlier attempt sent may still come: each index is taken once."""
        subject, connection = f"_frozen.{stream}", self._jetstream.connection
        most = gap.start - 2
        while most < (have := await self._last(stream)) < gap[-1]:
            most = have
            heads = (
                f"NATS/1.0\r\nNats-Expected-Last-Sequence: {index - 1}\r\n\r\n".encode()
                for index in range(have + 1, min(have + AT_ONCE, gap[-1]) + 1)
            )
            await asyncio.gather(
                *(connection.request(subject, b"", head, timeout=2.0) for head in heads)
            )
        if have < gap[-1]:
            raise FabricError(f"{stream} does not take the indexes of events that are over")
        await self._logs.remove(stream, gap)

    def _leads(self, local: Local) -> bool:
        return self._entry(local).home == self._logs.site

    def _entry(self, local: Local) -> TopicEntry:
        entry = self._logs.entry(local.name)
        if entry is None:
            raise FabricError(f"{local.name} was deleted")
        return entry

    async def _last(self, stream: str) -> int:
        return int((await self._jetstream.call(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


def _changed(local: Local) -> FabricError:
    return FabricError(f"the log of {local.name} changed meanwhile")
