"""The streams of one site's topics: which there are, and changing one of them.

What they are to be is decided by `Copies`. Whoever changes a stream holds the lock of its `Local`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from skerry.directory.store import Store
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.engine.link import Down
from skerry.errors import FabricError, SkerryError
from skerry.fabric.streams import (
    MARKS,
    OPENING,
    Local,
    Weld,
    copy_config,
    cut_at,
    end_of,
    frozen_config,
    gap_of,
    home_config,
    learn,
    signpost_config,
    sort_out,
)
from skerry.log.segments import CHAIN, Chain, Segment
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.names import segment_of_stream, stream_of
from skerry.model.promotion import Copy

Info = dict[str, Any]
"""What the engine says of a stream."""

AT_ONCE = 64
"""Events that are removed at the same time."""


class Logs:
    """The streams of one site. Each topic has one `Local`, which stays the same for as long as
    there is a stream, or somebody who wants one."""

    def __init__(
        self, jetstream: JetStream, site: str, fabric: str, store: Store, deliver_plain: bool
    ) -> None:
        self.site = site
        self._jetstream = jetstream
        self._fabric = fabric
        self._store = store
        self._deliver_plain = deliver_plain
        self._locals: dict[str, Local] = {}
        self._unfinished: set[str] = set()
        """Topics with streams that are no segments: what a crash left."""

    def __iter__(self) -> Iterator[Local]:
        return iter(list(self._locals.values()))

    def get(self, name: str) -> Local | None:
        """The topic's stream here, if anybody knows of it."""
        return self._locals.get(name)

    def of(self, name: str) -> Local:
        """The topic's stream here, to be."""
        if name not in self._locals:
            self._locals[name] = Local(name, self.site)
        return self._locals[name]

    def entry(self, name: str) -> TopicEntry | None:
        """Where a topic lives, as far as this site knows."""
        return self._store.get(topic_key(name), TopicEntry)

    # What the engine has

    def load(
        self, streams: Iterable[Info], now: float, before: Mapping[str, Copy] | None = None
    ) -> None:
        """Learn what is here; forget what is gone and not wanted. `before` are the copies as they
        were when the engine was asked: it takes a while to tell, and one that was begun anew since
        is known better."""
        before = before or {}

        def is_older(local: Local) -> bool:
            known = before.get(local.name, local.copy)
            return local.lock.locked() or local.is_busy or known is not local.copy

        found: dict[str, dict[int, Info]] = {}
        for info in streams:
            if (segment := segment_of_stream(info["config"]["name"])) is not None:
                found.setdefault(segment[0], {})[segment[1]] = info
        for name, numbered in found.items():
            local = self.of(name)
            if is_older(local):
                continue  # whoever changes it knows better
            what = sort_out(numbered)
            if what.left_over - what.welded.keys():
                self._unfinished.add(name)
            if not what.places:
                continue
            taken = {number: numbered[number]["state"] for number in what.welded}
            if local.weld is None and any(
                number or state["messages"] or state.get("consumer_count")
                for number, state in taken.items()
            ):
                old = (
                    Segment(stream_of(name, number), 1, end) for number, end in what.welded.items()
                )
                ends = [
                    min(state["last_seq"], what.welded[number]) for number, state in taken.items()
                ]
                local.weld = Weld(tuple(old), gap_of(numbered[what.places[-1][0]], max(ends)))
            if local.places[-1] != what.places[-1]:
                local.copy = Copy(self.site)  # the marks of another segment
            local.places, local.ends, local.given_up = what.places, what.ends, []
            learn(local, numbered[local.places[-1][0]], self._fabric)
            if local.kind == "copy" and not local.is_wanted:
                local.touched = now  # until it proves to be idle
        for local in self:
            if local.name not in found and not is_older(local):
                local.kind = ""
                if not local.is_wanted and not local.is_busy:
                    del self._locals[local.name]

    async def tidy(self) -> None:
        """Finish what a crash left unfinished, before anything else. What is left of a weld is done
        by `Mending.finish`."""
        for name in list(self._unfinished):
            if (local := self._locals.get(name)) is not None:
                async with local.lock:
                    await self._tidy(local)
            self._unfinished.discard(name)
        for local in self:
            if local.kind and local.places != [(0, 1)]:
                async with local.lock:
                    await self._position(local)
                    await self._list(local)

    async def _tidy(self, local: Local) -> None:
        """Remove streams that were to become segments. Which they are is looked up now: since the
        site began, one of their names may have become the log."""
        numbered: dict[int, Info] = {}
        for info in await self._jetstream.streams():
            name, number = segment_of_stream(info["config"]["name"]) or ("", 0)
            if name == local.name:
                numbered[number] = info
        what = sort_out(numbered)
        kept = {number for number, _ in local.places} | local.ends.keys() | what.welded.keys()
        if local.is_mending:
            kept.add(local.segment)  # it is being made
        for number in what.left_over - kept:
            with contextlib.suppress(ApiError):
                await self._jetstream.call(f"STREAM.DELETE.{stream_of(local.name, number)}")

    async def info(self, local: Local) -> Info | None:
        """What the engine says of a stream now."""
        return await self._jetstream.stream(local.stream)

    async def look(self, local: Local) -> Info | None:
        """The same, taken in."""
        info = await self.info(local)
        if info is None:
            local.kind = ""
            local.copy = Copy(self.site)
        else:
            learn(local, info, self._fabric)
        return info

    async def measure(self, local: Local) -> int:
        """The last index of a log that must be there."""
        info = await self.info(local)
        if info is None:
            local.kind = ""
            raise FabricError(
                f"site {self.site} has lost its log of {local.name}",
                "Restore the data folder, or move the topic to a site that has a copy.",
            )
        local.copy.last = end_of(local, info)
        local.count = int(info["state"]["messages"])
        return local.copy.last

    # Changing one

    def home(self, local: Local, entry: TopicEntry) -> Info:
        """The configuration of the topic's home here."""
        return home_config(local, entry, self._fabric, self._deliver_plain)

    def copy(self, local: Local, entry: TopicEntry) -> Info:
        """The configuration of a copy here."""
        return copy_config(local, entry, self._fabric, self._deliver_plain and local.delivers)

    async def create(self, local: Local, config: Info) -> None:
        """Make the stream."""
        await self._jetstream.call(f"STREAM.CREATE.{local.stream}", config)

    async def update(self, local: Local, config: Info) -> None:
        """Change the stream."""
        try:
            await self._jetstream.call(f"STREAM.UPDATE.{local.stream}", config)
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                local.kind = ""
            raise

    async def write_marks(
        self, local: Local, copy: Copy | None = None, epoch: int | None = None
    ) -> None:
        """Write down what the copy has promised and reached, or what it is about to; and that it is
        shut, and to be the home of `epoch`."""
        copy = copy or local.copy
        info = await self.info(local)
        if info is None:
            return
        config = info["config"]
        marks = {f"skerry.{mark}": str(getattr(copy, mark)) for mark in MARKS}
        if epoch is not None:
            marks["skerry.epoch"] = str(epoch)
        await self.update(
            local, {**config, "metadata": {**(config.get("metadata") or {}), **marks}}
        )

    async def freeze(self, local: Local, opening: bool = False) -> None:
        """Have a home take no more events; learn where it ends. With `opening` only until its
        members were asked."""
        if local.kind != "home":
            return
        info = await self.info(local)
        if info is None:
            local.kind = ""
            return
        config = frozen_config(info["config"], local.stream)
        if opening:
            config["metadata"] = {**(config.get("metadata") or {}), OPENING: "1"}
        await self.update(local, config)
        await self.come_to_rest(local.stream)
        local.kind = "frozen"
        local.is_reopened = opening
        local.sources.clear()
        await self.measure(local)

    async def come_to_rest(self, stream: str) -> None:
        """Wait until a stream that is frozen holds all that the engine had taken for it: what waits
        to be stored when the subjects change is stored, and acknowledged, all the same (2.15.1). It
        is stored in order, and so this, which is refused, is answered behind it."""
        head = b"NATS/1.0\r\nNats-Expected-Stream: none\r\n\r\n"
        await self._jetstream.ask(f"_frozen.{stream}", head=head, recovering=False)

    async def delete(self, local: Local) -> None:
        """Remove the log: the signpost last, so that what a crash leaves is found."""
        numbers = {number for number, _ in local.places} | local.ends.keys() | {local.segment}
        numbers |= {*local.given_up}
        streams = {stream_of(local.name, number) for number in numbers}
        streams |= {segment.stream for segment in (local.weld.old if local.weld else ())}
        for stream in (*sorted(streams - {local.signpost}, reverse=True), local.signpost):
            with contextlib.suppress(ApiError):
                await self._jetstream.call(f"STREAM.DELETE.{stream}")
        local.kind = ""
        local.parent = ""
        local.places, local.ends, local.is_welded = [(0, 1)], {}, False
        local.weld, local.given_up = None, []
        local.copy = Copy(self.site)

    # Segments

    async def roll(
        self, local: Local, entry: TopicEntry, end: int, is_beside: bool = False
    ) -> None:
        """Go on behind `end` in a new stream, as a copy; or begin anew there. What the log holds
        beyond is left to `Tails`."""
        number = local.segment + 1
        before, ends, welded = local.places, local.ends, local.is_welded
        local.is_welded = False
        local.ends = cut_at(before, ends, end)
        first = 1 if is_beside else end + 1
        local.places = [place for place in before if place[1] < first] + [(number, first)]
        try:
            await self.create(local, self.copy(local, entry))
        except BaseException:
            local.places, local.ends, local.is_welded = before, ends, welded
            raise
        local.kind = "copy"
        local.parent = ""
        await self._position(local)
        await self._list(local)

    async def take_back(
        self, local: Local, base: int, move: Callable[[Chain, Chain], Awaitable[None]]
    ) -> bool:
        """Give up the copy that was begun beside what the log was: that is the log again, with all
        that it has, and promises what the copy did. `move` has those who read the one, up to the
        index `base`, read the other. What is left to be done is kept in `local.given_up`. False:
        what the log was is not there any more, up to that index, and nothing was changed."""
        aside, log = local.copy.aside, Local(local.name, self.site)
        assert aside is not None
        last = aside.segment - aside.split
        numbers = sorted({number for number, _ in local.places} | local.ends.keys())
        was = {}
        for number in (number for number in numbers if number <= last):
            info = await self._jetstream.stream(stream_of(local.name, number))
            if info is not None:
                was[number] = info
        what = sort_out(was)
        if what.places:
            log.places, log.ends = what.places, what.ends
            learn(log, was[log.places[-1][0]], self._fabric)
        found = log.copy.state()
        is_same = (found.label, found.root) == (aside.label, aside.root) and found.last >= base
        given_up = [number for number in numbers if number > last]
        if not is_same or len(was) + len(given_up) < len(numbers):
            return False
        log.copy.seal(local.copy.sealed)
        await self.write_marks(log)
        await self._list(log)
        try:
            beside = (Segment(stream_of(local.name, number), 1, base) for number in given_up)
            await move(tuple(beside), log.chain)
        except BaseException:
            with contextlib.suppress(SkerryError, Down):
                await self._list(local)
            raise
        local.places, local.ends, local.copy = log.places, log.ends, log.copy
        local.kind, local.epoch, local.is_welded = log.kind, log.epoch, log.is_welded
        local.given_up, local.delivers = given_up, True
        await self.give_up(local)
        return True

    async def give_up(self, local: Local) -> None:
        """Remove the streams that were given up. The newest last: should the site die meanwhile, it
        finds there what they were begun beside."""
        await self.drop(local, [stream_of(local.name, number) for number in local.given_up])
        local.given_up = []

    async def stop(self, local: Local) -> None:
        """Have a copy follow nobody any more, whatever is under way to it."""
        info = await self.info(local)
        if info is not None:
            await self.update(local, frozen_config(info["config"], local.stream))
            local.kind = "frozen"
            await self.measure(local)

    async def weld(self, local: Local, entry: TopicEntry, leads: bool, gap: range) -> None:
        """Have the stream that all segments were copied into be the log; one that is to lead takes
        nothing until then, and lacks the indexes of `gap`. What is left to be done is kept in
        `local.weld`."""
        before, old = local.places, local.chain
        local.places = [(local.segment, before[0][1])]
        local.is_welded = True
        config = self.copy(local, entry)
        if leads:
            config = frozen_config(config, local.stream)
            config["metadata"]["skerry.epoch"] = "0"  # it is no home yet that was shut
        try:
            await self.update(local, config)
        except BaseException:
            local.places, local.is_welded = before, False
            raise
        earlier = local.weld.old if local.weld else ()
        local.weld = Weld((*earlier, *old), gap if leads else range(0))
        local.kind, local.parent = "frozen" if leads else "copy", ""
        local.copy = local.copy.twin()
        local.copy.following = 0

    async def finish(
        self, local: Local, weld: Weld, move: Callable[[Local, Chain], Awaitable[None]]
    ) -> None:
        """Do what is left of a weld: tell where the log is, have `move` move those who read in the
        former segments, and remove these. If that fails, all of it may be done again."""
        await self._list(local)
        await move(local, weld.old)
        await self.drop(local, {segment.stream for segment in weld.old})

    async def drop(self, local: Local, streams: Iterable[str]) -> None:
        """Remove streams that are no segments any more; the signpost stays, empty."""
        for stream in streams:
            what = "PURGE" if stream == local.signpost else "DELETE"
            try:
                await self._jetstream.call(f"STREAM.{what}.{stream}")
            except ApiError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise

    async def begin_at(self, stream: str, index: int) -> None:
        """Remove what a stream holds before `index`."""
        await self._jetstream.call(f"STREAM.PURGE.{stream}", {"seq": index})

    async def remove(self, stream: str, indexes: range) -> None:
        """Remove single events."""
        for first in range(0, len(indexes), AT_ONCE):
            some = indexes[first : first + AT_ONCE]
            await asyncio.gather(*(self._remove_one(stream, index) for index in some))

    async def _remove_one(self, stream: str, index: int) -> None:
        with contextlib.suppress(ApiError):  # it is gone
            body = {"seq": index, "no_erase": True}
            await self._jetstream.call(f"STREAM.MSG.DELETE.{stream}", body)

    async def newest(self, stream: str) -> int:
        """The index of the newest event that is still there; 0: there is none."""
        with contextlib.suppress(ApiError):
            # Not by `>`: that looks at the last index alone, which may be free (seen with 2.15.1).
            body = {"last_by_subj": "e.>"}
            found = await self._jetstream.call(f"STREAM.MSG.GET.{stream}", body)
            return int(found["message"]["seq"])
        return 0

    async def _position(self, local: Local) -> None:
        """Have an active segment that is empty begin at its first index."""
        info = await self.info(local)
        first = local.places[-1][1]
        if info is not None and info["state"]["last_seq"] < first - 1:
            await self.begin_at(local.stream, first)

    async def _list(self, local: Local) -> None:
        """Write the chain where readers look for it. A signpost that is all of it need not say
        so, unless it said something else."""
        info = await self._jetstream.stream(local.signpost)
        if info is None:
            return
        if local.places == [(0, 1)] and CHAIN not in (info["config"].get("metadata") or {}):
            return
        config = signpost_config(info["config"], local)
        if config != info["config"]:
            await self._jetstream.call(f"STREAM.UPDATE.{local.signpost}", config)
